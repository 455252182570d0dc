"""The emitter through its public API, with a transport in memory."""

import asyncio
import logging
import math
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.transport import RecordRefusedError, TransportError
from mlops_events.schemas import ConfigError
from mlops_events.schemas.frame import MAX_EVENT_BYTES, MAX_FRAME_BYTES

MakeEmitter = Callable[..., Emitter]
EAGER = EmitterSettings(linger_s=0.01, max_linger_s=0.01)


@pytest.fixture
def transport() -> MemoryTransport:
    """Return a transport in memory."""
    return MemoryTransport()


@pytest.fixture
def make(transport: MemoryTransport) -> Iterator[MakeEmitter]:
    """Make emitters that are closed after the test."""
    made: list[Emitter] = []

    def make(**arguments: Any) -> Emitter:
        emitter = Emitter(**{"run": "r", "transport": transport, "announce": False, **arguments})
        made.append(emitter)
        return emitter

    yield make
    transport.recover()
    for emitter in made:
        emitter.close(1)


@pytest.fixture
def events(make: MakeEmitter) -> Emitter:
    """Return an emitter."""
    return make()


class Ticking:
    """A clock that moves on by a microsecond with each look."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


# --- what arrives -------------------------------------------------------------------------------


def test_an_observation_arrives_with_all_that_was_given(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """Name, fields, step, tags and the clock's time come out as they went in."""
    clock = Ticking()
    events = make(clock=clock)

    events.observe("training", {"loss": 0.5, "lr": 1e-4}, step=7, tags={"phase": "train"})

    assert events.flush()
    (seen,) = transport.observations()
    assert (seen.name, seen.fields, seen.step) == ("training", {"loss": 0.5, "lr": 1e-4}, 7)
    assert seen.tags == {"phase": "train"}
    assert 1_700_000_000_000_000_000 < seen.ts <= clock.now


def test_the_origin_of_every_frame_is_who_emits(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """Arguments describe the origin; the host's name is added."""
    events = make(role="miner", uid=12, version="1.4.0", rank=3, tags={"subnet": 9})

    events.observe("training", {"loss": 0.5})

    assert events.flush()
    (frame,) = transport.frames()
    origin = frame.origin
    assert (origin.run, origin.role, origin.uid, origin.rank) == ("r", "miner", 12, 3)
    assert (origin.version, origin.tags) == ("1.4.0", {"subnet": "9"})
    assert origin.node
    assert transport.records[0].key == b"r/miner/12/3"
    assert transport.records[0].topic == "mlops.events.observation.v1"


def test_a_time_that_was_given_is_kept(events: Emitter, transport: MemoryTransport) -> None:
    """`ts` wins over the clock, for every kind."""
    events.observe("a", {"x": 1}, ts=5)
    events.profile("b", 10, ts=6)
    events.log("info", "c", ts=7)

    assert events.flush()
    assert {event.ts for event in transport.events()} == {5, 6, 7}


def test_a_run_says_when_it_starts_changes_and_ends(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """Start, update and end carry the config and what the run is."""
    events = make(
        announce=True, config={"lr": 0.1}, project="p", name="n", group="g", job_type="train"
    )
    events.update({"lr": 0.2})
    events.close()

    start, update, end = transport.runs()
    assert [run.state for run in (start, update, end)] == ["start", "update", "end"]
    assert (start.config, update.config) == ({"lr": 0.1}, {"lr": 0.2})
    assert (start.project, start.name, start.group, start.job_type) == ("p", "n", "g", "train")
    assert (start.status, end.status) == (None, "finished")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("boom"), "crashed"),
        (KeyboardInterrupt(), "crashed"),
        (SystemExit(1), "crashed"),
        (SystemExit(0), "finished"),
        (SystemExit(), "finished"),
    ],
)
def test_an_exception_through_the_context_manager_ends_the_run_as_crashed(
    make: MakeEmitter, transport: MemoryTransport, error: BaseException, status: str
) -> None:
    """What leaves the block decides how the run ended."""
    with pytest.raises(type(error)), make(announce=True):
        raise error

    assert transport.runs()[-1].status == status


