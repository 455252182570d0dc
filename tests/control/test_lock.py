"""The lock on a folder: one process at a time, and it names the one that has it."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mlops_events.control.lock import FolderInUseError, FolderLock


def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    """With what to do about it."""
    with (
        FolderLock(tmp_path / "data"),
        pytest.raises(FolderInUseError, match=rf"data is in use by process {os.getpid()};.*--data"),
        FolderLock(tmp_path / "data"),
    ):
        pass


def test_it_is_free_again_afterwards(tmp_path: Path) -> None:
    """However often."""
    for _ in range(3):
        with FolderLock(tmp_path):
            pass


def test_the_death_of_its_holder_frees_it(processes: Any, until: Any, tmp_path: Path) -> None:
    """Nothing is left behind that somebody must remove; who waits a little gets it."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from mlops_events.control.lock import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    holder = processes.start(sys.executable, "-c", code, tmp_path)
    until.sync(holder.stdout)
    holder.signal(9)

    with FolderLock(tmp_path, wait_s=10):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
