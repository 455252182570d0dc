"""wandb in this process: beginning runs, and the life of the process beside it that uploads."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from mlops_events.sinks.base import SinkBroken
from mlops_events.sinks.wandb_settings import WandbSettings

__all__ = ["WandbCore", "folder_of", "in_time"]

log = logging.getLogger(__name__)

_FILES_PER_RUN: Final = 8
"""What a run may take, with what those before it left behind."""
_FILES_OPEN: Final = 6
_FILES_ENDED: Final = 3
_TURNS: Final = 2_000
_FILES_BESIDE: Final = 150
_INIT_S: Final = 45.0
_TEARDOWN_S: Final = 5.0


class WandbCore:
    """Begins runs, all of them in one process beside this one, "core".

    Nothing can be done without core, and wandb starts it only once: when it has died, the sink's
    process must end.

    `room` runs may be open at a time, and `turns` end within a minute and a half.

    Args:
        settings: the sink's.
    """

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings
        self._wandb: Any = None
        self._options: dict[str, Any] = {}
        self._process: psutil.Process | None = None
        self._before: set[int] = set()
        self._lock = threading.Lock()
        self.room = 0
        self.turns = 0

    def start(self) -> None:
        """Get wandb ready; core itself starts with the first run.

        Raises:
            SinkBroken: so few files may be open that not even a few runs can be.
        """
        wanted = self._settings.max_open
        files = _allow_files(wanted * _FILES_PER_RUN + _FILES_BESIDE + _TURNS * _FILES_ENDED)
        self.room = min(wanted, (files - _FILES_BESIDE) // _FILES_PER_RUN)
        # wandb keeps connections of a run that has ended for a minute and a half
        self.turns = (files - _FILES_BESIDE - self.room * _FILES_OPEN) // _FILES_ENDED
        if self.room < 1:
            raise SinkBroken(
                f"only {files} files may be open; a run takes {_FILES_PER_RUN} and wandb "
                f"{_FILES_BESIDE}: raise the limit (ulimit -Hn)"
            )
        if self.room < self._settings.max_open:
            log.warning("fewer runs are open at a time than wanted", extra={"runs": self.room})
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read by wandb when it is imported
        os.environ["WANDB_SILENT"] = "true"
        os.environ.pop("WANDB_SERVICE", None)  # somebody else's core
        import wandb

        self._settings.folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._before = {child.pid for child in psutil.Process().children()}
        options: dict[str, Any] = {
            "base_url": self._settings.base_url,
            "root_dir": str(self._settings.folder.absolute()),
            "console": "off",
            "silent": True,
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "disable_git": True,
            "disable_code": True,
            "save_code": False,
            "init_timeout": _INIT_S,
        }
        if self._settings.api_key:
            options["api_key"] = self._settings.api_key.reveal()
        if self._settings.mode == "online":
            # what is not confirmed comes again from Kafka: no second log on the disk
            options["x_skip_transaction_log"] = True
            options["x_file_stream_transmit_interval"] = self._settings.transmit_s
        else:
            options["x_transaction_log_flush_interval"] = 0.2
        self._options = options

    def begin(self, **run: Any) -> Any:
        """Begin a run with these arguments of `wandb.init`, and return it."""
        begun = self._wandb.init(
            mode=self._settings.mode,
            reinit="create_new",
            settings=self._wandb.Settings(**self._options),  # it writes the run's id into them
            **run,
        )
        with self._lock:
            if self._process is None:
                self._process = self._find()
        return begun

    def check(self) -> None:
        """Notice that core has died.

        Raises:
            SinkBroken: it has.
        """
        process = self._process
        if process is None:
            return
        try:
            alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            alive = False
        if not alive:
            raise SinkBroken("wandb's process that uploads has died; this one must begin anew")

    def kill(self) -> None:
        """End core at once: what it has not uploaded it uploads no more."""
        if self._process is not None:
            try:
                self._process.kill()
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        """End core; runs that are still open end with it."""
        wandb, self._wandb = self._wandb, None
        if wandb is None:
            return
        if not in_time(wandb.teardown, _TEARDOWN_S):
            self.kill()
        self._process = None

    def _find(self) -> psutil.Process | None:
        for child in psutil.Process().children():
            if child.pid not in self._before and "wandb" in child.name():
                return child
        return None


def in_time(work: Callable[[], object], seconds: float) -> bool:
    """Do something in a thread of its own and return whether it was done in time.

    A thread that is late is left behind; it keeps no process from ending. What the work raises
    is logged.
    """

    def guarded() -> None:
        try:
            work()
        except (Exception, SystemExit) as error:  # wandb raises whatever its core meets
            log.warning("wandb did not end something well", extra={"error": repr(error)})

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _allow_files(wanted: int) -> int:
    """Raise the limit of open files if it is lower, and return it; core inherits it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return int(soft)
    return int(most)


def folder_of(run: Any) -> Path:
    """Return the folder that wandb made for a run."""
    return Path(str(run.settings.sync_dir))