def test_sections_nest_and_know_what_failed(events: Emitter, transport: MemoryTransport) -> None:
    """Each section measures its own time, and one that raises says so."""

    def fail_outside() -> None:
        with events.section("outer", step=1):
            with events.section("inner", step=1, tags={"layer": 3}):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_outside()

    assert events.flush()
    inner, outer = transport.profiles()
    assert (inner.name, inner.failed, inner.tags) == ("inner", False, {"layer": 3})
    assert (outer.name, outer.failed, outer.step) == ("outer", True, 1)
    assert outer.duration_ns >= inner.duration_ns >= 0


async def test_sections_of_concurrent_tasks_do_not_mix(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """Tasks that interleave keep their own sections."""
    turn = asyncio.Event()

    async def long(events: Emitter) -> None:
        with events.section("long"):
            await turn.wait()

    async def short(events: Emitter) -> None:
        with events.section("short"):
            turn.set()

    async with make() as events:
        await asyncio.gather(long(events), short(events))

    assert sorted(p.name for p in transport.profiles()) == ["long", "short"]
    assert transport.frames()[-1].end


def test_a_log_keeps_its_fields(events: Emitter, transport: MemoryTransport) -> None:
    """A field may have any name, such as level or message."""
    events.log("warning", "slow batch", step=3, logger="train", level=5, message="x", seconds=1.5)

    assert events.flush()
    (log,) = transport.logs()
    assert (log.level, log.message, log.step, log.logger) == ("warning", "slow batch", 3, "train")
    assert log.fields == {"level": 5, "message": "x", "seconds": 1.5}


# --- values that trainers pass ------------------------------------------------------------------


class Colour(Enum):
    """An enum, as settings have them."""

    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(1.5), 1.5),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        ([1, 2.5, None], [1, 2.5, None]),
        (2**63, 2**63),
        (2**80, float(2**80)),
        (Decimal("1.5"), 1.5),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (Colour.RED, "red"),
        (PurePosixPath("a/b"), "a/b"),
        (True, True),
        (None, None),
        ("", ""),
        ("\ud800", "?"),
        ({"nested": {"deep": [1]}}, {"nested": {"deep": [1]}}),
        (math.inf, math.inf),
    ],
)
def test_values_that_trainers_pass_arrive(
    events: Emitter, transport: MemoryTransport, value: Any, expected: Any
) -> None:
    """Numbers of every library, samples, paths and the like are taken."""
    events.observe("training", {"value": value, "other": 1}, step=np.int64(3))  # type: ignore[arg-type]

    assert events.flush()
    (seen,) = transport.observations()
    assert seen.fields == {"value": expected, "other": 1}
    assert seen.step == 3
    assert events.stats().bad_fields == {}


def test_nan_arrives_as_nan(events: Emitter, transport: MemoryTransport) -> None:
    """NaN is a value, not an error."""
    events.observe("training", {"loss": math.nan})

    assert events.flush()
    assert math.isnan(transport.observations()[0].fields["loss"])


