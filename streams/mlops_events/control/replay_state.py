"""The file in which a replay keeps how far it is, so that it can go on after any end."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from mlops_events.control.replay_account import Account
from mlops_events.control.replay_fold import Source
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.control.replay_windows import OpenWindow
from mlops_events.schemas.errors import ConfigError
from mlops_events.sinks.base import SinkUnavailable
from mlops_events.sinks.filelock import FileLock

__all__ = ["ReplayState", "StateFile", "default_path", "shown_command"]

VERSION: Final = 1


class ReplayState(msgspec.Struct, kw_only=True):
    """A replay between two batches.

    `command` is what it was called with; `number` how often that was called anew. `seconds` is
    the time it took so far. `by` are the rules for windows, `still_open` those over fields that the stream had open when it
    began. A finished one is kept for its account and its number.
    """

    v: int = VERSION
    command: dict[str, str]
    number: int
    request: ReplayRequest
    by: list[str]
    account: Account = msgspec.field(default_factory=Account)
    sources: list[Source] = msgspec.field(default_factory=list)
    still_open: set[OpenWindow] = msgspec.field(default_factory=set)
    seconds: float = 0.0
    done: bool = False

    @property
    def id(self) -> str:
        """The replay's id, by which sinks tell what it wrote."""
        return self.request.name(self.number)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ReplayState)


def default_path(command: Mapping[str, str]) -> Path:
    """Return where the state of a replay with this command line is kept."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.blake2b(msgspec.json.encode(sorted(command.items())), digest_size=6)
    return Path(base) / "mlops-events" / "replays" / f"{name.hexdigest()}.state"


def shown_command(command: Mapping[str, str]) -> str:
    """Return a command line as it is typed."""
    words = [f"--{name} {value}" if value else f"--{name}" for name, value in command.items()]
    return " ".join(words).removeprefix("--kind ")


class StateFile:
    """The file of one replay, locked while it is used.

    Args:
        path: made with its folder if there is none.

    Raises:
        ConfigError: another process uses it, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(path.name + ".lock"))
        except SinkUnavailable as error:
            raise ConfigError(f"this replay runs already: {error}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot hold the replay's state: {error}") from error

    def read(self) -> ReplayState | None:
        """Return the state that was saved last; None if there is none.

        Raises:
            ConfigError: the file holds something else.
        """
        try:
            return _DECODER.decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"{self.path} holds no state of a replay that this version can read: {error}; "
                "name another file with --state, or delete it"
            ) from error

    def write(self, state: ReplayState) -> None:
        """Save a state in one piece: a reader sees the old or the new one.

        Raises:
            OSError: the disk does not take it.
        """
        new = self.path.with_name(self.path.name + ".new")
        new.touch(mode=0o600)  # samples of events are in it
        with new.open("wb") as file:
            file.write(_ENCODER.encode(state))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def others(self) -> Iterator[ReplayState]:
        """Yield the unfinished replays whose states lie in the same folder."""
        for path in sorted(self.path.parent.glob("*.state")):
            try:
                state = _DECODER.decode(path.read_bytes())
            except (OSError, msgspec.MsgspecError):
                continue
            if path != self.path and not state.done:
                yield state

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        self._lock.release()
