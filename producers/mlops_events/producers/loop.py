"""The event loop of the worker's thread, imported there only, since asyncio is slow to import."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

__all__ = ["Signal", "run"]


class Signal:
    """Wakes everybody who waits for it at that moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake them."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next `fire`."""
        await self._event.wait()


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up in its own thread once the interpreter's pool has shut down."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        try:
            return await super().getaddrinfo(host, port, **options)
        except RuntimeError:
            return socket.getaddrinfo(host, port, **options)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, then cancel what is left and close the loop without a word."""
    loop = _Loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=0.2))
        asyncio.set_event_loop(None)
        loop.close()
