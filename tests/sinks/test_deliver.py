"""The delivery loop, between a log and a sink in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.events import EventId, Observation, Origin, Stats
from mlops_events.schemas.frame import (
    FrameEncoder,
    Free,
    decode_frame,
    decode_stats,
)
from mlops_events.schemas.topics import raw_headers
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import FrameRecord, SinkBroken, SinkUnavailable, StatsRecord
from mlops_events.sinks.deliver import backoff_s
from mlops_events.sinks.testing import frame_record, stats_record

DEAD = "mlops.events.dead-letters.v1"
EMITTER = bytes(range(16))


def frame(seq: int, *, events: int = 2, emitter: bytes = EMITTER) -> FrameRecord:
    """A frame of plain events."""
    free = [Free(k, None, "training", {"loss": float(k)}) for k in range(events)]
    return frame_record(free, seq=seq, emitter=emitter, accepted=(seq + 1) * events)


def window(revision: int, *, final: bool = False, start: int = 0) -> StatsRecord:
    """A record with the Stats of one window."""
    stats = Stats(
        kind="observation",
        name="training",
        field="loss",
        start=start,
        size=10,
        revision=revision,
        final=final,
        count=revision,
    )
    return stats_record([stats])


def seqs(sink: Any) -> list[tuple[int, int]]:
    """(seq, index) of the events that a sink got."""
    return [(e.id.seq, e.id.index) for e in sink.got if isinstance(e.id, EventId)]


def letters(log: Any) -> list[Any]:
    """The dead letters that were written."""
    return [decode_dead_letter(record.value) for record in log.sent.get(DEAD, [])]


async def test_events_are_written_and_committed(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """A batch is written, then its place is kept with incarnation and mark."""
    for seq in range(3):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed)

    assert seqs(list_sink) == [(s, i) for s in range(3) for i in range(2)]
    mark = memory_log.committed[0]
    assert (mark.next, mark.incarnation) == (3, 0)
    assert mark.describes(memory_log.records[0][2])
    assert running.counters.total("sent", "observation") == 6
    assert (list_sink.closed, memory_log.closed) == (1, 1)


async def test_an_event_comes_with_all_that_is_known_of_it(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """A sink sees who sent an event and where it lies."""
    memory_log.frame(frame(0))
    memory_log.frame(frame(1))
    async with deliver(list_sink, memory_log):
        await until(lambda: len(list_sink.got) == 4)

    last = list_sink.got[-1]
    assert last.id == EventId(EMITTER, "observation", 1, 1)
    assert last.event == Observation(ts=1, name="training", fields={"loss": 1.0})
    assert last.origin.uid == 7
    assert (last.topic, last.partition, last.offset, last.position) == (memory_log.topic, 0, 1, 1)


async def test_repeats_are_dropped(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """A frame that comes again, and Stats that are not above what is known, go no further."""
    for record in (frame(0), frame(1), frame(0), frame(1), frame(2)):
        memory_log.frame(record)
    for stats in (window(2), window(1), window(2), window(2, final=True), window(2)):
        memory_log.stats(stats)
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed and memory_log.committed[0].next == 10)

    assert seqs(list_sink) == [(s, i) for s in range(3) for i in range(2)]
    stats = [e.event for e in list_sink.got if isinstance(e.event, Stats)]
    assert [(s.revision, s.final) for s in stats] == [(2, False), (2, True)]
    assert running.counters.total("dropped", "repeat") == 7


async def test_a_redriven_frame_passes(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """What an operator sends again from the dead letters is no repeat."""
    memory_log.frame(frame(0))
    memory_log.frame(frame(0), redriven=True)
    async with deliver(list_sink, memory_log):
        await until(lambda: len(list_sink.got) == 4)

    assert seqs(list_sink) == [(0, 0), (0, 1)] * 2


@pytest.mark.parametrize("times", [1, 2])
async def test_a_redriven_event_that_fails_again_is_another_letter(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any, times: int
) -> None:
    """Taking the old letter away does not take the new one, whichever of them comes first."""
    list_sink.refuse = lambda e: e.position == 1
    memory_log.frame(frame(0), redriven=times)
    memory_log.append(b"garbage", [("redriven", b"%d" % times)])
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed and memory_log.committed[0].next == 2)

    refused, unread = sorted(letters(memory_log), key=lambda one: one.reason, reverse=True)
    assert refused.key == f"list/{EMITTER.hex()}/observation/0/1#{times}"
    assert unread.key.endswith(f"#{times}")
    assert refused.redriven == unread.redriven == times


async def test_the_end_of_an_emitter_is_delivered(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """An empty last frame reaches the sink as a batch without events."""
    memory_log.frame(frame_record([], seq=5, accepted=9, end=True))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)

    assert list_sink.batches == [0]


async def test_refused_events_become_dead_letters(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """A dead letter holds the reason, and a frame with only this event that can be sent again."""
    list_sink.refuse = lambda e: e.position == 1
    memory_log.frame(frame(4, events=3))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed)

    assert seqs(list_sink) == [(4, 0), (4, 2)]
    (letter,) = letters(memory_log)
    assert (letter.sink, letter.reason, letter.kind) == ("list", "unwanted", "observation")
    assert letter.message == "the test refuses it"
    assert letter.key == f"list/{EMITTER.hex()}/observation/4/1"
    assert memory_log.sent[DEAD][0].key == letter.key.encode()
    assert (letter.topic, letter.partition, letter.offset) == (memory_log.topic, 0, 0)
    again = decode_frame(letter.payload)
    assert [index for index, _ in again.events()] == [1]
    assert running.counters.total("dropped", "dead_letter_unwanted") == 1


async def test_refused_stats_become_dead_letters(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Their key is the natural one, so a later revision replaces the letter."""
    list_sink.refuse = lambda e: isinstance(e.event, Stats)
    memory_log.stats(window(3, start=20))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)

    (letter,) = letters(memory_log)
    assert letter.key == f"list/{EMITTER.hex()}/observation/training/loss/time/20/10"
    assert decode_stats(letter.payload).stats[0].revision == 3


