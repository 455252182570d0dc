"""What emitters do when their process forks or ends."""

import atexit
import os
import sys
from time import monotonic
from typing import Protocol

__all__ = ["Mortal", "forget", "keep", "remember", "watch_child"]

_EXIT_S = 2.0


class Mortal(Protocol):
    """An emitter, as its process sees it."""

    def end(self, timeout: float, *, crashed: bool) -> None:
        """Begin to close."""
        ...

    def join(self) -> None:
        """Wait until it has closed, not longer than its deadline."""
        ...

    def renew(self) -> None:
        """Become a new emitter, in a forked child."""
        ...


_living: list[Mortal] = []
_watching: list[bool] = []
_inherited: list[object] = []


def remember(emitter: Mortal) -> None:
    """Close this emitter at exit, and renew it in forked children."""
    if not _watching:
        _watching.append(True)
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_renew_all)
    _living.append(emitter)


def forget(emitter: Mortal) -> None:
    """Leave this emitter alone: it was closed."""
    if emitter in _living:
        _living.remove(emitter)


def keep(thing: object) -> None:
    """Never collect what a fork brought along: to close a parent's sockets would disturb it."""
    _inherited.append(thing)


def watch_child() -> None:
    """Close emitters at the end of a child of multiprocessing, which runs no exit functions."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    # What ended the program, if it was an exception, lies here: the interpreter has printed it.
    crashed = getattr(sys, "last_type", None) is not None
    deadline = monotonic() + _EXIT_S
    emitters = list(_living)
    for emitter in emitters:
        emitter.end(max(0.0, deadline - monotonic()), crashed=crashed)
    for emitter in emitters:
        emitter.join()


def _renew_all() -> None:
    for emitter in _living:
        emitter.renew()
