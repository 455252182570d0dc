"""What becomes of odd inputs, on a real InfluxDB 1.x."""

import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mlops_events.schemas.events import EventId, Origin, Profile, Stats
from mlops_events.schemas.frame import Free, Row, Series
from mlops_events.sinks.base import Batch
from mlops_events.sinks.influxdb import InfluxDBSink
from mlops_events.sinks.testing import frame_record, stats_record

TS = 1_700_000_000_123_456_000
DAY = 86_400 * 10**9


@pytest.fixture
async def sink(new_sink: Callable[..., InfluxDBSink]) -> AsyncIterator[InfluxDBSink]:
    """Open a sink for the test's database."""
    sink = new_sink()
    await sink.open()
    yield sink
    await sink.close()


async def test_a_number_that_is_not_finite_is_told_as_text_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """The other fields are numbers as ever, and the event is there."""
    refused = await sink.write(observed({"loss": math.nan, "lr": 0.5, "x": -math.inf}))

    assert not refused
    (point,) = influxdb.query("SELECT * FROM training")
    assert point["lr"] == 0.5
    assert point["non_finite"] == "loss=NaN x=-Infinity"
    assert "loss" not in point


async def test_an_event_without_any_value_is_kept_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """All None or all NaN is still an event."""
    refused = await sink.write(observed({"loss": None}, {"loss": math.nan}, {}))

    assert not refused
    rows = influxdb.query("SELECT step, non_finite FROM training")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["non_finite"] for row in rows] == [None, "loss=NaN", None]


async def test_whole_numbers_are_floats_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """A field may hold 1 first and 1.5 later, and numbers beyond 64 bits."""
    batch = observed({"v": 1}, {"v": 1.5}, {"v": 2**63}, {"v": -(2**63)}, {"v": 5e-324})
    refused = await sink.write(batch)

    assert not refused
    rows = influxdb.query("SELECT v FROM training")
    assert [float(row["v"]) for row in rows] == [1, 1.5, 2.0**63, -(2.0**63), 5e-324]


async def test_a_text_where_a_number_is_becomes_a_dead_letter_alone_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """One wrong event in 5,000 costs itself and nobody else."""
    values: list[dict[str, Any]] = [{"v": float(k)} for k in range(4_095)]
    values[2_500] = {"v": "high"}
    refused = await sink.write(observed(*values))

    assert [(one.envelope.position, one.reason) for one in refused] == [(2_500, "type_conflict")]
    assert "'v'" in refused[0].message
    assert influxdb.query("SELECT count(v) FROM training")[0]["count"] == 4_094


async def test_fields_that_are_integers_there_already_stay_integers_on_a_real_1x(
    influxdb: Any, new_sink: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """What another program wrote decides, whether it did before the sink opened or after."""
    influxdb.write('training,run=old peers=5i,name="a",loss=1 1\nlate peers=5i 1')
    early = new_sink()
    await early.open()
    refused = await early.write(observed({"peers": 7, "name": 3}, {"peers": 2.5}, {"loss": 2}))
    await early.close()
    late = await sink.write(observed(*({"peers": k} for k in range(500)), name="late"))

    assert [(one.envelope.position, one.reason) for one in refused] == [(1, "type_conflict")]
    assert not late
    rows = influxdb.query("SELECT peers, \"name\", loss FROM training WHERE run = 'contract'")
    assert [(row["peers"], row["name"], row["loss"]) for row in rows] == [
        (7, "3", None),
        (None, None, 2),
    ]
    assert influxdb.query("SELECT count(peers) FROM late")[0]["count"] == 501


async def test_truth_values_are_booleans_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """A field of truth values takes 0 and 1 as well, and no other number."""
    refused = await sink.write(observed({"ok": True}, {"ok": False}, {"ok": 1}, {"ok": 7}))

    assert [one.reason for one in refused] == ["type_conflict"]
    rows = influxdb.query("SELECT ok FROM training")
    assert [row["ok"] for row in rows] == [True, False, True]


async def test_tags_are_of_the_allow_list_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """Who emitted is in tags; what has no end of values is in fields, whatever it was meant as."""
    origin = Origin(run="r", role="miner", uid=7, rank=0, hotkey="5F", tags={"site": "a", "x": ""})
    tags = {"window": 3, "global_step": 9, "trace_id": "ab", "device": "cuda:0", "gpu": None}
    refused = await sink.write(observed({"loss": 1.5}, origin=origin, tags=tags))

    assert not refused
    keys = {row["tagKey"] for row in influxdb.query("SHOW TAG KEYS FROM training")}
    assert keys == {"run", "role", "uid", "rank", "device"}
    (point,) = influxdb.query("SELECT * FROM training")
    assert (point["window"], point["global_step"], point["trace_id"]) == (3, 9, "ab")
    assert (point["hotkey"], point["site"], point["device"]) == ("5F", "a", "cuda:0")


@pytest.mark.parametrize(
    ("values", "median"),
    [([3.0], 3), ([1.0, 2.0], 1.5), ([9.0, 1, 4], 4), ([8.0, 1, 4, 2], 3), ([1e308] * 2, 1e308)],
)
async def test_the_median_of_a_list_is_the_middle_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any, values: list[float], median: float
) -> None:
    """Of the two in the middle, where the number is even."""
    refused = await sink.write(observed({"losses": values}))

    assert not refused
    (point,) = influxdb.query("SELECT * FROM training")
    assert point["losses_median"] == median


