"""Ends the process when its event loop hangs, which its consumer's heartbeats would hide."""

import asyncio
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

EXIT_CODE: Final = 70


class Watchdog:
    """A thread that watches the loop's heart.

    Faust's consumer lives in a thread of its own and keeps its place in the group while the main
    loop does nothing at all. So somebody else must notice.

    Args:
        limit_s: how long the loop may be busy without a break.
        end: ends the process; gets the exit code.
    """

    def __init__(self, limit_s: float, *, end: Callable[[int], object] = os._exit) -> None:
        self._limit_s = limit_s
        self._end = end
        self._beat = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @property
    def behind_s(self) -> float:
        """How long ago the loop last showed that it runs."""
        return time.monotonic() - self._beat

    async def run(self) -> None:
        """Let the heart beat until cancelled."""
        self._beat = time.monotonic()
        self._thread.start()
        try:
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(self._limit_s / 20)
        finally:
            self._closed.set()

    def _watch(self) -> None:
        late = 0
        while not self._closed.wait(self._limit_s / 10):
            # Twice, since a process that was stopped for a while finds itself late once.
            late = late + 1 if self.behind_s > self._limit_s else 0
            if late < 2:
                continue
            log.critical("the event loop hangs", extra={"behind_s": round(self.behind_s, 1)})
            faulthandler.dump_traceback()
            self._end(EXIT_CODE)
            return
