"""What a replay makes of a source partition, against a plain reference."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.control.replay_account import Account
from mlops_events.control.replay_fold import Plan, ReplayFold, Source
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.control.replay_windows import OpenWindow
from mlops_events.schemas import FrameEncoder, Origin, Stats
from mlops_events.schemas.frame import Free
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import FrameRecord, Record, StatsRecord
from mlops_events.streams.by import By

MS = 1_000_000
SIZE = 10 * MS
MARGIN = 20
RULES = [By("time", SIZE), By("window", 2)]
TOPIC = "mlops.events.observation.v1"


class Sent(NamedTuple):
    """A frame as it arrived: whose, which one, its events' times, and when; milliseconds."""

    emitter: int
    seq: int
    times: list[int]
    arrived: int


def window_of(frame: Sent, k: int) -> int | None:
    """Return which training window an event says it is in; some say nothing."""
    return None if frame.times[k] % 7 == 0 else frame.times[k] // 25 + k % 2


class Rec(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def value_of(frame: Sent, k: int) -> float:
    """Return the value of an event."""
    return float(frame.seq * 7 + k * 3 - frame.times[k])


def encode(frame: Sent, *, run: str = "r", version: str = "1") -> bytes:
    """Return the frame's bytes."""
    origin = Origin(run=run, role="miner", uid=frame.emitter, version=version)
    encoder = FrameEncoder(emitter=bytes([frame.emitter]) * 16, kind="observation", origin=origin)
    events = [
        ENCODER.encode(
            Free(
                ts * MS, k, "training", {"loss": value_of(frame, k), "window": window_of(frame, k)}
            )
        )
        for k, ts in enumerate(frame.times)
    ]
    return encoder.encode(events, seq=frame.seq, closed_ns=0, accepted=0, dropped=0)


def request(since: int, until: int, *, slack: int = 1000, **more: Any) -> ReplayRequest:
    """Return a replay of observations; times in milliseconds."""
    return ReplayRequest(
        kinds=("observation",),
        sink="sqlite",
        since_ns=since * MS,
        until_ns=until * MS,
        slack_ns=slack * MS,
        margin_ns=MARGIN * MS,
        **more,
    )


def plan(asked: ReplayRequest, *kinds: str) -> Plan:
    """Return what is written: these kinds, or observations and Stats."""
    takes = frozenset(kinds or ("observation", "stats"))
    return Plan(asked, takes, RULES, {"site": "x"})


def source(end: int) -> Source:
    """Return a partition of which nothing was read."""
    return Source(kind="observation", topic=TOPIC, partition=0, start=0, next=0, end=end)


def replay(
    records: Sequence[Rec], what: Plan, *, saved_at: Sequence[int] = ()
) -> tuple[list[Record], Account]:
    """Replay records; save and go on with what was saved before the records of these numbers."""
    account = Account()
    fold = ReplayFold(source(len(records)), what, account)
    out: list[Record] = []
    for number, record in enumerate(records):
        if number in saved_at:
            data = msgspec.msgpack.encode((fold.save(), account))
            saved, account = msgspec.msgpack.decode(data, type=tuple[Source, Account])
            fold = ReplayFold(saved, what, account)
        out += fold.take(record, now_ms=5)
    return out + fold.finish(now_ms=5), account


def stats_of(records: Sequence[Record], by: str = "time") -> list[tuple[bytes, Stats]]:
    """Return the Stats in records by one rule, in the order of their keys."""
    found = [
        (r.frame.emitter, s)
        for r in records
        if isinstance(r, StatsRecord)
        for s in r.frame.stats
        if s.by == by
    ]
    return sorted(found, key=lambda one: (one[0], one[1].start))


def ids_of(records: Sequence[Record]) -> set[Any]:
    """Return the ids of the events in records."""
    return {e.id for r in records if isinstance(r, FrameRecord) for e in r.envelopes()}


FRAMES = st.lists(
    st.builds(
        Sent,
        emitter=st.integers(1, 3),
        seq=st.integers(0, 8),
        times=st.lists(st.integers(0, 120), max_size=5),
        arrived=st.integers(0, 200),
    ),
    max_size=30,
)


@given(
    frames=FRAMES,
    since=st.integers(0, 60),
    length=st.integers(1, 70),
    slack=st.integers(0, 150),
    saved_at=st.lists(st.integers(0, 30), max_size=3),
)
def test_every_whole_window_has_every_sample_that_arrived_in_time(
    frames: list[Sent], since: int, length: int, slack: int, saved_at: list[int]
) -> None:
    """Frames in any order and again, saved and gone on with anywhere: as a plain count says."""
    until = since + length
    records = [Rec(k, frame.arrived, encode(frame)) for k, frame in enumerate(frames)]
    out, account = replay(records, plan(request(since, until, slack=slack)), saved_at=saved_at)

    by_time: dict[tuple[int, int], list[float]] = {}
    by_field: dict[tuple[int, int], list[tuple[int, float]]] = {}
    over: dict[tuple[int, int], list[tuple[int, float]]] = {}
    ids, seen, clock, beyond, cut = set(), set(), 0, set(), set()
    for frame in frames:
        clock = max(clock, frame.arrived)
        new = (frame.emitter, frame.seq) not in seen
        seen.add((frame.emitter, frame.seq))
        for k, ts in enumerate(frame.times) if new else ():
            event, value = (frame.emitter, frame.seq, k), value_of(frame, k)
            inside = since <= ts < until
            start = ts // 10 * 10
            if inside:
                ids.add(event)
                if start + 10 + slack <= clock:
                    beyond.add(event)
                elif since <= start and start + 10 <= until:
                    by_time.setdefault((frame.emitter, start), []).append(value)
                else:
                    cut.add((frame.emitter, "time", start))
            number = window_of(frame, k)
            if number is not None and since - MARGIN <= ts < until + MARGIN:
                place = (frame.emitter, number // 2 * 2)
                if place not in over:
                    by_field.setdefault(place, []).append((ts, value))
                elif inside:
                    beyond.add(event)
        for place in [p for p, held in by_field.items() if max(held)[0] + slack <= clock]:
            over[place] = by_field.pop(place)
    over |= by_field
    whole = {p: held for p, held in over.items() if all(since <= ts < until for ts, _ in held)}
    partly = [p for p, held in over.items() if any(since <= ts < until for ts, _ in held)]

    assert {(i.emitter[0], i.seq, i.index) for i in ids_of(out)} == ids
    _check(stats_of(out), {(e, start * MS): values for (e, start), values in by_time.items()})
    values = {place: [value for _, value in held] for place, held in whole.items()}
    _check(stats_of(out, "window"), values)
    assert account.windows_cut == len(cut) + len(set(partly).difference(whole))
    assert account.beyond_slack == len(beyond)
    assert account.read == sum(len(frame.times) for frame in frames)
    account.written = len(ids)
    assert account.off_by == 0


def _check(
    found: list[tuple[bytes, Stats]], windows: Mapping[tuple[int, int], Sequence[float]]
) -> None:
    """See that there are the Stats of these windows, by emitter and start, and no others."""
    by_place = {(emitter[0], stats.start): stats for emitter, stats in found}

    assert by_place.keys() == windows.keys()
    assert len(by_place) == len(found), "a window was put out twice"
    for place, values in windows.items():
        stats = by_place[place]
        assert (stats.count, stats.revision, stats.final) == (len(values), len(values), True)
        assert (stats.min, stats.max) == (min(values), max(values))
        assert (stats.median, stats.closed_by) == (median(values), "replay")
        assert stats.mean is not None
        assert abs(stats.mean - sum(values) / len(values)) < 1e-9


def test_windows_that_the_range_cuts_are_counted_and_named() -> None:
    """A range that ends in a window leaves it out, and says whose and which it was."""
    frame = Sent(7, 0, [4, 12, 23], 0)
    what = plan(request(3, 25))._replace(rules=RULES[:1])
    out, account = replay([Rec(0, 0, encode(frame))], what)

    assert [s.start for _, s in stats_of(out)] == [SIZE]
    assert account.windows_cut == 2
    assert account.cut == [
        f"r/miner/7 observation at 1970-01-01 00:00:00.{at:03}Z" for at in (0, 20)
    ]


def test_windows_over_a_field_are_whole_or_left_out() -> None:
    """One with samples before the range, and one that the stream has open, are named."""
    frame = Sent(7, 0, [5, 26, 52, 78], 0)  # in the windows 0, 2, 2 and 4
    what = plan(request(20, 90))._replace(
        still_open={OpenWindow(b"\7" * 16, "observation", "window", 2, 4)}
    )
    out, account = replay([Rec(0, 0, encode(frame))], what)
    early, _ = replay([Rec(0, 0, encode(frame))], plan(request(30, 90)))

    assert [(s.start, s.count) for _, s in stats_of(out, "window")] == [(2, 2)]
    assert account.cut == ["r/miner/7 observation at window 4"]
    assert [(s.start, s.count) for _, s in stats_of(early, "window")] == [(4, 1)]


def test_each_event_that_is_not_wanted_has_one_reason() -> None:
    """Unreadable, of another run, version or time, or a repeat: each event counts once."""
    records = [
        encode(Sent(1, 0, [10, 11], 0), run="another"),
        encode(Sent(2, 0, [10], 0), version="9"),
        encode(Sent(3, 0, [10, 11, 99], 0), version="v1"),
        encode(Sent(3, 0, [10, 11, 99], 0), version="v1"),
        b"no frame",
        None,
    ]
    asked = request(0, 20, run="r", version="1")
    out, account = replay([Rec(k, 0, value) for k, value in enumerate(records)], plan(asked))

    assert len(ids_of(out)) == 2
    assert msgspec.structs.asdict(account.filtered) == {
        "unreadable": 2,
        "other_run": 2,
        "other_version": 1,
        "repeat": 3,
        "other_time": 1,
        "not_routed": 0,
    }
    account.written = 2
    assert account.off_by == 0


def test_a_sink_that_takes_stats_only_gets_only_these() -> None:
    """Events are read for their windows then."""
    out, account = replay([Rec(0, 0, encode(Sent(1, 0, [1, 2], 0)))], plan(request(0, 20), "stats"))

    assert not ids_of(out)
    assert len(stats_of(out)) == 1
    assert account.filtered.not_routed == 2


def test_events_and_stats_are_tagged_as_the_stream_does() -> None:
    """The version is normalised, the operator's tags are added."""
    out, _ = replay([Rec(0, 0, encode(Sent(1, 0, [1], 0), version="V1.2"))], plan(request(0, 20)))

    assert [r.frame.tags for r in out] == [{"version": "1.2", "site": "x"}] * 3


def test_a_window_is_put_out_when_its_slack_has_passed() -> None:
    """Samples are held no longer than that."""
    what = plan(request(0, 100, slack=50))
    fold = ReplayFold(source(3), what, Account())

    assert not stats_of(fold.take(Rec(0, 5, encode(Sent(1, 0, [5], 0))), now_ms=0))
    assert not stats_of(fold.take(Rec(1, 59, encode(Sent(1, 1, [25], 0))), now_ms=0))
    assert [s.start for _, s in stats_of(fold.take(Rec(2, 60, b""), now_ms=0))] == [0]


def test_the_last_frame_of_an_emitter_is_written_though_it_holds_nothing() -> None:
    """A store learns from it that nothing is missing."""
    origin = Origin(run="r")
    encoder = FrameEncoder(emitter=b"e" * 16, kind="observation", origin=origin)
    frames = [
        encoder.encode([], seq=k, closed_ns=at * MS, accepted=0, dropped=0, end=True)
        for k, at in enumerate((5, 25))
    ]
    out, account = replay([Rec(k, 0, f) for k, f in enumerate(frames)], plan(request(0, 20)))

    assert [r.frame.seq for r in out if isinstance(r, FrameRecord)] == [0]
    assert account.read == 0