async def test_what_would_break_a_line_is_replaced_in_tags_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """A newline in a tag makes no second point, a backslash at its end swallows nothing."""
    origin = Origin(run="a\nb v=1 1", role="x,y=z \\", node="C:\\", uid="tab\there")
    refused = await sink.write(observed({"loss": 1.5}, origin=origin))

    assert not refused
    (point,) = influxdb.query("SELECT * FROM /.*/")
    assert point["run"] == "a b v=1 1"
    assert (point["role"], point["node"], point["uid"]) == ("x,y=z /", "C:/", "tab here")


async def test_texts_are_stored_as_they_are_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """Newlines, quotes, backslashes, 300 kB; only NUL is replaced."""
    texts = ["two\nlines\r\n", 'a "quote" \\', "Zürich \U0001f680", "x" * 300_000, "nul\x00", ""]
    refused = await sink.write(observed(*({"text": text} for text in texts)))

    assert not refused
    rows = influxdb.query('SELECT "text" FROM training')
    assert [row["text"] for row in rows] == [*texts[:4], "nul\ufffd", ""]


async def test_names_that_are_taken_get_an_underscore_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """`time` is InfluxDB's, `rank` is a tag; comments and empty names are none."""
    batches = [
        observed({"time": 1.5, "rank": 3, "": 2, "a,b=c d": 4}),
        observed({"v": 1}, name="#x", seq=1),
        observed({"v": 1}, name="", seq=2),
    ]
    for batch in batches:
        assert not await sink.write(batch)

    (point,) = influxdb.query("SELECT * FROM training")
    assert (point["time_"], point["rank_"], point["rank"]) == (1.5, 3, "0")
    assert (point["unnamed"], point["a,b=c d"]) == (2, 4)
    assert {row["name"] for row in influxdb.query("SHOW MEASUREMENTS")} == {
        "training",
        "_#x",
        "unnamed",
    }


async def test_a_name_that_is_too_long_becomes_a_dead_letter_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """InfluxDB takes 64 KB; the neighbours are stored."""
    refused = await sink.write(observed({"v": 1}, {"x" * 70_000: 1}, {"v": 2}))
    other = await sink.write(observed({"v": 1}, name="y" * 70_000, seq=1))

    assert [one.reason for one in (*refused, *other)] == ["name_too_long", "name_too_long"]
    assert influxdb.query("SELECT count(v) FROM training")[0]["count"] == 2


async def test_events_of_one_moment_stay_apart_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink
) -> None:
    """Same series, same nanosecond; and thousands of the same second, as read from a file."""
    live = [Free(TS + 7, k, "live", {"v": k}) for k in range(1_000)]
    for seq in range(2):
        await sink.write(Batch([frame_record(live[seq * 500 : seq * 500 + 500], seq=seq)]))
    coarse = TS // 10**9 * 10**9
    for seq in range(3):
        read = [Free(coarse, None, "read", {"v": k}) for k in range(4_000)]
        await sink.write(Batch([frame_record(read, seq=seq)]))

    assert influxdb.query("SELECT count(v) FROM live")[0]["count"] == 1_000
    assert influxdb.query('SELECT count(v) FROM "read"')[0]["count"] == 12_000
    last = influxdb.query("SELECT last(v) FROM live")[0]["time"]
    assert last // 1000 == TS // 1000


async def test_what_comes_again_is_one_point_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """Three deliveries, one of them among others."""
    batch = observed({"loss": 1.5}, {"loss": 2})
    for _ in range(2):
        await sink.write(batch)
    await sink.write(Batch([*batch.records, *observed({"loss": 3}, seq=1).records]))

    assert influxdb.query("SELECT count(loss) FROM training")[0]["count"] == 3


async def test_times_far_off_are_stored_on_a_real_1x(influxdb: Any, sink: InfluxDBSink) -> None:
    """A clock that is wrong is shown as it is; only the last nanoseconds of 64 bits do not fit."""
    now = time.time_ns()
    ages = (now + 660 * 10**9, now + 3_650 * DAY, now - 8 * DAY, 0, -1, 2**63 - 1, -(2**63))
    events = [Free(ts, k, "odd", {"v": 1.0}) for k, ts in enumerate(ages)]
    refused = await sink.write(Batch([frame_record(events)]))

    assert {one.reason for one in refused} <= {"time_out_of_range"}
    assert {one.envelope.position for one in refused} <= {5, 6}
    stored = influxdb.query("SELECT count(v) FROM odd")[0]["count"]
    assert stored == len(ages) - len(refused)


