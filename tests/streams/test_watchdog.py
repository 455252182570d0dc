"""Watchdog: a loop that hangs ends the process, a busy one does not."""

import asyncio
import threading
import time

import pytest

from mlops_events.streams.watchdog import Watchdog


async def test_a_hung_loop_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """The stack of the hung thread is printed and the process gets its exit code."""
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    beating = asyncio.create_task(Watchdog(0.2, end=end).run())
    await asyncio.sleep(0)
    hung = ended.wait(10)  # blocks the loop
    beating.cancel()

    assert hung
    assert codes == [70]
    assert "test_a_hung_loop_is_ended" in capfd.readouterr().err


async def test_a_loop_that_takes_breaks_is_left_alone() -> None:
    """Work in pieces shorter than the limit is no hang, and a stopped watchdog sees nothing."""
    codes: list[int] = []
    watchdog = Watchdog(0.5, end=codes.append)
    beating = asyncio.create_task(watchdog.run())
    for _ in range(20):
        time.sleep(0.05)  # noqa: ASYNC251 - blocks the loop
        await asyncio.sleep(0)
    beating.cancel()
    await asyncio.wait([beating])
    watchdog._thread.join(5)

    assert not watchdog._thread.is_alive()
    assert codes == []
