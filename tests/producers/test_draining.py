"""What waits in a spool is shown as it is, and drained with an account of every frame."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlops_events.producers.cli import main
from mlops_events.producers.draining import Account, drain
from mlops_events.producers.spool import Spool, Stored, waiting
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas.events import Log, Origin
from mlops_events.schemas.frame import FrameEncoder
from mlops_events.schemas.topics import Topics
from mlops_events.schemas.values import ENCODER

NAME = "a" * 32
TOPICS = Topics("test")
Leave = Callable[..., None]


def frame(seq: int) -> Stored:
    """Return a frame of two lines."""
    encoder = FrameEncoder(emitter=bytes.fromhex(NAME), kind="log", origin=Origin(run="r"))
    events = [ENCODER.encode(Log(ts=1, level="info", message=f"{seq}.{k}")) for k in range(2)]
    value = encoder.encode(events, seq=seq, closed_ns=1, accepted=2 * seq + 2, dropped=0)
    return Stored(seq, 2, value)


@pytest.fixture
def leave(tmp_path: Path) -> Leave:
    """Return a function that leaves frames as a process does that dies."""

    def leave(*frames: Stored, name: str = NAME) -> None:
        spool = Spool(tmp_path, name, limit=1 << 30, drops="oldest", sync=False)
        queue = spool.queue("log")
        for one in frames:
            queue.append(one)
        spool.close()

    return leave


def test_what_waits_is_shown_with_who_holds_it(tmp_path: Path, leave: Leave) -> None:
    """Looking changes nothing."""
    leave(frame(0), frame(1))
    spool = Spool(tmp_path, "b" * 32, limit=1 << 30, drops="oldest", sync=False)
    spool.queue("run").append(frame(0))
    found = {one.emitter: one for one in waiting(tmp_path)}
    again = waiting(tmp_path)
    spool.close()

    dead, live = found[NAME], found["b" * 32]
    assert (dead.live, dead.kind, dead.frames, dead.events) == (False, "log", 2, 4)
    assert (live.live, live.kind, live.frames, live.events) == (True, "run", 1, 2)
    assert dead.bytes > 2 * len(frame(0).value)
    assert sorted(again, key=lambda one: one.emitter) == [dead, live]


async def test_every_frame_is_accounted_for(tmp_path: Path, leave: Leave) -> None:
    """What is no frame is counted, and the good rest goes on in its order."""
    leave(frame(0), Stored(1, 3, b"rubbish"), frame(2))
    transport = MemoryTransport()
    told: list[int] = []
    account = await drain(
        tmp_path, TOPICS, transport, timeout_s=5, progress=lambda one: told.append(one.frames)
    )

    assert account == Account(frames=2, events=4, unreadable=1)
    assert told == [1, 1, 2]
    assert [record.topic for record in transport.records] == [TOPICS.raw("log")] * 2
    assert [sent.seq for sent in transport.frames()] == [0, 2]
    assert transport.closed
    assert waiting(tmp_path) == []


async def test_a_broker_that_is_silent_for_too_long_costs_nothing(
    tmp_path: Path, leave: Leave
) -> None:
    """All stays where it was, and the next attempt sends it."""
    leave(frame(0))
    silent = MemoryTransport()
    silent.fail()
    account = await drain(tmp_path, TOPICS, silent, timeout_s=1, progress=lambda _: None)
    left = waiting(tmp_path)
    later = await drain(tmp_path, TOPICS, MemoryTransport(), timeout_s=5, progress=lambda _: None)

    assert (account.frames, account.error) == (0, "told to fail")
    assert [one.frames for one in left] == [1]
    assert later == Account(frames=1, events=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["spool"], "no folder; give one or set MLOPS_EVENTS_SPOOL_DIR"),
        (["spool", "/nowhere"], "/nowhere is no folder"),
        (["spool", ".", "--drain"], "no brokers; give --brokers HOST:PORT"),
        (["spool", ".", "--timeout", "soon"], "'soon' is no duration"),
    ],
)
def test_wrong_usage_is_said_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_the_command_tells_what_waits(
    tmp_path: Path, leave: Leave, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 1 while something of a dead process does."""
    empty = main(["spool", os.fspath(tmp_path)])
    nothing = capsys.readouterr().out
    leave(frame(0), frame(1))
    code = main(["spool", os.fspath(tmp_path)])

    assert (empty, nothing) == (0, f"nothing waits in {tmp_path}\n")
    assert code == 1
    shown = capsys.readouterr().out
    assert shown.startswith("aaaaaaaa log: 4 events in 2 frames, 0.0 MiB, ")
    assert shown.endswith("; its process is gone\n")