async def test_points_older_than_the_retention_become_dead_letters_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """The bucket keeps a week: what is older is refused with the reason, the rest is stored."""
    influxdb.query(
        f'CREATE RETENTION POLICY "week" ON "{influxdb.database}" DURATION 7d REPLICATION 1'
    )
    sink = new_sink(retention_policy="week")
    await sink.open()
    now = time.time_ns()
    ages = [8 * DAY if k % 3 else 0 for k in range(600)]
    events = [Free(now - age, k, "training", {"v": k}) for k, age in enumerate(ages)]
    refused = await sink.write(Batch([frame_record(events)]))
    await sink.close()

    assert {one.reason for one in refused} == {"too_old"}
    assert len(refused) == 400
    assert influxdb.query('SELECT count(v) FROM "week".training')[0]["count"] == 200


async def test_nested_values_are_flattened_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink, observed: Any
) -> None:
    """Mappings by dots, lists of numbers by their figures, anything else as text."""
    values = {
        "a": {"b": {"c": 1}},
        "losses": [3.0, 1.0, math.nan, 2.0, None],
        "names": ["x", "y"],
        "data": b"\x00\xff",
        "none": [],
    }
    refused = await sink.write(observed(values))

    assert not refused
    (point,) = influxdb.query("SELECT * FROM training")
    assert point["a.b.c"] == 1
    figures = [point[f"losses_{name}"] for name in ("mean", "min", "max", "median")]
    assert figures == [2.0, 1.0, 3.0, 2.0]
    assert point["non_finite"] == "losses=NaN"
    assert (point["names"], point["data"]) == ('["x","y"]', "AP8=")
    assert "none" not in point


async def test_rows_of_a_table_are_written_like_any_others_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink
) -> None:
    """Series with tags, rows with tags of their own, steps, values of every type, odd names."""
    series = [
        Series(0, "training", ["loss", "ok", "note"], {"device": "cuda:0", "shard": 4}),
        Series(1, "system", ["cpu%s", "a b"]),
        Series(2, "nothing", []),
        Series(3, "stepped", ["step", "loss"]),
    ]
    more: list[Row] = []
    for k in range(3):
        more.append(Row(1, TS + k, k, [0.1 + k, -1e-07 * k]))
        more.append(Row(2, TS + k, None, []))
        more.append(Row(3, TS + k, 70 + k, [k, 0.5]))
    rows = [
        Row(0, TS, 5, [1.5, True, "a"]),
        Row(0, TS + 10**9, None, [2, False, "b"]),
        Row(0, TS + 2 * 10**9, 7, [None, None, "c"], {"device": "cuda:1", "window": 3}),
    ]
    refused = await sink.write(Batch([frame_record([*rows, *more], series=series)]))

    assert not refused
    systems = influxdb.query('SELECT "cpu%s", "a b", step FROM system')
    assert [list(row.values())[2:] for row in systems] == [
        [0.1, 0, 0],
        [1.1, -1e-07, 1],
        [2.1, -2e-07, 2],
    ]
    assert len(influxdb.query("SELECT * FROM nothing")) == 3
    steps = influxdb.query("SELECT step FROM stepped")
    assert [row["step"] for row in steps] == [0, 1, 2]
    rows_found = influxdb.query(
        'SELECT loss, ok, note, step, device, "shard", window FROM training'
    )
    found = [list(row.values())[2:] for row in rows_found]
    assert found == [
        [1.5, True, "a", 5, "cuda:0", 4, None],
        [2, False, "b", None, "cuda:0", 4, None],
        [None, None, "c", 7, "cuda:1", 4, 3],
    ]