@pytest.mark.parametrize("value", [None, b"", b"garbage", b"\x81\xa1v\x01", b"x" * 600_000])
async def test_what_cannot_be_decoded_becomes_a_dead_letter(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any, value: bytes | None
) -> None:
    """Its neighbours are delivered; it is kept whole up to 512 KiB."""
    memory_log.frame(frame(0))
    headers = raw_headers(Origin(), kind="log", emitter=EMITTER, seq=0, count=1)
    memory_log.append(value, headers)
    memory_log.append(value)
    memory_log.frame(frame(1))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed and memory_log.committed[0].next == 4)

    assert len(list_sink.got) == 4
    found = letters(memory_log)
    assert [letter.reason for letter in found] == ["undecodable"] * 2
    assert [letter.key.rpartition("/")[0] for letter in found] == [
        f"list/{memory_log.topic}/0/{offset}" for offset in (1, 2)
    ]
    assert found[0].size == len(value or b"")
    assert found[0].truncated == (found[0].size > 512 << 10)


async def test_headers_that_lie_make_a_dead_letter(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """A record under another frame's id neither passes nor makes that frame a repeat."""
    record = frame(0)
    headers = raw_headers(Origin(), kind="observation", emitter=EMITTER, seq=1, count=2)
    memory_log.append(record.frame.encode(), headers)
    memory_log.frame(frame(1))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed and memory_log.committed[0].next == 2)

    assert seqs(list_sink) == [(1, 0), (1, 1)]
    assert "another frame" in letters(memory_log)[0].message


