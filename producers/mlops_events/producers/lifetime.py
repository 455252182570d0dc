"""What emitters do when their process forks or ends."""

import atexit
import os
import sys
from threading import Lock
from time import monotonic
from typing import Protocol

__all__ = ["IMPORTING", "Mortal", "forget", "keep", "remember", "watch_child"]

IMPORTING = Lock()
"""Held by a worker's thread while it imports modules, and by whoever forks: a child must not inherit
modules that are half imported, which it could never import again."""

_EXIT_S = 2.0
_IMPORT_S = 30.0


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
_holding: list[bool] = []


def remember(emitter: Mortal) -> None:
    """Close this emitter at exit, and renew it in forked children."""
    if not _watching:
        # These watch forks, too. Imported while a fork waits for us, they would give back at its
        # end what they had not taken at its start.
        import concurrent.futures.thread  # noqa: F401
        import logging  # noqa: F401

        _watching.append(True)
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_hold_imports,
                after_in_parent=_release_imports,
                after_in_child=_renew_all,
            )
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
    # At a prompt, and in a notebook, it is any mistake that was made there, and ended nothing.
    crashed = getattr(sys, "last_type", None) is not None and not hasattr(sys, "ps1")
    deadline = monotonic() + _EXIT_S
    emitters = list(_living)
    for emitter in emitters:
        emitter.end(max(0.0, deadline - monotonic()), crashed=crashed)
    for emitter in emitters:
        emitter.join()


def _hold_imports() -> None:
    # Not for ever: the thread may itself wait for a module that the forking thread imports. But
    # long, since on a busy machine a thread that imports aiokafka takes seconds for it.
    _holding.append(IMPORTING.acquire(timeout=_IMPORT_S))


def _release_imports() -> None:
    if _holding.pop():
        IMPORTING.release()


def _renew_all() -> None:
    _holding.clear()
    # Not released: the thread that has it, if we gave up waiting for it, is not in this process.
    IMPORTING._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as logging does
    for emitter in _living:
        emitter.renew()