async def test_windows_have_a_measurement_of_their_own_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink
) -> None:
    """By the size of the window; over fields by field and size, over a fleet with its nodes."""
    minute = 60 * 10**9
    start = TS // minute * minute
    plain = {"kind": "observation", "name": "training", "field": "loss", "count": 3, "mean": 0.5}
    spread = {"min": -0.5, "max": 1.5, "revision": 3}

    def stats(**more: Any) -> Stats:
        return Stats(**{**plain, **spread, "median": 0.25, "final": True, **more})

    window = stats(start=start, size=minute)
    other = stats(start=start, size=minute, field="lr", last_finite=0.1)
    empty = stats(
        start=start + minute, size=minute, count=0, mean=None, min=None, max=None, median=None
    )
    empty = Stats(**{**{f: getattr(empty, f) for f in empty.__struct_fields__}, "nonfinite": 4})
    by_field = stats(start=123, size=1, by="window")
    fleet = stats(
        start=start, size=minute, median=None, nodes=7, nodes_missing=1, median_of_medians=0.3
    )
    refused = await sink.write(
        Batch(
            [
                stats_record([window, other, empty, by_field]),
                stats_record([fleet], emitter=b"f" * 16),
            ]
        )
    )

    assert not refused
    first, second = influxdb.query("SELECT * FROM training_1min")
    assert (first["loss_mean"], first["loss_median"], first["loss_count"]) == (0.5, 0.25, 3)
    assert (first["lr_mean"], first["lr_last"], first["loss_final"]) == (0.5, 0.1, True)
    assert first["time"] // 10**6 == start // 10**6
    assert (second["loss_count"], second["loss_nonfinite"], second["loss_mean"]) == (0, 4, None)
    (point,) = influxdb.query("SELECT * FROM training_window_1")
    assert (point["window"], point["loss_mean"]) == (123, 0.5)
    assert point["time"] // 10**6 == 123
    (point,) = influxdb.query("SELECT * FROM training_1min_fleet")
    assert (point["loss_nodes"], point["loss_nodes_missing"]) == (7, 1)
    assert point["loss_median_of_medians"] == 0.3


async def test_a_higher_revision_of_a_window_replaces_the_lower_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink
) -> None:
    """A window that was shown early is one point, with what it came to in the end."""
    common: dict[str, Any] = {
        "kind": "observation",
        "name": "t",
        "field": "v",
        "start": 0,
        "size": 10**10,
    }
    early = Stats(
        **common, revision=1, final=False, count=1, mean=1.0, min=1.0, max=1.0, median=1.0
    )
    late = Stats(**common, revision=2, final=True, count=2, mean=2.0, min=1.0, max=3.0, median=2.0)
    for one in (early, late, late):
        assert not await sink.write(Batch([stats_record([one])]))

    (point,) = influxdb.query("SELECT * FROM t_10s")
    assert (point["v_count"], point["v_mean"], point["v_final"]) == (2, 2, True)


async def test_two_emitters_of_one_place_keep_their_windows_on_a_real_1x(
    influxdb: Any, sink: InfluxDBSink
) -> None:
    """A process that was replaced has its own point beside its successor's."""
    one = Stats(
        kind="profile", name="forward", field="duration", start=0, size=10**10, revision=1,
        final=True, count=1, mean=1.0, min=1.0, max=1.0, median=1.0,
    )  # fmt: skip
    await sink.write(Batch([stats_record([one]), stats_record([one], emitter=b"2" * 16)]))

    assert len(influxdb.query("SELECT duration_s_mean FROM forward_10s")) == 2


async def test_profiles_are_seconds_on_a_real_1x(influxdb: Any, sink: InfluxDBSink) -> None:
    """The section is the measurement."""
    events = [
        Profile(ts=TS, name="forward", duration_ns=1_500_000, step=3),
        Profile(ts=TS + 10**9, name="forward", duration_ns=2_000_000_000, failed=True),
    ]
    refused = await sink.write(Batch([frame_record(events, kind="profile")]))

    assert not refused
    rows = influxdb.query("SELECT duration_s, failed, step FROM forward")
    assert [(row["duration_s"], row["failed"], row["step"]) for row in rows] == [
        (0.0015, None, 3),
        (2, True, None),
    ]


@pytest.mark.parametrize(("observations", "low", "high"), [("sampled", 600, 1_400), ("none", 0, 0)])
async def test_raw_observations_are_thinned_the_same_each_time_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any, observations: str, low: int, high: int
) -> None:
    """A quarter is about a quarter; what comes again makes it no more; windows are written."""
    sink = new_sink(observations=observations, sample_share=0.25)
    await sink.open()
    for _ in range(2):
        assert not await sink.write(observed(*({"v": k} for k in range(4_000))))
    window = Stats(
        kind="observation",
        name="w",
        field="v",
        start=0,
        size=10**10,
        revision=1,
        final=True,
        count=1,
    )
    assert not await sink.write(Batch([stats_record([window])]))
    await sink.close()

    found = influxdb.query("SELECT count(v) FROM training")
    assert low <= (found[0]["count"] if found else 0) <= high
    assert len(influxdb.query("SELECT v_count FROM w_10s")) == 1


async def test_a_refused_event_is_named_by_its_id_on_a_real_1x(
    sink: InfluxDBSink, observed: Any
) -> None:
    """A dead letter leads back to the event, in a frame from which others were filtered, too."""
    batch = observed({"v": 1}, {"v": "x"}, {"v": 2}, {"v": "y"})
    refused = await sink.write(batch)

    ids = [one.envelope.id for one in refused]
    assert [one.index for one in ids if isinstance(one, EventId)] == [1, 3]