async def test_an_unreadable_event_does_not_cost_its_frame(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Events that this version knows are delivered, the other one becomes a dead letter."""
    good = ENCODER.encode(Free(1, None, "training", {"loss": 1.0}))
    odd = ENCODER.encode(["from-the-future", 1])
    value = FrameEncoder(emitter=EMITTER, kind="observation", origin=Origin()).encode(
        [good, odd, good], seq=0, closed_ns=0, accepted=3, dropped=0
    )
    headers = raw_headers(Origin(), kind="observation", emitter=EMITTER, seq=0, count=3)
    memory_log.append(value, headers)
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)

    assert seqs(list_sink) == [(0, 0), (0, 2)]
    (letter,) = letters(memory_log)
    assert letter.reason == "unreadable_event"
    assert letter.key == f"list/{EMITTER.hex()}/observation/0/1"
    alone = decode_frame(letter.payload)
    assert [(reject.index, reject.raw) for reject in alone.rejects] == [(1, odd)]
    assert not alone.items


async def test_a_sink_that_is_away_holds_everything_back(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """The batch is kept and tried again, nothing is committed or read meanwhile."""
    list_sink.outcomes = [SinkUnavailable("away", retry_after=600)]
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.paused)
        polls = memory_log.polls
        await until(lambda: memory_log.polls > polls + 2)

        assert not memory_log.committed
        assert running.delivery.trouble == "the sink is unavailable: away"
        assert list_sink.attempts == 1


async def test_a_sink_that_comes_back_gets_every_event_once(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """After failures the same batch is written, and reading goes on."""
    list_sink.outcomes = [SinkUnavailable("away")] * 5
    for seq in range(3):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed)
        memory_log.frame(frame(3))
        await until(lambda: memory_log.committed[0].next == 4)

        assert running.delivery.trouble is None
    assert seqs(list_sink) == [(s, i) for s in range(4) for i in range(2)]
    assert running.counters.total("errors", "SinkUnavailable") == 5


def gauges(counters: Any) -> dict[str, float]:
    """What the gauges show now."""
    return {
        sample.name.removeprefix("mlops_events_sink_"): sample.value
        for family in counters.collect()
        for sample in family.samples
        if family.type == "gauge"
    }


async def test_metrics_tell_what_is_held_back_and_for_how_long(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """The breaker is open while a batch is tried again, and closes when it got through."""
    list_sink.outcomes = [SinkUnavailable("away"), SinkUnavailable("away", retry_after=1)]
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        assert gauges(running.counters)["breaker_open"] == 0
        await until(lambda: list_sink.attempts == 2)
        held = gauges(running.counters)
        await until(lambda: memory_log.committed)
        await until(lambda: gauges(running.counters)["breaker_open"] == 0)
        free = gauges(running.counters)

    assert (held["breaker_open"], held["in_flight_events"]) == (1, 2)
    assert held["oldest_uncommitted_seconds"] > 0
    assert (free["in_flight_events"], free["oldest_uncommitted_seconds"]) == (0, 0)
    assert running.counters.total("breaker_opened") == 1


async def test_without_dead_letters_nothing_is_committed(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Letters that cannot be written are tried again, but the sink is not written to again."""
    list_sink.refuse = lambda e: e.position == 1
    memory_log.failing = {"send"}
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: running.counters.total("errors", "LogError") > 2)

        assert not memory_log.committed
        assert "dead letters not written" in running.delivery.trouble
        memory_log.failing.clear()
        await until(lambda: memory_log.committed)
    assert list_sink.attempts == 1
    assert len(letters(memory_log)) == 1


async def test_a_failed_commit_is_made_good_by_the_next(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """What is written stays written; delivery goes on."""
    memory_log.failing = {"commit"}
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: running.counters.total("errors", "commit") == 1)
        memory_log.failing.clear()
        memory_log.frame(frame(1))
        await until(lambda: memory_log.committed)

    assert memory_log.committed[0].next == 2
    assert len(list_sink.got) == 4


@pytest.mark.parametrize("error", [SinkBroken("no such database"), ZeroDivisionError("a bug")])
async def test_a_broken_sink_ends_the_process(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any, error: Exception
) -> None:
    """Nothing is committed, everything is closed, and the supervisor decides."""
    list_sink.outcomes = [error]
    memory_log.frame(frame(0))
    with pytest.raises(type(error)):
        async with deliver(list_sink, memory_log) as running:
            await until(running.task.done)

    assert not memory_log.committed
    assert (list_sink.closed, memory_log.closed) == (1, 1)


