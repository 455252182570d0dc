"""What answers of InfluxDB 2 and 3 mean to the sink, on a stand-in with their documented rules."""

import json
from typing import Any

import pytest

from mlops_events.sinks.base import Batch, SinkUnavailable
from mlops_events.sinks.influxdb_push import Verdict, classify
from mlops_events.sinks.testing import sample_batch


async def test_every_kind_of_event_is_stored(strict_influxdb: Any, strict_sink: Any) -> None:
    """Once, however often it comes, compressed."""
    sink = strict_sink()
    await sink.check()
    await sink.open()
    for _ in range(3):
        assert not await sink.write(sample_batch())
    await sink.close()

    assert len(strict_influxdb.points) == len(sample_batch())
    assert set(strict_influxdb.encodings) == {"", "gzip"}


async def test_lines_that_the_server_names_cost_nobody_else(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """Version 2 stores nothing of such a body, version 3 the rest: in the end all of it is there."""
    strict_influxdb.unparsable = "=13.5"
    sink = strict_sink()
    await sink.open()
    values: list[dict[str, Any]] = [{"v": k + 0.25, "text": "two\nlines"} for k in range(3_000)]
    values[7]["v"] = values[2_000]["v"] = 13.5
    refused = await sink.write(observed(*values))
    await sink.close()

    assert [one.envelope.position for one in refused] == [7, 2_000]
    assert refused[0].message.startswith("invalid number") or "invalid number" in refused[0].message
    assert len(strict_influxdb.points) == 2_998
    assert strict_influxdb.posts <= 2


async def test_integers_of_another_program_are_learnt_from_the_refusal(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """The whole batch fits once its numbers are written as the bucket has them."""
    strict_influxdb.types["training", "peers"] = "integer"
    sink = strict_sink()
    await sink.open()
    refused = await sink.write(observed(*({"peers": k} for k in range(1_000)), {"peers": 1.5}))
    posts = strict_influxdb.posts
    again = await sink.write(observed({"peers": 5}, seq=1))
    await sink.close()

    assert [(one.envelope.position, one.reason) for one in refused] == [(1_000, "type_conflict")]
    assert not again
    assert len(strict_influxdb.points) == 1_001
    assert (posts, strict_influxdb.posts) == (2, 3)


async def test_what_is_older_than_the_retention_is_told_by_its_age(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """The answer tells the bound, so that thousands of old events take one more post."""
    strict_influxdb.oldest = 1_700_000_100 * 10**9
    sink = strict_sink()
    await sink.open()
    refused = await sink.write(observed(*({"v": k} for k in range(4_000))))
    await sink.close()

    assert {one.reason for one in refused} == {"too_old"}
    assert len(refused) == 100
    assert len(strict_influxdb.points) == 3_900
    assert strict_influxdb.posts <= 2


async def test_an_answer_without_any_hint_is_gone_into_by_halving(
    strict_influxdb: Any, strict_sink: Any, scripted: Any, observed: Any
) -> None:
    """400 for the batch and its half, then nothing more: nothing is refused."""
    strict_influxdb.script = [scripted(400, '{"code":"invalid","message":"no"}')] * 2
    sink = strict_sink()
    await sink.open()
    refused = await sink.write(observed(*({"v": k} for k in range(100))))
    await sink.close()

    assert not refused
    assert len(strict_influxdb.points) == 100
    assert strict_influxdb.posts == 5


async def test_a_measurement_that_is_refused_line_by_line_holds_up_no_other(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """When a tenth was refused the rest of what is under suspicion becomes dead letters, too."""
    bad = observed(*({"v": k} for k in range(600)), name="bad")
    good = observed(*({"v": k} for k in range(600)), name="good", seq=1)
    strict_influxdb.hopeless = "bad,"
    sink = strict_sink()
    await sink.open()
    refused = await sink.write(Batch([*bad.records, *good.records]))
    await sink.close()

    assert {one.reason for one in refused} == {"refused", "refused_with_others"}
    assert {one.envelope.event.name for one in refused} == {"bad"}
    assert len(refused) == 600
    assert len(strict_influxdb.points) == 600
    assert strict_influxdb.posts < 300


@pytest.mark.parametrize(
    ("status", "headers", "asked"),
    [
        (429, {"Retry-After": "3600"}, 3600.0),
        (503, {"Retry-After": "7"}, 7.0),
        (500, {}, None),
        (502, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        (200, {}, None),
        (202, {}, None),
        (260, {}, None),
        (302, {"Location": "/elsewhere"}, None),
    ],
)
async def test_nothing_but_204_is_success(
    strict_influxdb: Any,
    strict_sink: Any,
    scripted: Any,
    observed: Any,
    status: int,
    headers: dict[str, str],
    asked: float | None,
) -> None:
    """The batch waits, as long as the server asks for; then it is stored once."""
    strict_influxdb.script = [scripted(status, "busy", headers)]
    sink = strict_sink()
    await sink.open()
    batch = observed({"v": 1})
    with pytest.raises(SinkUnavailable, match=str(status)) as caught:
        await sink.write(batch)
    before = len(strict_influxdb.points)
    assert not await sink.write(batch)
    await sink.close()

    assert caught.value.retry_after == asked
    assert (before, len(strict_influxdb.points)) == (0, 1)


async def test_a_write_that_was_stored_without_an_answer_is_the_same_point_again(
    strict_influxdb: Any, strict_sink: Any, scripted: Any, observed: Any
) -> None:
    """A time-out of a proxy after the write: the repeat changes nothing."""
    strict_influxdb.script = [scripted(504, "gateway time-out", stores=True)]
    sink = strict_sink()
    await sink.open()
    batch = observed({"v": 1}, {"v": 2})
    with pytest.raises(SinkUnavailable):
        await sink.write(batch)
    assert not await sink.write(batch)
    await sink.close()

    assert len(strict_influxdb.points) == 2


async def test_a_write_that_took_too_long_is_the_same_point_again(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """A slow server has stored what it was given up for; it is quick again later."""
    sink = strict_sink(timeout_s=0.3)
    await sink.open()
    strict_influxdb.delay_s = 2.0
    batch = observed({"v": 1}, {"v": 2})
    with pytest.raises(SinkUnavailable, match="timed out"):
        await sink.write(batch)
    strict_influxdb.delay_s = 0.0
    while True:
        try:
            assert not await sink.write(batch)
        except SinkUnavailable:  # on a busy machine a third of a second is not long
            continue
        break
    await sink.close()

    assert len(strict_influxdb.points) == 2
    assert strict_influxdb.posts >= 2


async def test_a_server_that_cannot_unpack_requests_gets_plain_ones(
    strict_influxdb: Any, strict_sink: Any, scripted: Any, observed: Any
) -> None:
    """Version 2 answers 500 for ever to a body that a proxy has spoilt."""
    said = (
        '{"code":"internal error","message":"An internal error has occurred - check server logs"}'
    )
    strict_influxdb.script = [scripted(500, said)]
    sink = strict_sink()
    await sink.open()
    with pytest.raises(SinkUnavailable):
        await sink.write(observed({"v": 1}))
    assert not await sink.write(observed({"v": 1}))
    await sink.close()

    assert strict_influxdb.encodings == [""]


async def test_tokens_and_buckets_are_told_with_what_to_set(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """A token that was withdrawn, a bucket that was deleted."""
    sink = strict_sink()
    await sink.open()
    strict_influxdb.token = "other"
    with pytest.raises(SinkUnavailable, match=r"401.*unauthorized.*MLOPS_EVENTS_INFLUXDB_TOKEN"):
        await sink.write(observed({"v": 1}))
    strict_influxdb.token, strict_influxdb.bucket = "secret", "other"
    with pytest.raises(SinkUnavailable, match=r"404.*is there a bucket 'events'.*'lab'"):
        await sink.write(observed({"v": 1}))
    strict_influxdb.bucket = "events"
    assert not await sink.write(observed({"v": 1}))
    await sink.close()


async def test_requests_that_are_too_large_are_halved(
    strict_influxdb: Any, strict_sink: Any, observed: Any
) -> None:
    """413, by the size before compression."""
    strict_influxdb.max_body = 20_000
    sink = strict_sink()
    await sink.open()
    refused = await sink.write(observed(*({"v": k} for k in range(2_000))))
    await sink.close()

    assert not refused
    assert len(strict_influxdb.points) == 2_000


@pytest.mark.parametrize(
    ("status", "message", "verdict"),
    [
        (500, 'partial write: field type conflict: input field "v"', Verdict.REFUSED),
        (500, "retention policy not found: nope", Verdict.MISSING),
        (400, "partial write: max-values-per-tag limit exceeded", Verdict.REFUSED),
        (400, "partial write: max-series-per-database exceeded", Verdict.MISSING),
        (422, "points beyond retention policy", Verdict.REFUSED),
        (400, "unexpected EOF", Verdict.AWAY),
        (403, "forbidden", Verdict.MISSING),
        (204, "", Verdict.STORED),
    ],
)
def test_what_is_said_counts_before_the_status(status: int, message: str, verdict: Verdict) -> None:
    """The same refusal comes with 400, 422 and 500, as 1.x or 2.x words it."""
    for key in ("error", "message"):
        assert classify(status, json.dumps({key: message})).verdict is verdict
    assert classify(status, message).verdict is verdict
