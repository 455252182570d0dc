"""A lock on a folder that dies with its holder, and tells who that is."""

import os
import time
from pathlib import Path
from types import TracebackType

from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["FolderInUseError", "FolderLock"]

_RETRY_S = 0.05


class FolderInUseError(MlopsEventsError):
    """Another process holds the folder; the message names it."""


class FolderLock:
    """Holds a folder for this process; the system frees it however the process ends.

    Args:
        folder: made if it is missing.
        wait_s: how long a holder that is about to end may take.

    Raises:
        FolderInUseError: on entering, another process holds the folder.
    """

    def __init__(self, folder: Path, *, wait_s: float = 0) -> None:
        self._folder = folder
        self._wait_s = wait_s
        self._fd = -1

    def __enter__(self) -> "FolderLock":
        import fcntl  # not on Windows, where only commands without a folder work

        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_RETRY_S)
                    continue
                holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise FolderInUseError(
                    f"{self._folder} is in use by process {holder}; stop that one, or give another"
                    " folder with --data"
                ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
