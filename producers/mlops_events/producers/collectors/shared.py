"""Collectors that all of a process share, for programs that ask without an emitter."""

import os
from typing import Any, Final

from mlops_events.producers.collectors.series import Collectors

__all__ = ["latest"]

_EVERY_S: Final = 10.0
_shared: dict[int, Collectors] = {}


def latest(*, system: bool = False, gpu: bool = False) -> dict[str, Any]:
    """Return the newest figures; the first call of a process starts to collect."""
    pid = os.getpid()  # threads do not survive a fork
    if pid not in _shared:
        _shared[pid] = Collectors(None, every_s=_EVERY_S)
    return _shared[pid].latest(system=system, gpu=gpu)
