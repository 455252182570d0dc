"""Tells a program when it shall end: on a signal."""

import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue

__all__ = ["until_told_to_stop"]


def until_told_to_stop() -> Callable[[float], bool]:
    """Return what waits for so many seconds, and returns True as soon as the program shall end.

    SIGTERM and Ctrl-C end the program from now on only in this way.
    """
    told: SimpleQueue[None] = SimpleQueue()  # a signal may interrupt its get; not so Event.wait

    def stop(*_: object) -> None:
        told.put(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def pause(seconds: float) -> bool:
        try:
            told.get(timeout=seconds)
        except Empty:
            return False
        return True

    return pause
