"""The loki sink against a strict stand-in that enforces Loki's documented limits."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mlops_events.schemas.events import EventId, Log, Origin, StatsKey
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch, Rejected, Sink, SinkBroken, SinkUnavailable
from mlops_events.sinks.loki import LokiSettings, LokiSink
from mlops_events.sinks.testing import SinkContract, frame_record, sample_batch

SAMPLE_S = 1_700_000_000
NS = 1_000_000_000
HOUR = 3600 * NS
DAY = 24 * HOUR


class TestContract(SinkContract):
    """The loki sink passes the tests of every sink."""

    @pytest.fixture(autouse=True)
    def _server(self, strict_loki: Any) -> None:
        self.loki = strict_loki
        self.loki.now = lambda: SAMPLE_S + 60

    def make_sink(self) -> Sink:
        return LokiSink(LokiSettings(url=self.loki.url), now=self.loki.now)

    async def stored(self) -> Sequence[EventId | StatsKey]:
        wanted = {str(envelope.id): envelope.id for envelope in self.known}
        return [wanted[line.metadata["id"]] for line in self.loki.lines]

    async def _stored_with(self, batch: Batch, rejected: Sequence[Rejected]) -> None:
        self.known = [*getattr(self, "known", []), *batch]
        await super()._stored_with(batch, rejected)


@pytest.fixture
def new_sink(strict_loki: Any, now_s: int) -> Callable[..., LokiSink]:
    """Return a function that makes a sink for the strict Loki."""

    def make(**settings: Any) -> LokiSink:
        return LokiSink(LokiSettings(**{"url": strict_loki.url, **settings}), now=lambda: now_s)

    return make


@pytest.fixture
def log(now_s: int) -> Callable[..., Log]:
    """Return a function that makes a log line of so many nanoseconds ago."""

    def make(message: str = "slow", *, ago: int = 0, **values: Any) -> Log:
        return Log(ts=now_s * NS - ago, message=message, **{"level": "warning", **values})

    return make


async def write(sink: LokiSink, *logs: Log, **where: Any) -> list[Rejected]:
    """Write log lines of one frame and return what was refused."""
    await sink.open()
    try:
        return list(await sink.write(Batch([frame_record(logs, kind="log", **where)])))
    finally:
        await sink.close()


def text_of(refused: Rejected) -> str:
    """The message of a refused log line."""
    event = refused.envelope.event
    assert isinstance(event, Log)
    return event.message


async def test_a_log_is_a_line_with_bounded_labels(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """Who and how bad are labels; the rest lies in structured metadata."""
    origin = Origin(
        run="llama", project="p", role="miner", uid=7, rank=0, node="a", version="v1.2.3",
        environment="prod", netuid=3, tags={"site": "Zürich", "service": "miner-bt"},
    )  # fmt: skip
    event = log(logger="train", step=12, trace_id="abc", span_id="def")
    await write(new_sink(), event, origin=origin)

    (line,) = strict_loki.lines
    assert line.line == "slow"
    assert dict(line.labels) == {
        "service_name": "miner-bt", "env": "prod", "role": "miner", "uid": "7",
        "netuid": "3", "level": "warning",
    }  # fmt: skip
    assert line.metadata == {
        "id": f"{bytes(range(16)).hex()}/log/0/0", "run": "llama", "project": "p", "uid": "7",
        "rank": "0", "node": "a", "version": "v1.2.3", "site": "Zürich", "service": "miner-bt",
        "logger": "train", "step": "12", "trace_id": "abc", "span_id": "def",
    }  # fmt: skip


async def test_fields_make_the_line_a_json_object(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """Nested values, NaN and text of any kind stay in the line (rows 1 and 19)."""
    fields = {"loss": float("nan"), "nested": {"a": [1, 2]}, "message": "mine", "nul": "a\x00b"}
    await write(new_sink(), log("step done", fields=fields))

    assert json.loads(strict_loki.lines[0].line) == {
        "message": "step done", "loss": "NaN", "nested": {"a": [1, 2]}, "message_": "mine",
        "nul": "a\x00b",
    }  # fmt: skip


async def test_without_structured_metadata_the_line_holds_everything(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """Servers that lack it get a JSON line with the event's id."""
    strict_loki.metadata = False
    refused = await write(new_sink(structured_metadata=False), log(step=3))

    assert refused == []
    found = json.loads(strict_loki.lines[0].line)
    assert (found["message"], found["step"], found["run"]) == ("slow", "3", "contract")
    assert found["id"].endswith("/log/0/0")


