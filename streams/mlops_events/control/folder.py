"""The folder of a pipeline on one machine: whose it is, and where its broker is."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mlops_events.control.lock import FolderLock
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings, load, variable

__all__ = [
    "DEFAULT_FOLDER",
    "UpState",
    "kafka_of",
    "last_port",
    "read_state",
    "take_folder",
    "write_state",
]

DEFAULT_FOLDER = Path("mlops-events-data")


class UpState(msgspec.Struct, frozen=True, kw_only=True):
    """What runs: the pid of `up`, its broker, and its processes' pids; 0 while one is away.

    When `up` has ended its own pid is 0, too; what it says about the broker was true last.
    """

    pid: int
    brokers: str
    embedded: bool
    processes: dict[str, int]


@contextmanager
def take_folder(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    """Hold a folder for this process; None makes one, which goes away at the end unless kept.

    Raises:
        FolderInUseError: another process holds it.
        ConfigError: it cannot be made.
    """
    fresh = folder is None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="mlops-events-"))
    try:
        with FolderLock(folder):
            yield folder.resolve()
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ConfigError(f"{folder} cannot be the data folder: {error}") from error
    finally:
        if fresh and not keep:
            shutil.rmtree(folder, ignore_errors=True)


def write_state(folder: Path, state: UpState) -> None:
    """Write down what runs, in one piece."""
    path = folder / "up.json"
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(state))
    new.replace(path)


def read_state(folder: Path) -> UpState | None:
    """Return what runs in a folder; None if nothing does."""
    state = _last_state(folder)
    if state is None or state.pid <= 0:
        return None
    try:
        os.kill(state.pid, 0)
    except OSError:
        return None
    return state


def last_port(folder: Path) -> int | None:
    """Return the port of the broker that ran in a folder last; None if none did."""
    state = _last_state(folder)
    if state is None or not state.embedded:
        return None
    port = state.brokers.rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def kafka_of(folder: Path, *, brokers: str | None) -> KafkaSettings:
    """Return where Kafka is: as given, as set, or else the broker that runs in the folder.

    Raises:
        ConfigError: settings cannot be used, or nothing says where it is.
    """
    kafka = load(KafkaSettings, "kafka", arguments={"brokers": brokers})
    if kafka.brokers:
        return kafka
    state = read_state(folder)
    if state is None:
        raise ConfigError(
            f"no brokers; set {variable('kafka', 'brokers')}=HOST:PORT, or start "
            f"`mlops-pipeline up`, which does not run in {folder}"
        )
    return msgspec.structs.replace(kafka, brokers=state.brokers, embedded=state.embedded)


def _last_state(folder: Path) -> UpState | None:
    try:
        return msgspec.json.decode((folder / "up.json").read_bytes(), type=UpState)
    except (OSError, msgspec.MsgspecError):
        return None
