"""Runs on disk, as wandb's client writes them offline: reading them back."""

import json
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from mlops_events.sinks.base import SinkBroken, SinkUnavailable
from mlops_events.sinks.wandb_names import RunName
from mlops_events.sinks.wandb_store import Count, Found

__all__ = ["RunFile", "WandbFiles"]

_BLOCK: Final = 32_768
_FILE_HEADER: Final = 7
_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


class RunFile:
    """A `.wandb` file, read on from where it was read last.

    It is a log in LevelDB's format: blocks of 32 KiB, in them pieces of records. What is being
    written when it is read is left for the next time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.last: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self._offset = _FILE_HEADER

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that came since, and note what came beside them."""
        from wandb.proto import wandb_internal_pb2

        decode: Any = vars(wandb_internal_pb2)["Record"].FromString  # its types do not know it

        for payload in self._payloads():
            record = decode(payload)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {_name(item): json.loads(item.value_json) for item in record.history.item}
                self.lines += 1
                self.last = row
                yield row
            elif kind in ("run", "config"):
                config = record.run.config if kind == "run" else record.config
                for item in config.update:
                    self.config[_name(item)] = json.loads(item.value_json)

    def read(self) -> None:
        """Read what came since."""
        for _ in self.rows():
            continue

    def _payloads(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        base, at, pieces = self._offset, 0, b""
        while True:
            left = _BLOCK - (base + at) % _BLOCK
            if left < _HEADER.size:
                at += left
                left = _BLOCK
            if at + _HEADER.size > len(data):
                return
            _, length, kind = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if kind == 0 or end > len(data):
                return
            piece = data[at + _HEADER.size : end]
            pieces = piece if kind in (_FULL, _FIRST) else pieces + piece
            at = end
            if kind in (_FULL, _LAST):
                self._offset = base + at
                yield pieces


class WandbFiles:
    """The runs below wandb's folder.

    Args:
        folder: wandb's root folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, RunFile] = {}

    def check(self) -> None:
        """See that the folder can be written to."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise SinkUnavailable(f"{self._folder}: {error}") from error

    def look(self, name: RunName, *, ids: bool) -> Found | None:
        """Return a run, None if there is none; a new file of it begins with step 0."""
        self._open.pop(name.id, None)
        paths = self._paths(name.id)
        if not paths:
            return None
        # wandb names a run's folder by the second it began in, and would write into it again
        while paths[-1].parent.name >= f"offline-run-{datetime.now():%Y%m%d_%H%M%S}":
            time.sleep(0.1)
        found: set[str] = set()
        tail: dict[str, Any] = {}
        config: dict[str, Any] = {}
        for path in reversed(paths):
            file = RunFile(path)
            for row in file.rows():
                if "sink/id" in row:
                    found.add(row["sink/id"])
            tail = tail or file.last
            config = {**file.config, **config}
            if tail and not ids:
                break
        config.pop("_wandb", None)
        return Found(tail=tail, config=config, ids=frozenset(found))

    def counts(
        self, names: Sequence[RunName], *, with_config: Collection[str]
    ) -> Mapping[str, Count | None]:
        """Return by id what the newest file of each run holds."""
        return {name.id: self._count(name.id) for name in names}

    def close(self) -> None:
        """Forget the files."""
        self._open.clear()

    def _count(self, run_id: str) -> Count:
        try:
            file = self._open.get(run_id)
            if file is None:
                file = self._open[run_id] = RunFile(self._paths(run_id)[-1])
            file.read()
        except (OSError, IndexError) as error:
            raise SinkBroken(f"the file of run {run_id} cannot be read: {error!r}") from error
        return Count(lines=file.lines, config=dict(file.config))

    def _paths(self, run_id: str) -> list[Path]:
        return sorted(self._folder.glob(f"*wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))


def _name(item: Any) -> str:
    return str(item.key or ".".join(item.nested_key))