async def test_a_write_that_hangs_ends_the_process(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """No sink may hold a partition for ever."""
    list_sink.gate = asyncio.Event()
    memory_log.frame(frame(0))
    with pytest.raises(SinkBroken, match="no answer within"):
        async with deliver(list_sink, memory_log, write_timeout_s=0.05) as running:
            await until(running.task.done)

    assert not memory_log.committed


async def test_stopping_finishes_the_batch_in_hand(
    memory_log: Any, list_sink: Any, deliver: Any
) -> None:
    """After SIGTERM what is being written is committed."""
    list_sink.gate = asyncio.Event()
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        await list_sink.writing.wait()
        running.stop.set()
        list_sink.gate.set()

    assert memory_log.committed[0].next == 1


async def test_stopping_does_not_wait_for_a_sink_that_is_away(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """The batch is left for the next process."""
    list_sink.outcomes = [SinkUnavailable("away", retry_after=600)] * 9
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.paused)

    assert not memory_log.committed


async def test_a_sink_that_does_not_open_yet_is_waited_for(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """The order in which services start does not matter."""
    list_sink.open_outcomes = [SinkUnavailable("starting"), SinkUnavailable("starting")]
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)

    assert list_sink.opened == 1


async def test_a_kafka_that_does_not_answer_is_asked_again(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Partitions are taken over once it is known where to begin."""
    memory_log.failing = {"places"}
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: running.counters.total("errors", "LogError"))
        memory_log.failing.clear()
        await until(lambda: memory_log.committed)

    assert len(list_sink.got) == 2


async def test_a_new_process_knows_what_the_last_one_delivered(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Repeats that come after a restart are dropped even by a sink that only appends."""
    for seq in range(3):
        memory_log.frame(frame(seq))
    memory_log.stats(window(2))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)
    for record in (frame(1), frame(2), frame(3)):
        memory_log.frame(record)
    memory_log.stats(window(2))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed[0].next == 8)

    assert seqs(list_sink) == [(s, i) for s in range(4) for i in range(2)]
    assert sum(isinstance(e.event, Stats) for e in list_sink.got) == 1


