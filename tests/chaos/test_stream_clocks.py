"""Emitters whose time or order is odd: each fills its own windows, and nobody else's are harmed."""

import time
from typing import Any

import pytest

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
SHOWN = {"MLOPS_EVENTS_STREAM_PROVISIONAL_S": "1"}
"""Windows of an emitter that never ends are compared as they are shown while it is silent."""


@pytest.fixture
def now() -> int:
    """Return the start of a window, about a minute ago."""
    return (time.time_ns() // SECOND - 60) // 10 * 10 * SECOND


async def test_a_clock_is_set_back_an_hour(fleet: Any, now: int) -> None:
    """What its emitter sends meanwhile is late and routed; a new process has windows of its own."""
    node = fleet.add(1, now)
    before = [node.frame() for _ in range(20)]
    node.now -= HOUR
    meanwhile = [node.frame(late=True) for _ in range(5)]
    node.now += HOUR
    after = [*(node.frame() for _ in range(5)), node.frame(end=True)]
    successor = fleet.add(1, now - HOUR)
    fleet.start("w0")
    await fleet.send(node, *before, *meanwhile, *after)
    await fleet.send(successor, *(successor.frame(end=n == 19) for n in range(20)))

    await fleet.check()


async def test_a_frame_is_sent_again_after_its_successor(fleet: Any, now: int) -> None:
    """One that had never arrived fills its windows; one that had is a repeat."""
    node = fleet.add(1, now)
    frames = [node.frame(end=n == 19) for n in range(20)]
    fleet.start("w0")
    await fleet.send(node, frames[0], frames[2], frames[1], frames[0], frames[1])
    await fleet.send(node, *frames[4:8], frames[3], *frames[8:], frames[10])

    await fleet.check()


async def test_the_spool_of_a_dead_process_comes_hours_later(fleet: Any, now: int) -> None:
    """Frames hours old, between those of its successor: both have complete windows."""
    dead = fleet.add(1, now - 5 * HOUR)
    successor = fleet.add(1, now)
    spool = [dead.frame() for _ in range(25)]
    worker = fleet.start("w0", **SHOWN)
    await fleet.send(dead, *spool[:7])
    await fleet.send(successor, *(successor.frame() for _ in range(15)))
    await fleet.running("w0")
    for value in spool[5:]:
        await fleet.send(dead, value)
        await fleet.send(successor, successor.frame())
    await fleet.send(successor, successor.frame(end=True))
    await fleet.end(worker)
    fleet.restart("w0")

    await fleet.check(all_final=False)


async def test_a_fast_clock_closes_nobody_elses_windows(fleet: Any, now: int) -> None:
    """Two hours ahead, beside a node that falls silent in the middle of a window."""
    fast, silent = fleet.add(1, now + 2 * HOUR), fleet.add(1, now)
    fleet.start("w0", **SHOWN)
    for n in range(20):
        await fleet.send(fast, fast.frame(end=n == 19))
        await fleet.send(silent, silent.frame())

    await fleet.check(all_final=False)
