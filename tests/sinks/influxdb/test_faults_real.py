"""What the influxdb sink does while a real InfluxDB 1.x is away, hung, or set up otherwise."""

import asyncio
from typing import Any

import pytest

from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch, SinkBroken, SinkUnavailable


async def test_a_batch_that_a_killed_server_missed_is_stored_when_it_is_back_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """What was acknowledged before stays; the same batch comes again and is there once."""
    sink = new_sink(timeout_s=5)
    await sink.open()
    assert not await sink.write(observed({"loss": 1}, {"loss": 2}))
    influxdb.kill()
    late = observed({"loss": 3}, seq=1)
    with pytest.raises(SinkUnavailable, match="no answer from"):
        await sink.write(late)
    influxdb.start()
    for _ in range(2):
        assert not await sink.write(late)
    await sink.close()

    assert influxdb.query("SELECT count(loss) FROM training")[0]["count"] == 3


async def test_a_hung_server_is_waited_for_no_longer_than_was_set_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """The write is given up, and done once the server goes on."""
    sink = new_sink(timeout_s=0.5)
    await sink.open()
    influxdb.freeze()
    batch = observed({"loss": 1})
    with pytest.raises(SinkUnavailable):
        await asyncio.wait_for(sink.write(batch), 30)
    influxdb.thaw()
    while True:
        try:
            assert not await sink.write(batch)
        except SinkUnavailable:  # on a busy machine half a second is not long
            continue
        break
    await sink.close()

    assert influxdb.query("SELECT count(loss) FROM training")[0]["count"] == 1


async def test_a_refused_token_is_told_and_nothing_is_lost_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """A password that was changed keeps batches waiting; the words say what to set."""
    user = f"u{influxdb.database}"
    influxdb.query(f"CREATE USER {user} WITH PASSWORD 'first'")
    influxdb.query(f'GRANT ALL ON "{influxdb.database}" TO {user}')
    sink = new_sink(token=Secret(f"{user}:first"))
    await sink.open()
    assert not await sink.write(observed({"loss": 1}))
    influxdb.query(f"SET PASSWORD FOR {user} = 'second'")
    batch = observed({"loss": 2}, seq=1)
    with pytest.raises(SinkUnavailable, match=r"401.*MLOPS_EVENTS_INFLUXDB_TOKEN.*USER:PASSWORD"):
        await sink.write(batch)
    with pytest.raises(SinkUnavailable, match="401"):
        await sink.check()
    influxdb.query(f"SET PASSWORD FOR {user} = 'first'")
    assert not await sink.write(batch)
    influxdb.query(f'REVOKE ALL ON "{influxdb.database}" FROM {user}')
    with pytest.raises(SinkUnavailable, match=r"403.*may not write"):
        await sink.write(batch)
    await sink.close()

    assert influxdb.query("SELECT count(loss) FROM training")[0]["count"] == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bucket": "nowhere"}, "404.*database not found.*is there a bucket 'nowhere'"),
        ({"retention_policy": "nope"}, "500.*retention policy not found"),
    ],
)
async def test_a_place_that_is_not_there_is_told_before_and_while_writing_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any, settings: dict[str, str], said: str
) -> None:
    """Events wait until somebody makes the database; they are no dead letters."""
    sink = new_sink(**settings)
    await sink.open()
    with pytest.raises(SinkUnavailable, match=said):
        await sink.write(observed({"loss": 1}))
    await sink.close()
    if "bucket" in settings:
        with pytest.raises(SinkUnavailable, match=said):
            await sink.check()

    assert influxdb.query("SHOW MEASUREMENTS") == []


async def test_a_server_that_takes_small_requests_only_gets_small_ones_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """413: halves of halves; a single event that is too large becomes a dead letter."""
    influxdb.stop()
    influxdb.start(INFLUXDB_HTTP_MAX_BODY_SIZE="2000")
    sink = new_sink()
    await sink.open()
    values: list[dict[str, Any]] = [{"loss": k} for k in range(300)]
    values[100] = {"text": "x" * 3_000}
    refused = await sink.write(observed(*values))
    await sink.close()

    assert [(one.envelope.position, one.reason) for one in refused] == [(100, "too_large")]
    assert influxdb.query("SELECT count(loss) FROM training")[0]["count"] == 299


async def test_a_limit_of_series_stops_writing_until_it_is_raised_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """A full server is for its operator to mend: new series wait, none becomes a dead letter."""
    influxdb.stop()
    influxdb.start(INFLUXDB_DATA_MAX_SERIES_PER_DATABASE="3")
    sink = new_sink()
    await sink.open()
    batch = observed(*({f"v{k}": 1} for k in range(3)))
    assert not await sink.write(batch)
    more = [observed({"v": 1}, name=f"m{k}", seq=k + 1) for k in range(5)]
    together = Batch([record for one in more for record in one.records])
    with pytest.raises(SinkUnavailable, match="limit of series"):
        await sink.write(together)
    influxdb.stop()
    influxdb.start()
    assert not await sink.write(together)
    await sink.close()

    assert len(influxdb.query("SHOW MEASUREMENTS")) == 6


async def test_a_field_of_many_types_costs_single_events_on_a_real_1x(
    influxdb: Any, new_sink: Any, observed: Any
) -> None:
    """Where weeks differ in a field's type, what fits neither is found by halving."""
    week = 7 * 86_400 * 10**9
    start = 1_700_000_000_123_456_000
    influxdb.write(f'training v="a" {start - 20 * week}\ntraining v=true {start}')
    sink = new_sink()
    await sink.open()
    values: list[dict[str, Any]] = [{"other": k} for k in range(1_000)]
    values[10] = values[900] = {"v": 2.5}
    refused = await sink.write(observed(*values))
    await sink.close()

    assert {one.envelope.position for one in refused} <= {10, 900}
    assert influxdb.query("SELECT count(other) FROM training")[0]["count"] == 998


@pytest.mark.parametrize("settings", [{"bucket": ""}, {"url": ""}])
async def test_a_sink_without_a_place_to_write_to_says_what_to_set(
    influxdb: Any, new_sink: Any, settings: dict[str, str]
) -> None:
    """There is no default server and no default bucket."""
    with pytest.raises(SinkBroken, match="set MLOPS_EVENTS_INFLUXDB_"):
        await new_sink(**settings).check()


async def test_a_check_writes_nothing_on_a_real_1x(influxdb: Any, new_sink: Any) -> None:
    """It tells whether a write would be taken."""
    await new_sink().check()

    assert influxdb.query("SHOW MEASUREMENTS") == []