async def test_a_topic_that_was_made_anew_is_read_from_its_start(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Another record where the last one was means another log, and the next incarnation."""
    for seq in range(3):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.committed)
    memory_log.make_anew()
    for seq in range(10, 16):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed[0].next == 6)

    assert [seq for seq, _ in seqs(list_sink)][6:] == [s for s in range(10, 16) for _ in (0, 1)]
    assert {e.incarnation for e in list_sink.got[6:]} == {1}
    assert memory_log.committed[0].incarnation == 1
    assert running.counters.total("errors", "made_anew") == 1


async def test_a_shorter_log_is_noticed_too(
    new_memory_log: Any, list_sink: Any, deliver: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new log that ends before the commit is read from its start, after a moment's doubt."""
    monkeypatch.setattr("mlops_events.sinks.position.SHORT_WAIT_S", 0.05)
    monkeypatch.setattr("mlops_events.sinks.intake._ASK_S", 0.01)
    log = new_memory_log(1)
    for seq in range(5):
        log.frame(frame(seq))
    async with deliver(list_sink, log):
        await until(lambda: log.committed)
    log.make_anew()
    log.frame(frame(10))
    async with deliver(list_sink, log):
        await until(lambda: log.committed[0].incarnation == 1)

    assert log.committed[0].next == 1
    assert seqs(list_sink)[-2:] == [(10, 0), (10, 1)]


async def test_what_expired_unread_is_counted(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Retention that overtakes a sink is no silent loss."""
    for seq in range(10):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log, max_events=2):
        await until(lambda: memory_log.committed)
    done = memory_log.committed[0].next
    for seq in range(10, 30):
        memory_log.frame(frame(seq))
    memory_log.expire(25)
    async with deliver(list_sink, memory_log) as running:
        await until(lambda: memory_log.committed[0].next == 30)

    assert running.counters.total("dropped", "expired_records") == 25 - done


async def test_a_hole_is_waited_for(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Records that become visible late are delivered in their place."""
    memory_log.hidden = {1, 2}
    for seq in range(5):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log):
        await until(lambda: len(list_sink.got) == 2)
        memory_log.hidden.clear()
        await until(lambda: len(list_sink.got) == 10)

    assert [seq for seq, index in seqs(list_sink) if index == 0] == [0, 1, 2, 3, 4]


async def test_partitions_are_given_up_after_the_write(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Whoever gets a partition next does not write again what was being written."""
    list_sink.gate = asyncio.Event()
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log):
        await list_sink.writing.wait()
        rebalance = asyncio.ensure_future(memory_log.rebalance())
        await asyncio.sleep(0)
        assert not memory_log.committed
        list_sink.gate.set()
        await rebalance

        assert memory_log.committed[0].next == 1
        memory_log.frame(frame(1))
        await until(lambda: memory_log.committed[0].next == 2)
    assert seqs(list_sink) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_a_batch_that_waits_is_given_up_with_its_partition(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """It is read again from the commit, by whoever holds the partition, and nothing is lost."""
    list_sink.outcomes = [SinkUnavailable("away", retry_after=0.2)]
    memory_log.frame(frame(0))
    memory_log.frame(frame(1))
    async with deliver(list_sink, memory_log):
        await until(lambda: memory_log.paused)
        await memory_log.rebalance()
        await until(lambda: memory_log.committed)

    assert seqs(list_sink) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_a_write_that_outlasts_its_partition_is_not_committed(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """The group waits only so long; the next holder writes the batch again."""
    memory_log.revoke_s = 0.01
    list_sink.gate = asyncio.Event()
    memory_log.frame(frame(0))
    async with deliver(list_sink, memory_log):
        await list_sink.writing.wait()
        await memory_log.rebalance()
        list_sink.gate.set()
        await until(lambda: memory_log.committed)

    assert len(list_sink.got) == 4


@pytest.mark.parametrize(
    ("limits", "largest"),
    [({"max_events": 4}, 5), ({"max_events": 1}, 2), ({"max_bytes": 1}, 2), ({}, 40)],
)
async def test_batches_keep_to_their_size(
    memory_log: Any, list_sink: Any, deliver: Any, until: Any, limits: dict[str, int], largest: int
) -> None:
    """A batch is full with the record that reaches the number, or before the one that exceeds
    the bytes; a record is never split."""
    for seq in range(20):
        memory_log.frame(frame(seq))
    async with deliver(list_sink, memory_log, **limits):
        await until(lambda: len(list_sink.got) == 40)

    assert max(list_sink.batches) <= largest


async def test_partitions_go_on_independently(
    new_memory_log: Any, list_sink: Any, deliver: Any, until: Any
) -> None:
    """Each has a commit and a memory of its own."""
    log = new_memory_log(3)
    for partition in range(3):
        emitter = bytes([partition]) * 16
        for seq in (0, 1, 0):
            log.frame(frame(seq, emitter=emitter), partition=partition)
    async with deliver(list_sink, log):
        await until(lambda: len(log.committed) == 3)

    assert {p: mark.next for p, mark in log.committed.items()} == {0: 3, 1: 3, 2: 3}
    assert len(list_sink.got) == 12


@pytest.mark.parametrize(
    ("attempt", "drawn", "retry_after", "seconds"),
    [
        (0, 1.0, None, 0.5),
        (1, 1.0, None, 1.0),
        (1, 0.5, None, 0.5),
        (3, 0.0, None, 0.0),
        (7, 1.0, None, 60.0),
        (10_000, 1.0, None, 60.0),
        (0, 1.0, 30.0, 30.0),
        (9, 1.0, 30.0, 60.0),
        (0, 0.0, 3_600.0, 600.0),
    ],
)
def test_waits_grow_with_full_jitter(
    attempt: int, drawn: float, retry_after: float | None, seconds: float
) -> None:
    """From half a second to a minute; what the destination asks for counts up to ten minutes."""
    draw: Callable[[], float] = lambda: drawn  # noqa: E731

    assert backoff_s(attempt, retry_after=retry_after, draw=draw) == seconds