class Hostile:
    """An object all of whose methods raise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks at classes and instances that it collects
            raise AttributeError(name)
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__


class CudaTensor:
    """What a tensor on a GPU looks like; reading it would stall the training."""

    is_cuda = True
    device = "cuda:0"
    shape = ()

    def item(self) -> float:
        raise AssertionError("the tensor was read")

    __float__ = __int__ = __index__ = item  # type: ignore[assignment]


@pytest.mark.parametrize("bad", [object(), Hostile(), CudaTensor(), np.zeros(100_000)])
def test_a_value_that_cannot_be_encoded_is_counted_by_its_name(
    events: Emitter, transport: MemoryTransport, bad: Any
) -> None:
    """The other fields of the event arrive."""
    events.observe("training", {"loss": 0.5, "bad": bad}, step=1)
    events.observe("training", {"loss": 0.6, "bad": bad}, step=2)
    events.log("info", "hello", good=1, bad=bad)

    assert events.flush()
    assert [o.fields for o in transport.observations()] == [{"loss": 0.5}, {"loss": 0.6}]
    assert transport.logs()[0].fields == {"good": 1}
    assert events.stats().bad_fields == {"bad": 3}


def test_a_cuda_tensor_as_step_is_not_read(events: Emitter, transport: MemoryTransport) -> None:
    """A step that cannot be had without waiting for the GPU is counted and left out."""
    events.observe("training", {"loss": 0.5}, step=CudaTensor())  # type: ignore[arg-type]

    assert events.flush()
    assert transport.observations()[0].step is None
    assert events.stats().bad_fields == {"step": 1}


def test_odd_steps_times_names_and_tags_do_no_harm(
    events: Emitter, transport: MemoryTransport
) -> None:
    """What has the wrong type is put right where that is possible, and else counted."""
    odd: Any = events
    odd.observe("training", {"loss": 0.5}, step=5.0)
    odd.observe("training", {"loss": 0.5}, step="x")
    odd.observe("training", {"loss": 0.5}, step=2**70)
    odd.observe("training", {"loss": 0.5}, ts=0.5)
    odd.observe(12, {3: 0.5}, tags={4: "x"})
    odd.observe("training", {"loss": 0.5}, tags=["x"])
    odd.log(20, ValueError("v"))
    odd.profile("p", "long")

    assert events.flush()
    seen = transport.observations()
    assert [o.step for o in seen] == [5, None, None, None, None, None]
    assert (seen[4].name, seen[4].fields, seen[4].tags) == ("12", {"3": 0.5}, {"4": "x"})
    assert (transport.logs()[0].level, transport.logs()[0].message) == ("20", "v")
    stats = events.stats()
    assert stats.bad_fields == {"step": 2, "ts": 1, "tags": 1, "duration_ns": 1}
    assert stats.kinds["profile"].dropped == {"malformed": 1}


def test_what_is_no_mapping_is_dropped_and_counted(events: Emitter) -> None:
    """Nothing can be saved of fields that are None or a list."""
    odd: Any = events
    odd.observe("training", None)
    odd.observe("training", [1, 2])

    assert events.stats().kinds["observation"].dropped == {"malformed": 2}
    assert events.stats().emitted == 2


def test_mappings_that_make_up_values_are_taken_as_they_are(
    events: Emitter, transport: MemoryTransport
) -> None:
    """A defaultdict with other keys than the last event gives its own fields, and is not filled."""
    events.observe("a", {"x": 1, "y": 2})
    changing: defaultdict[str, float] = defaultdict(float, {"z": 3.0, "y": 4.0})
    events.observe("a", changing)
    events.observe("a", Counter(x=5, w=6))
    events.observe("a", OrderedDict(x=7, y=8))

    assert events.flush()
    assert [o.fields for o in transport.observations()] == [
        {"x": 1, "y": 2},
        {"z": 3.0, "y": 4.0},
        {"x": 5, "w": 6},
        {"x": 7, "y": 8},
    ]
    assert dict(changing) == {"z": 3.0, "y": 4.0}


def test_a_change_after_the_call_does_not_reach_the_event(
    events: Emitter, transport: MemoryTransport
) -> None:
    """Values are read when they are emitted, not when they are sent."""
    samples = [1, 2]
    fields: dict[str, Any] = {"samples": samples, "loss": 1.0}
    for _ in range(2):
        events.observe("training", fields)
    samples.append(3)
    fields["loss"] = 2.0

    assert events.flush()
    assert [o.fields for o in transport.observations()] == [{"samples": [1, 2], "loss": 1.0}] * 2


def test_an_event_that_is_too_large_is_cut_and_flagged(
    events: Emitter, transport: MemoryTransport
) -> None:
    """Long texts are cut, what still does not fit is counted, and no frame is over its limit."""
    text = "ä" * MAX_EVENT_BYTES
    events.observe("big", {"text": text, "loss": 0.5, "list": [1.5] * 50_000}, tags={"a": "b"})
    events.log("info", text, detail=text)
    events.update({"text": text, "lr": 1})
    events.profile("p", 1, tags={"text": text})

    assert events.flush()
    (big,) = transport.observations()
    assert (big.fields["loss"], big.tags) == (0.5, {"a": "b", "truncated": True})
    assert set(big.fields) == {"text", "loss"}
    assert 0 < len(big.fields["text"].encode()) <= 16 << 10
    assert transport.logs()[0].fields["truncated"] is True
    assert transport.runs()[0].config["truncated"] is True
    assert transport.profiles()[0].tags == {"text": big.fields["text"], "truncated": True}
    assert events.stats().cut == 4
    assert events.stats().bad_fields == {"list": 1}
    assert all(len(record.value) <= MAX_FRAME_BYTES for record in transport.records)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(["training", "eval", "", "ü"])
TEXTS = st.text(max_size=4)
CALLS = st.tuples(
    NAMES,
    st.dictionaries(TEXTS, VALUES, max_size=5),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.dictionaries(TEXTS, st.sampled_from(["a", "b"]) | SCALARS, max_size=3),
)


def _utf8(value: Any) -> Any:
    """The value with lone surrogates as they arrive."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_utf8(inner) for inner in value]
    if isinstance(value, dict):
        return {_utf8(name): _utf8(inner) for name, inner in value.items()}
    return value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(CALLS, max_size=40))
