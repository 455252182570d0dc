"""What a node's run is called at W&B: its id, project, group and name."""

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from mlops_events.schemas.events import Origin
from mlops_events.schemas.topics import wandb_key
from mlops_events.sinks.wandb_settings import WandbSettings

__all__ = ["IdFiles", "RunName", "name_run"]

_LONGEST: Final = 64
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class RunName(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and which node's it is; `key` names the node."""

    id: str
    key: str
    project: str
    run: str
    role: str
    uid: str
    file: str = ""


def name_run(origin: Origin, settings: WandbSettings, *, replay: str = "") -> RunName:
    """Return the run of an origin: the same for all that a node emits in one training run.

    Args:
        origin: who emitted.
        settings: the sink's.
        replay: the id of the replay that a run of its own is made for.
    """
    key = wandb_key(origin).decode()
    uid = "" if origin.uid is None else str(origin.uid)
    words = "-".join(part for part in (origin.run, origin.role, uid) if part)
    prefix = settings.id_prefix.format(
        run=origin.run, role=origin.role, initial=origin.role[:1].upper()
    )
    live = RunName(
        id=_short(words, key),
        key=key,
        project=origin.project or settings.project,
        run=origin.run,
        role=origin.role,
        uid=uid,
        file=_UNFIT.sub("_", f"wandb_run_id_{prefix}{uid}") + ".txt",
    )
    if not replay:
        return live
    return msgspec.structs.replace(
        live, id=_of_replay(live.id, replay), key=f"{key} {replay}", file=""
    )


def _short(words: str, key: str) -> str:
    """Make an id that people can read, and that no other key has."""
    digest = hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
    fit = _UNFIT.sub("_", words)[: _LONGEST - len(digest) - 1]
    return f"{fit}-{digest}".lstrip("-.")


def _of_replay(run_id: str, replay: str) -> str:
    end = f"-replay-{_UNFIT.sub('_', replay)}"
    return run_id[: max(24, 127 - len(end))] + end[:100]


class IdFiles:
    """The files that keep the ids of runs, one a node.

    Args:
        folder: where they lie; no files at all if empty.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def read(self, name: RunName) -> RunName:
        """Return the run under the id that its file holds, if there is one."""
        if self._folder is None or not name.file:
            return name
        try:
            kept = (self._folder / name.file).read_text("utf-8").strip()
        except FileNotFoundError:
            return name
        return msgspec.structs.replace(name, id=kept) if kept else name

    def keep(self, name: RunName) -> None:
        """Write a run's id into its file; a file that holds it is left as it is."""
        if self._folder is None or not name.file:
            return
        path = self._folder / name.file
        if path.exists() and path.read_text("utf-8").strip() == name.id:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(name.id, "utf-8")
        fresh.replace(path)

    def known(self, name: RunName) -> bool:
        """Whether a file says that this run was there before."""
        return bool(
            self._folder is not None
            and name.file
            and (self._folder / name.file).exists()
            and (self._folder / name.file).read_text("utf-8").strip() == name.id
        )
