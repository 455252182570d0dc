"""The loop of a replay: batches, pace, saving, stopping; and what a sink may answer."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest

from mlops_events.control.replay import Moment, Portions, Replay
from mlops_events.control.replay_account import Account
from mlops_events.control.replay_fold import Plan, ReplayFold, Source
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.control.replay_state import ReplayState
from mlops_events.control.replay_view import line
from mlops_events.control.replay_writer import ReplayWriter
from mlops_events.schemas import FrameEncoder, Origin
from mlops_events.schemas.frame import Free
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, Record, Rejected, SinkBroken, SinkUnavailable
from mlops_events.streams.logreader import Span, TopicPartition

REQUEST = ReplayRequest(
    kinds=("observation",), sink="list", since_ns=0, until_ns=10**6, slack_ns=0, margin_ns=0
)


class Rec(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def frame(seq: int, events: int = 10) -> bytes:
    """Return a frame of the only emitter."""
    encoder = FrameEncoder(emitter=b"e" * 16, kind="observation", origin=Origin(run="r"))
    items = [ENCODER.encode(Free(seq, k, "a", {"b": 1.0})) for k in range(events)]
    return encoder.encode(items, seq=seq, closed_ns=0, accepted=0, dropped=0)


class MemoryReader:
    """One partition in memory, with frames of 10 events."""

    async def read(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncGenerator[tuple[TopicPartition, Rec], None]:
        for place, span in spans.items():
            for offset in range(span.start, span.end):
                yield place, Rec(offset, 0, frame(offset))


class ListWriter:
    """Keeps what it is given; calls `after` then."""

    trouble = ""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.ids: list[object] = []
        self.after: Callable[[], None] = lambda: None

    async def write(self, records: Sequence[Record], account: Account) -> None:
        events = [e.id for e in Batch(records)]
        self.batches.append(len(events))
        self.ids += events
        account.written += len(events)
        self.after()


class Lab:
    """A replay of 20 frames of 10 events, its clock, and what it saved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.saved: list[bytes] = []
        self.writer = ListWriter()
        self.stop = asyncio.Event()
        self.clock: Callable[[], float] = lambda: self.now

    def replay(self, state: ReplayState | None = None, *, rate: float = 0.0) -> Replay:
        """Return a replay from its beginning, or from a state."""
        if state is None:
            state = ReplayState(command={}, number=1, request=REQUEST, by=[])
            state.sources = [
                Source(kind="observation", topic="t", partition=0, start=0, next=0, end=20)
            ]
        plan = Plan(state.request, frozenset(["observation"]), [], {})
        return Replay(
            state,
            [ReplayFold(source, plan, state.account) for source in state.sources],
            self.writer,
            save=lambda state: self.saved.append(msgspec.msgpack.encode(state)),
            portions=Portions(25, 1 << 20, rate),
            clock=self.clock,
            now_ms=lambda: 0,
            stop=self.stop,
        )

    def state(self, number: int = -1) -> ReplayState:
        """Return a state that was saved."""
        return msgspec.msgpack.decode(self.saved[number], type=ReplayState)


async def test_events_are_written_in_batches_and_the_state_is_saved_now_and_then() -> None:
    """At the start, every five seconds, and at the end."""
    lab = Lab()

    def pass_time() -> None:
        lab.now += 2.5

    lab.writer.after = pass_time
    await lab.replay().run(MemoryReader())

    assert lab.writer.batches == [30] * 6 + [20]
    assert [lab.state(k).sources[0].next for k in range(len(lab.saved))] == [0, 6, 12, 18, 20]
    assert lab.state().done
    assert lab.state().seconds == 7 * 2.5
    assert (lab.state().account.read, lab.state().account.off_by) == (200, 0)


async def test_a_replay_goes_on_from_whatever_was_saved() -> None:
    """Stopped in the middle or killed after any save: the account is the same."""
    lab = Lab()

    def stop() -> None:
        lab.now += 2.5
        if len(lab.writer.batches) == 3:
            lab.stop.set()

    lab.writer.after = stop
    await lab.replay().run(MemoryReader())
    lab.stop.clear()

    assert not lab.state().done
    assert (lab.state().sources[0].next, lab.state().account.written) == (9, 90)
    for number in range(len(lab.saved)):
        again = Lab()
        await again.replay(lab.state(number)).run(MemoryReader())
        assert (again.state().account.read, again.state().account.written) == (200, 200)
        assert len({*lab.writer.ids, *again.writer.ids}) == 200


async def test_a_rate_is_kept_to_with_small_batches() -> None:
    """A batch is what may be written in half a second, and no batch is early."""
    lab = Lab()
    lab.clock = time.monotonic
    began = time.monotonic()
    await lab.replay(rate=1000.0).run(MemoryReader())
    took_s = time.monotonic() - began
    slow = Lab()
    slow.stop.set()
    await slow.replay(rate=4.0).run(MemoryReader())

    assert lab.writer.batches == [30] * 6 + [20]
    assert took_s >= 0.2
    assert slow.writer.batches == [10]


def test_progress_is_told_in_a_line() -> None:
    """How far, how fast, and how long it takes."""
    account = Account(read=500, written=400)

    assert line(Moment(account, 50, 200, 10.0, "")) == (
        "25 %: 500 events read, 400 written, 50 events/s, 30 s left"
    )
    assert line(Moment(Account(), 0, 0, 0.0, "")).startswith("100 %: 0 events read")


class Sometimes:
    """A sink that does what it is told, call by call."""

    name = "sometimes"

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.outcomes = list(outcomes)
        self.got: list[Batch] = []

    async def check(self) -> None: ...

    async def open(self) -> None: ...

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, TimeoutError):
            await asyncio.sleep(60)
        if outcome is not None:
            raise outcome
        self.got.append(batch)
        return []

    async def close(self) -> None: ...


def writer(sink: Sometimes) -> ReplayWriter:
    """Return a writer to a sink, without pauses."""
    return ReplayWriter(sink, KafkaSettings(), replay="a-1", timeout_s=0.05, draw=lambda: 0.0)


def records() -> list[Record]:
    """Return a batch."""
    found: list[Record] = []
    plan = Plan(REQUEST, frozenset(["observation"]), [], {})
    source = Source(kind="observation", topic="t", partition=0, start=0, next=0, end=2)
    fold = ReplayFold(source, plan, Account())
    for number in range(2):
        found += fold.take(Rec(number, 0, frame(number)), now_ms=0)
    return found


async def test_a_sink_that_is_away_gets_the_same_batch_again() -> None:
    """Until it takes it; it is told which replay it comes from."""
    sink = Sometimes(SinkUnavailable("away"), SinkUnavailable("away"))
    account = Account()
    await writer(sink).write(records(), account)

    assert [(batch.replay, len(batch)) for batch in sink.got] == [("a-1", 20)]
    assert account.written == 20


@pytest.mark.parametrize("outcome", [SinkBroken("broken"), TimeoutError()])
async def test_a_sink_that_breaks_or_hangs_ends_the_replay(outcome: BaseException) -> None:
    """Nothing is counted as written."""
    account = Account()
    with pytest.raises(SinkBroken):
        await writer(Sometimes(outcome)).write(records(), account)

    assert account.written == 0
