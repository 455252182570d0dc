"""Tells a program when it shall end: on a signal, or when its parent is gone."""

import os
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

__all__ = ["PARENT_PIPE", "until_told_to_stop"]

PARENT_PIPE = "MLOPS_EVENTS_PARENT_PIPE"
"""Set to 1 by a parent that holds the program's standard input open for as long as it lives."""


def until_told_to_stop() -> Callable[[float], bool]:
    """Return what waits for so many seconds, and returns True as soon as the program shall end.

    SIGTERM and Ctrl-C end the program from now on only in this way.
    """
    told: SimpleQueue[None] = SimpleQueue()  # a signal may interrupt its get; not so Event.wait

    def stop(*_: object) -> None:
        told.put(None)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if os.environ.get(PARENT_PIPE) == "1":
        threading.Thread(target=watch, daemon=True).start()

    def pause(seconds: float) -> bool:
        try:
            told.get(timeout=seconds)
        except Empty:
            return False
        return True

    return pause