def test_whatever_is_observed_arrives_in_order(
    calls: list[tuple[str, dict[str, Any], int | None, dict[str, Any] | None]],
) -> None:
    """Any sequence of names, field sets, steps and tags comes out as it went in."""
    transport = MemoryTransport()
    events = Emitter(run="r", transport=transport, announce=False)
    for name, fields, step, tags in calls:
        events.observe(name, fields, step=step, tags=tags)

    assert events.close()
    seen = [(o.name, o.fields, o.step, o.tags) for o in transport.observations()]
    expected = [
        (name, _utf8(fields), step, _utf8(tags or {})) for name, fields, step, tags in calls
    ]
    assert repr(seen) == repr(expected)


# --- series and frames --------------------------------------------------------------------------


def test_rows_of_one_series_share_their_names(events: Emitter, transport: MemoryTransport) -> None:
    """Names and text tags are sent once a frame."""
    for step in range(10):
        events.observe("training", {"loss": 0.5, "lr": 0.1}, step=step, tags={"phase": "train"})

    assert events.flush()
    for frame in transport.frames():
        (series,) = frame.series.values()
        assert (series.name, series.fields, series.tags) == (
            "training",
            ["loss", "lr"],
            {"phase": "train"},
        )


def test_names_without_end_do_not_grow_the_table(
    events: Emitter, transport: MemoryTransport
) -> None:
    """Beyond the bound events bring their own names; all arrive."""
    for i in range(3_000):
        events.observe(f"n{i}", {f"f{i}": i}, tags={"t": str(i)})
        events.observe("same", {"x": i}, tags={"t": str(i)})

    assert events.flush()
    seen = transport.observations()
    assert [(o.name, o.fields, o.tags) for o in seen[::2]] == [
        (f"n{i}", {f"f{i}": i}, {"t": str(i)}) for i in range(3_000)
    ]
    assert [(o.fields, o.tags) for o in seen[1::2]] == [
        ({"x": i}, {"t": str(i)}) for i in range(3_000)
    ]
    assert max(sid for frame in transport.frames() for sid in frame.series) < 1024


def test_frames_close_by_count(make: MakeEmitter, transport: MemoryTransport) -> None:
    """A frame holds at most `frame_events` events, and counts them all up to itself."""
    events = make(settings=EmitterSettings(frame_events=100))
    for i in range(250):
        events.observe("a", {"x": i})

    assert events.flush()
    frames = transport.frames()
    assert [len(frame) for frame in frames] == [100, 100, 50]
    assert [frame.seq for frame in frames] == [0, 1, 2]
    assert [frame.accepted for frame in frames] == [100, 200, 250]


def test_frames_close_by_bytes(make: MakeEmitter, transport: MemoryTransport) -> None:
    """A frame with large events stays below its limit."""
    events = make(settings=EmitterSettings(frame_bytes=100 << 10))
    for i in range(20):
        events.observe("a", {"text": str(i) * (30 << 10)})

    assert events.flush()
    frames = transport.frames()
    assert sum(len(frame) for frame in frames) == 20
    assert all(len(record.value) < (100 << 10) + 1_000 for record in transport.records)


