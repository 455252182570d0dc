"""Calls a function from a daemon thread of its own, again and again."""

import threading
from collections.abc import Callable
from time import monotonic

from mlops_events.producers.lifetime import IMPORTING

__all__ = ["Timer"]

_FIRST_S = 1.0


class Timer:
    """A thread that works every so many seconds; nobody waits for it, so what it calls may hang.

    Args:
        name: what it works at.
        prepare: imports what the work needs.
        work: it is called again after it raised, and the reason is logged.
        finish: called after the last work.
        every_s: from one call to the next. The first call is a second after the start, or sooner
            if `every_s` is less.
    """

    def __init__(
        self,
        name: str,
        *,
        prepare: Callable[[], None],
        work: Callable[[], None],
        finish: Callable[[], None],
        every_s: float,
    ) -> None:
        self._name = name
        self._prepare = prepare
        self._work = work
        self._finish = finish
        self._every_s = every_s
        self._ended = threading.Event()
        self._told = ""

    def start(self) -> None:
        """Start the thread, if the interpreter still starts any."""
        thread = threading.Thread(target=self._main, name=f"mlops-events {self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._tell(error)

    def stop(self) -> None:
        """Have no more calls begin; the one that runs is not waited for."""
        self._ended.set()

    def _main(self) -> None:
        try:
            with IMPORTING:
                self._prepare()
        except Exception as error:  # the edge of a thread in somebody else's program
            self._tell(error)
            return
        due = monotonic() + min(_FIRST_S, self._every_s)
        while not self._ended.wait(max(0.0, due - monotonic())):
            try:
                self._work()
            except Exception as error:  # the same; a driver may fail in any way
                self._tell(error)
            due = max(due + self._every_s, monotonic())
        self._finish()

    def _tell(self, error: Exception) -> None:
        """Warn, not twice of the same."""
        import logging

        reason = str(error) or repr(error)
        if reason != self._told:
            self._told = reason
            logging.getLogger(__name__).warning(
                "nothing is collected of the %s: %s", self._name, reason
            )
