"""A lock file that only one process holds, and that is free again when the process is gone."""

import os
import sys
from pathlib import Path

from mlops_events.sinks.base import SinkUnavailable

__all__ = ["FileLock"]


class FileLock:
    """Held from its making until `release`.

    Args:
        path: the file that is locked; it stays.

    Raises:
        SinkUnavailable: another process holds it.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file)
        except OSError as error:
            os.close(self._file)
            raise SinkUnavailable(f"another process holds {path}: {error}") from error

    def release(self) -> None:
        """Let go; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