def test_frames_close_by_age(make: MakeEmitter, transport: MemoryTransport, until: Any) -> None:
    """An event goes out without anybody asking for it."""
    events = make(settings=EAGER)
    events.observe("a", {"x": 1})

    until.sync(lambda: transport.observations(), within=10)

    assert events.stats().sent == 1


def test_a_frame_is_closed_after_all_its_events(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """`closed_ns` is not before any time that the emitter gave."""
    events = make(clock=Ticking())
    for i in range(1_000):
        events.observe("a", {"x": i})
        events.log("info", "x")
        with events.section("s"):
            pass

    assert events.flush()
    for frame in transport.frames():
        assert all(event.ts <= frame.closed_ns for _, event in frame.events())


def test_each_kind_that_was_used_ends_with_a_last_frame(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """The last frame of a kind is empty, is flagged and has the final counts."""
    events = make()
    events.observe("a", {"x": 1})
    events.log("info", "b")

    assert events.close()
    ends = [frame for frame in transport.frames() if frame.end]
    assert sorted(frame.kind for frame in ends) == ["log", "observation"]
    assert all((frame.seq, frame.accepted, len(frame)) == (1, 1, 0) for frame in ends)
    assert events.stats().ended
    assert transport.closed


# --- threads ------------------------------------------------------------------------------------


def test_any_thread_may_emit(make: MakeEmitter, transport: MemoryTransport) -> None:
    """Of eight threads every event arrives once, and the counts are exact."""
    events = make(settings=EAGER)
    count = 5_000

    def emit(thread: int) -> None:
        for i in range(count):
            events.observe(f"t{thread % 3}", {"thread": thread, "i": i}, step=i)
            if i % 50 == 0:
                events.observe("odd", {f"k{i % 7}": [thread, i]}, tags={"t": thread})
                with events.section("s", step=i):
                    events.log("info", "x", thread=thread)

    threads = [threading.Thread(target=emit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert events.close(30)
    plain = [o for o in transport.observations() if o.name != "odd"]
    assert sorted((o.fields["thread"], o.fields["i"]) for o in plain) == [
        (n, i) for n in range(8) for i in range(count)
    ]
    kinds = events.stats().kinds
    assert kinds["observation"].sent == 8 * (count + count // 50)
    assert kinds["profile"].sent == kinds["log"].sent == 8 * count // 50
    assert (events.stats().dropped, events.stats().buffered, events.stats().lost) == (0, 0, 0)


def test_each_thread_keeps_its_order(make: MakeEmitter, transport: MemoryTransport) -> None:
    """Events of one thread arrive in the order in which it emitted them."""
    events = make(settings=EAGER)

    def emit(thread: int) -> None:
        for i in range(2_000):
            events.observe("a", {"thread": thread, "i": i})

    threads = [threading.Thread(target=emit, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert events.close(30)
    for n in range(4):
        mine = [o.fields["i"] for o in transport.observations() if o.fields["thread"] == n]
        assert mine == list(range(2_000))


def test_two_emitters_do_not_disturb_each_other(make: MakeEmitter) -> None:
    """Each has its own id, thread and counts."""
    first, second = MemoryTransport(), MemoryTransport()
    a, b = make(transport=first), make(transport=second)
    a.observe("a", {"x": 1})
    b.observe("b", {"x": 2})

    assert a.close()
    assert b.flush()
    assert a.id != b.id
    assert [o.name for o in first.observations()] == ["a"]
    assert [o.name for o in second.observations()] == ["b"]


# --- failures -----------------------------------------------------------------------------------


def test_a_frame_that_failed_is_sent_again_before_its_successors(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """The bytes of a re-send are the same, and frames arrive in order."""
    events = make(settings=EmitterSettings(frame_events=10))
    transport.fail(3)
    for i in range(50):
        events.observe("a", {"x": i})

    assert events.flush(20)
    assert [record.value for record in transport.attempts[:4]] == [transport.records[0].value] * 4
    seqs = [frame.seq for frame in transport.frames()]
    assert seqs == list(range(len(seqs)))
    assert [o.fields["x"] for o in transport.observations()] == list(range(50))
    assert events.stats().error == ""


def test_frames_of_an_outage_arrive_when_it_ends(
    make: MakeEmitter, transport: MemoryTransport, until: Any
) -> None:
    """While the broker is away events wait, and none is lost or doubled."""
    events = make(settings=EAGER)
    transport.fail()
    for i in range(1_000):
        events.observe("a", {"x": i})
    until.sync(lambda: events.stats().error == "told to fail")

    assert not events.flush(0.01)
    transport.recover()
    assert events.flush(20)
    assert [o.fields["x"] for o in transport.observations()] == list(range(1_000))


def test_a_full_buffer_drops_the_newest_and_counts(
    make: MakeEmitter, transport: MemoryTransport, until: Any
) -> None:
    """Memory is bounded, drops are exact, and the frames say how many there were."""
    events = make(settings=EmitterSettings(buffer_bytes=1 << 20, linger_s=0.01, max_linger_s=0.01))
    transport.hang()
    emitted = 0
    while not events.stats().dropped:
        for _ in range(100):
            events.observe("a", {"x": emitted, "text": "y" * 1_000})
            emitted += 1

    stats = events.stats()
    assert stats.emitted == emitted
    assert stats.buffered * 1_000 <= 1 << 20
    transport.recover()
    until.sync(lambda: events.stats().buffered == 0)
    events.observe("a", {"x": -1})
    assert events.close()
    final = events.stats().kinds["observation"]
    assert final.sent + final.dropped["full"] == emitted + 1
    assert transport.frames()[-1].dropped == final.dropped["full"]
    kept = [o.fields["x"] for o in transport.observations()]
    assert kept[-1] == -1
    assert kept[:-1] == sorted(kept[:-1])


def test_kinds_do_not_take_each_others_room(make: MakeEmitter, transport: MemoryTransport) -> None:
    """A flood of logs costs no observation."""
    events = make(settings=EmitterSettings(buffer_bytes=1 << 20))
    transport.hang()
    while not events.stats().dropped:
        events.log("info", "x" * 10_000)
    for i in range(100):
        events.observe("a", {"x": i})

    transport.recover()
    assert events.flush(20)
    assert len(transport.observations()) == 100


def test_a_refused_frame_is_given_up_and_its_successors_go(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """A record that can never be taken leaves a gap in seq and is counted as lost."""
    events = make()
    transport.fail(1, error=RecordRefusedError("too large"))
    events.observe("a", {"x": 1})
    first = events.flush()
    events.observe("a", {"x": 2})

    assert (first, events.flush()) == (False, True)
    assert [frame.seq for frame in transport.frames()] == [1]
    assert transport.frames()[0].accepted == 2
    assert events.stats().kinds["observation"].lost == 1


def test_a_close_that_runs_into_its_deadline_sends_no_end(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """What could not be sent is counted as lost, and nobody is told that it was all."""
    events = make()
    transport.fail()
    events.observe("a", {"x": 1})

    assert not events.close(0.3)
    assert not any(frame.end for frame in transport.frames())
    stats = events.stats()
    assert (stats.ended, stats.kinds["observation"].lost, stats.buffered) == (False, 1, 0)


def test_a_transport_that_hangs_does_not_hold_up_close(
    make: MakeEmitter, transport: MemoryTransport
) -> None:
    """Close comes back without an acknowledgement."""
    events = make()
    transport.hang()
    events.observe("a", {"x": 1})

    assert not events.close(0.2)
    assert events.stats().lost == 1


def test_a_transport_that_raises_anything_does_no_harm(
    make: MakeEmitter, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception is an attempt that failed; it is logged once."""

    class Broken(MemoryTransport):
        async def send(self, record: Any) -> None:
            if len(self.attempts) < 2:
                self.attempts.append(record)
                raise ZeroDivisionError("surprise")
            await super().send(record)

    broken = Broken()
    events = make(transport=broken)
    events.observe("a", {"x": 1})

    assert events.flush(20)
    assert len(broken.observations()) == 1
    assert [r.levelname for r in caplog.records if "events are not sent" in r.message] == [
        "WARNING"
    ]


def test_close_may_be_called_twice(make: MakeEmitter, transport: MemoryTransport) -> None:
    """The second call changes nothing, and what comes later is dropped and counted."""
    events = make(announce=True)

    assert events.close()
    assert events.close()
    events.observe("late", {"x": 1})
    events.log("info", "late")
    assert len(transport.runs()) == 2
    assert events.stats().dropped == 2
    assert events.stats().kinds["log"].dropped == {"closed": 1}
    assert events.flush()


async def test_the_async_context_manager_does_not_hold_up_the_loop(
    make: MakeEmitter,
) -> None:
    """While an emitter closes, other tasks run."""
    slow = MemoryTransport(delay_s=0.05)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with make(transport=slow, announce=True) as events:
        events.observe("a", {"x": 1})
    before_close = turns
    turning.cancel()

    assert before_close > 10
    assert slow.frames()[-1].end


# --- off ----------------------------------------------------------------------------------------


def test_without_a_broker_the_emitter_is_off_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning names the variable; everything else does nothing."""
    with caplog.at_level(logging.DEBUG), Emitter(run="r") as events:
        events.observe("a", {"x": object()})
        events.profile("p", 1)
        events.log("info", "x")
        events.update({})
        with events.section("s"):
            pass

    assert not events.enabled
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "MLOPS_EVENTS_KAFKA_BROKERS" in caplog.text
    assert events.flush()
    assert events.stats().emitted == 0


def test_a_required_broker_that_is_not_set_is_an_error() -> None:
    """`required=True` turns the warning into ConfigError."""
    with pytest.raises(ConfigError, match="MLOPS_EVENTS_KAFKA_BROKERS"):
        Emitter(run="r", required=True)


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_disabled_by_the_environment_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """MLOPS_EVENTS_DISABLED wins over everything else, also over what is wrong."""
    monkeypatch.setenv("MLOPS_EVENTS_DISABLED", value)
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_PARTITIONS", "many")
    before = threading.active_count()
    transport = MemoryTransport()

    with Emitter(run="r", transport=transport, required=True) as events:
        events.observe("a", {"x": 1})

    assert not events.enabled
    assert (caplog.records, transport.attempts) == ([], [])
    assert threading.active_count() == before


def test_the_environment_describes_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLOPS_EVENTS_* and RANK fill in what the arguments leave out."""
    monkeypatch.setenv("MLOPS_EVENTS_DISABLED", "0")
    monkeypatch.setenv("MLOPS_EVENTS_RUN_ID", "from-environment")
    monkeypatch.setenv("MLOPS_EVENTS_ROLE", "validator")
    monkeypatch.setenv("MLOPS_EVENTS_UID", "7")
    monkeypatch.setenv("MLOPS_EVENTS_TAGS", "team=red")
    monkeypatch.setenv("RANK", "3")
    with Emitter(role="miner", tags={"a": "b"}, transport=MemoryTransport()) as events:
        origin = events.origin

    assert (origin.run, origin.role, origin.uid, origin.rank) == ("from-environment", "miner", 7, 3)
    assert origin.tags == {"team": "red", "a": "b"}


def test_a_run_without_an_id_gets_one() -> None:
    """Two runs that nobody named are two runs."""
    ids = set()
    for _ in range(2):
        with Emitter(transport=MemoryTransport(), announce=False) as events:
            ids.add(events.origin.run)

    assert len(ids) == 2
    assert all(ids)


@pytest.mark.parametrize(
    "arguments",
    [{"tags": {"text": "x" * 20_000}}, {"rank": "first"}, {"role": "\ud800"}, {"netuid": 1.5}],
)
def test_an_origin_that_cannot_be_sent_is_refused_at_once(arguments: dict[str, Any]) -> None:
    """What would spoil every frame is an error before the first."""
    with pytest.raises(ConfigError):
        Emitter(run="r", transport=MemoryTransport(), **arguments)


def test_a_failure_is_an_error_in_the_stats(
    make: MakeEmitter, transport: MemoryTransport, until: Any
) -> None:
    """`stats().error` says why nothing could be sent."""
    events = make(settings=EAGER)
    transport.fail(error=TransportError("broker:9092: connection refused"))
    events.observe("a", {"x": 1})

    until.sync(lambda: events.stats().error == "broker:9092: connection refused")

    assert events.stats().buffered == 1
