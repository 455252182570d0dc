"""How many different values tags and fields have, counted over frames."""

from typing import Any

import pytest

from mlops_events.control.cardinality import Cardinality, Distinct, Spread
from mlops_events.control.cardinality_read import newest
from mlops_events.control.cardinality_text import cardinality_text
from mlops_events.schemas.events import Log, Origin, Profile, RawKind
from mlops_events.schemas.frame import Frame, FrameEncoder, Free, Row, Series, decode_frame
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.logreader import Span, TopicPartition


def frame(
    *events: Any,
    kind: RawKind = "observation",
    series: tuple[Series, ...] = (),
    uid: int = 1,
    **origin: Any,
) -> Frame:
    """Return a decoded frame."""
    encoder = FrameEncoder(
        emitter=bytes(16), kind=kind, origin=Origin(run="r", role="miner", uid=uid, **origin)
    )
    return decode_frame(
        encoder.encode(
            [ENCODER.encode(event) for event in events],
            seq=0,
            closed_ns=0,
            accepted=len(events),
            dropped=0,
            series=series,
        )
    )


def spreads(*frames: Frame, **options: int) -> dict[tuple[str, str, str], Spread]:
    """Return what was counted over frames by place, name and field."""
    counted = Cardinality(**options)
    for one in frames:
        counted.add(one)
    return {(s.place, s.name, s.field): s for s in counted.report().spreads}


def test_values_of_origins_tags_and_fields_are_counted() -> None:
    """By where they stand, with the number of events and an example."""
    table = Series(0, "training", ["loss", "phase"], {"gpu": "h200"})
    rows = [Row(0, n, n, [float(n), "train"], {"zone": f"z{n % 3}"}) for n in range(10)]
    free = Free(1, 1, "training", {"loss": 99.5, "net": {"peers": 4}})
    found = spreads(
        frame(*rows, series=(table,), tags={"rack": "a"}), frame(free, uid=2, tags={"rack": "b"})
    )

    def counts(place: str, name: str, field: str = "") -> tuple[int, int, str]:
        spread = found[place, name, field]
        return spread.distinct, spread.events, spread.example

    assert counts("origin", "uid") == (2, 11, "1")
    assert counts("origin", "run") == (1, 11, "r")
    assert counts("origin tag", "rack") == (2, 11, "a")
    assert counts("event tag", "zone") == (3, 10, "z0")
    assert counts("event tag", "gpu") == (1, 10, "h200")
    assert counts("field", "training", "loss") == (11, 11, "0.0")
    assert counts("field", "training", "phase") == (1, 10, "train")
    assert counts("field", "training", "net.peers") == (1, 1, "4")
    assert counts("fields", "training") == (3, 22, "loss")
    assert counts("names", "observation") == (1, 11, "training")
    assert ("origin", "hotkey", "") not in found


def test_series_are_counted_by_place_name_and_field() -> None:
    """Numbers only, and not what says where training stands."""
    counted = Cardinality()
    fields = {"loss": 1.0, "samples": [1, 2], "note": "x", "ok": True, "global_step": 7}
    for uid in range(5):
        counted.add(frame(Free(1, 1, "training", fields), uid=uid))
        counted.add(frame(Profile(ts=1, name="forward", duration_ns=5), uid=uid, kind="profile"))
        counted.add(frame(Log(ts=1, level="info", message="m"), uid=uid, kind="log"))
    report = counted.report()

    assert (report.frames, report.events) == (15, 15)
    assert report.series == 5 * 3


@pytest.mark.parametrize(
    ("tag", "values", "hurts"),
    [
        ("batch_id", 3, True),
        ("trace_id", 3, True),
        ("window", 3, True),
        ("block", 3, True),
        ("global_step", 3, True),
        ("epoch", 3, True),
        ("environment", 1001, True),
        ("environment", 1000, False),
        ("whatever", 2000, False),
    ],
)
def test_tags_that_would_hurt_a_metrics_store(
    tag: str,
    values: int,
    hurts: bool,
) -> None:
    """What is never a tag, and many values of one that is."""
    found = spreads(frame(*(Free(1, 1, "a", {}, {tag: f"v{n}"}) for n in range(values))))

    assert bool(found["event tag", tag, ""].hurts) == hurts
    assert found["event tag", tag, ""].distinct == values


def test_many_runs_and_names_made_of_values_would_hurt_and_come_first() -> None:
    """Fields of numbers come last, however many values they have."""
    counted = Cardinality()
    for n in range(1001):
        counted.add(frame(Free(1, 1, f"loss_{n}", {"loss": n, f"f{n}": 1}), version=f"1.{n}"))
    counted.add(frame(*(Free(1, 1, "wide", {f"f{n}": 1}) for n in range(1001))))
    counted.add(frame(*(Free(1, 1, "texts", {"text": f"t{n}", "x": n}) for n in range(2000))))
    report = counted.report()
    hurting = {(s.place, s.name): s.hurts for s in report.spreads if s.hurts}

    assert set(hurting) == {
        ("origin", "version"),
        ("names", "observation"),
        ("fields", "wide"),
    }
    assert {(s.place, s.name) for s in report.spreads[:3]} == set(hurting)
    order = [(s.name, s.field) for s in report.spreads]
    assert order.index(("texts", "text")) < order.index(("texts", "x"))


def test_beyond_the_room_it_is_only_known_that_there_are_more() -> None:
    """The memory stays bounded, and what has no room does not take any from others."""
    room = [10]
    many, few = Distinct(room), Distinct(room)
    for n in range(50):
        many.add(n)
    few.add("a")
    few.add("b")
    few.add(["a", "list"])

    assert (many.count, many.more) == (10, True)
    assert (few.count, few.more) == (3, False)
    assert room == [7]


def test_one_and_true_and_text_are_different_values() -> None:
    """Though Python holds some of them for equal."""
    found = Distinct([100])
    for value in (1, True, "1", 1.0, None, 1):
        found.add(value)

    assert found.count == 5


def test_the_newest_records_of_each_partition_are_read_in_proportion() -> None:
    """Never more than are wanted."""
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    spans = {one: Span(0, 900), two: Span(100, 200)}

    assert newest(spans, 1000) == spans
    assert newest(spans, 100) == {one: Span(810, 900), two: Span(190, 200)}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_is_shown_fits_the_terminal(width: int) -> None:
    """With a mark, and why."""
    counted = Cardinality()
    rows = (Free(1, 1, "training", {"loss": n}, {"batch_id": f"b\x1b{n}"}) for n in range(2000))
    counted.add(frame(*rows))
    text = cardinality_text(counted.report(), limit=3, width=width)

    assert all(len(line) <= width for line in text.splitlines())
    assert "event tag batch_id" in text
    assert "!" in text
    assert "2,000" in text
    assert "sinks make" in text
    assert "more; --limit shows them" in text
    assert "\x1b" not in text