async def test_uids_can_be_sharded_to_bound_the_streams(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """With many nodes a label tells 32 shards apart, and the uid is metadata."""
    for uid in range(64):
        await write(
            new_sink(uid_label="shard"), log(ago=uid), origin=Origin(uid=uid), seq=uid, offset=uid
        )

    assert {dict(line.labels)["shard"] for line in strict_loki.lines} == {str(n) for n in range(32)}
    assert {line.metadata["uid"] for line in strict_loki.lines} == {str(n) for n in range(64)}


async def test_extra_labels_are_sanitised_and_the_sixteenth_is_metadata(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """Names follow Loki's rules whatever a tag is called (row 17)."""
    names = ["1bad", "has-dash", "has space", *(f"t{n}" for n in range(20))]
    origin = Origin(role="miner", tags=dict.fromkeys(names, "x"))
    refused = await write(new_sink(labels=tuple(names)), log(), origin=origin)

    labels = dict(strict_loki.lines[0].labels)
    assert refused == []
    assert len(labels) == 15
    assert {"_1bad", "has_dash", "has_space"} <= set(labels)
    assert strict_loki.lines[0].metadata["t19"] == "x"


async def test_empty_labels_and_tags_are_left_out(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """What is not known is not said (row 7)."""
    await write(new_sink(), log(), origin=Origin(tags={"empty": ""}))

    assert dict(strict_loki.lines[0].labels) == {"service_name": "mlops-events", "level": "warning"}
    assert set(strict_loki.lines[0].metadata) == {"id"}


async def test_long_text_is_cut_and_flagged(strict_loki: Any, new_sink: Any, log: Any) -> None:
    """A line of 300 KB is cut to what Loki takes (row 16)."""
    refused = await write(new_sink(), log("ä" * 150_000))

    (line,) = strict_loki.lines
    assert refused == []
    assert line.metadata["truncated"] == "true"
    assert 262_140 <= len(line.line.encode()) <= 262_144


async def test_old_and_future_lines_are_refused_with_a_reason(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """8 days old and 11 minutes ahead become dead letters, the rest is stored (rows 14, 15)."""
    refused = await write(
        new_sink(), log("old", ago=8 * DAY), log("now"), log("ahead", ago=-11 * 60 * NS)
    )

    assert [(one.reason, text_of(one)) for one in refused] == [
        ("too_old", "old"), ("ahead", "ahead"),
    ]  # fmt: skip
    assert [line.line for line in strict_loki.lines] == ["now"]


async def test_two_lines_of_one_nanosecond_both_survive(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """The same text at the same time is two events if their ids differ (row 12)."""
    await write(new_sink(), log(), log())

    assert len(strict_loki.lines) == 2
    assert abs(strict_loki.lines[0].ts - strict_loki.lines[1].ts) < 1_000


async def test_the_same_batch_three_times_is_stored_once(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """What comes again is the same (time, line) (row 13)."""
    for _ in range(3):
        await write(new_sink(), log("a"), log("b", ago=5))

    assert len(strict_loki.lines) == 2


async def test_lines_of_a_stream_are_sent_in_the_order_of_time(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """Whatever the order of events in the batch is."""
    await write(new_sink(), *(log(str(ago), ago=ago * NS) for ago in (3, 1, 2)))

    assert [line.line for line in strict_loki.lines] == ["3", "2", "1"]


async def test_lines_far_behind_their_stream_get_a_stream_of_their_own(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """What a dead process left behind for hours is stored beside its successor's lines."""
    await write(new_sink(), log("new"), emitter=b"n" * 16)
    late = [log(str(k), ago=5 * HOUR - k * NS) for k in range(50)]
    refused = await write(
        new_sink(), *late, log("in time", ago=HOUR // 2), emitter=b"o" * 16, offset=1
    )

    streams = {line.line: dict(line.labels).get("late") for line in strict_loki.lines}
    assert refused == []
    assert len(strict_loki.lines) == 52
    assert streams["0"] == streams["49"] == (b"o" * 16).hex()[:8]
    assert streams["in time"] is None


async def test_one_bad_line_of_many_costs_itself_only(
    strict_loki: Any, new_sink: Any, log: Any
) -> None:
    """What the server alone refuses is found by halving (row 20)."""
    entry = strict_loki._entry
    strict_loki._entry = lambda labels, value: (
        "the server's own rule" if value[1] == "line 777" else entry(labels, value)
    )
    logs = [log(f"line {k}", ago=2000 - k) for k in range(2000)]
    refused = await write(new_sink(), *logs)

    assert [text_of(one) for one in refused] == ["line 777"]
    assert refused[0].reason == "refused"
    assert "the server's own rule" in refused[0].message
    assert len(strict_loki.lines) == 1999


async def test_a_body_too_large_is_halved(new_strict_loki: Any, now_s: int, log: Any) -> None:
    """413 is no reason to lose lines; a single one beyond the limit is refused."""
    loki = new_strict_loki(max_body=20_000)
    sink = LokiSink(LokiSettings(url=loki.url), now=lambda: now_s)
    refused = await write(
        sink, *(log("x" * 5_000, ago=k * 1000) for k in range(20)), log("y" * 30_000)
    )

    assert len(loki.lines) == 20
    assert [one.reason for one in refused] == ["too_large"]


@pytest.mark.parametrize("status", [200, 202, 260, 302, 401, 403, 404, 429, 500, 503])
async def test_only_204_is_success(
    strict_loki: Any, scripted: Any, new_sink: Any, log: Any, status: int
) -> None:
    """Everything else keeps the batch, which then comes again (row 23)."""
    strict_loki.script = [scripted(status, "a reason")]
    with pytest.raises(SinkUnavailable, match=f"answered {status}"):
        await write(new_sink(), log())

    assert strict_loki.lines == []
    await write(new_sink(), log())
    assert len(strict_loki.lines) == 1


async def test_retry_after_is_told_to_the_delivery(
    strict_loki: Any, scripted: Any, new_sink: Any, log: Any
) -> None:
    """The server's wish is passed on; delivery caps it (row 22)."""
    strict_loki.script = [scripted(429, "slow down", {"Retry-After": "3600"})]
    with pytest.raises(SinkUnavailable) as caught:
        await write(new_sink(), log())

    assert caught.value.retry_after == 3600


async def test_what_was_stored_of_a_batch_is_not_sent_again(
    strict_loki: Any, scripted: Any, new_sink: Any, log: Any
) -> None:
    """When the second request of a batch fails, only that one is repeated."""
    logs = [log("z" * 60_000, ago=k * 1000) for k in range(40)]
    batch = Batch([frame_record(logs, kind="log")])
    sink = new_sink()
    await sink.open()
    strict_loki.script = [scripted(204, stores=True), scripted(500)]
    with pytest.raises(SinkUnavailable):
        await sink.write(batch)
    before = strict_loki.received
    await sink.write(batch)
    await sink.close()

    assert 0 < before < 40
    assert strict_loki.received == 40
    assert len(strict_loki.lines) == 40


async def test_a_server_that_is_away_keeps_the_batch(new_sink: Any, log: Any) -> None:
    """No answer is no loss."""
    with pytest.raises(SinkUnavailable, match="no answer"):
        await write(new_sink(url="http://127.0.0.1:9"), log())


async def test_tenant_and_login_are_sent(new_strict_loki: Any, now_s: int, log: Any) -> None:
    """A server with tenants stores lines for the one that is set."""
    loki = new_strict_loki(tenant="team-a")
    with pytest.raises(SinkUnavailable, match="_TENANT"):
        await write(LokiSink(LokiSettings(url=loki.url), now=lambda: now_s), log())
    settings = LokiSettings(url=loki.url, tenant="team-a", token=Secret("t0ken"))
    await write(LokiSink(settings, now=lambda: now_s), log())
    settings = LokiSettings(url=loki.url, tenant="team-a", username="u", password=Secret("p"))
    await write(LokiSink(settings, now=lambda: now_s), log("other"))

    assert len(loki.lines) == 2
    assert loki.headers["Authorization"] == "Basic dTpw"


@pytest.mark.parametrize("path", ["", "/", "/loki/api/v1/push", "/loki/api/v1/push/"])
async def test_the_url_may_have_the_path_of_the_push(
    strict_loki: Any, new_sink: Any, log: Any, path: str
) -> None:
    """LOKI_URL is written both ways."""
    await write(new_sink(url=strict_loki.url + path), log())

    assert len(strict_loki.lines) == 1


async def test_plain_bodies_where_gzip_is_off(strict_loki: Any, new_sink: Any, log: Any) -> None:
    """Compression can be left out."""
    await write(new_sink(gzip=False), log())

    assert "Content-Encoding" not in strict_loki.headers
    assert len(strict_loki.lines) == 1


async def test_check_says_whether_the_server_is_ready(strict_loki: Any, new_sink: Any) -> None:
    """A server that starts is named with its answer."""
    await new_sink().check()
    strict_loki.ready = False
    with pytest.raises(SinkUnavailable, match="answered 503"):
        await new_sink().check()


async def test_no_url_is_said_with_the_variable() -> None:
    """There is no default server."""
    with pytest.raises(SinkBroken, match="MLOPS_EVENTS_LOKI_URL"):
        await LokiSink(LokiSettings()).open()


async def test_other_kinds_are_json_lines(strict_loki: Any) -> None:
    """Who routes observations to Loki finds them there, with a label that says so."""
    strict_loki.now = lambda: SAMPLE_S + 60
    sink = LokiSink(LokiSettings(url=strict_loki.url), now=strict_loki.now)
    await sink.open()
    refused = await sink.write(sample_batch())
    await sink.close()

    kinds = {dict(line.labels).get("kind", "log") for line in strict_loki.lines}
    assert refused == []
    assert kinds == {"run", "observation", "profile", "log", "stats"}
    training = next(line for line in strict_loki.lines if '"training"' in line.line)
    assert json.loads(training.line)["fields"]["losses"] == [0.5, 0.25]
