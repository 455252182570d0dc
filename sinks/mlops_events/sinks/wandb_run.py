"""One run that is open: its rows, its config, its end."""

import logging
import shutil
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

from mlops_events.sinks.base import Envelope
from mlops_events.sinks.wandb_changes import Changes, config_of_origin
from mlops_events.sinks.wandb_core import WandbCore, folder_of
from mlops_events.sinks.wandb_names import RunName
from mlops_events.sinks.wandb_rows import Row, VersionPrefix, finite_step, values_of
from mlops_events.sinks.wandb_store import Count, Found

__all__ = ["OpenRun", "begin_run"]

log = logging.getLogger(__name__)

STAMP: Final = "mlops_events"
"""The entry of a run's config by which it is known whose run it is, and how far its config goes."""


class OpenRun:
    """A run that rows are logged to, each once.

    Args:
        name: its name.
        run: wandb's.
        found: what was there when it was opened.
        replay: whether it takes a replay, whose rows are known by their ids and not by their order.
        config: its config as it was begun with.
    """

    def __init__(
        self, name: RunName, run: Any, found: Found, *, replay: bool, config: dict[str, Any]
    ) -> None:
        self.name = name
        self._run = run
        self._replay = replay
        self._ids = set(found.ids)
        self._mark = _mark_of(found.tail)
        self._step = finite_step(found.tail.get("global_step")) or 0
        self._config = config
        self._wanted: dict[str, Any] | None = None  # the stamp of a config that is on its way
        self._first_line = self._lines = found.lines
        self.logged = 0
        self.known = 0
        self.progress = time.monotonic()
        self.finishing: threading.Thread | None = None

    def log(self, rows: Iterable[Row], *, prefix: VersionPrefix) -> None:
        """Log rows, less those that are known; raises whatever wandb does."""
        log_row = self._run.log
        if self._lines >= self._first_line + self.logged:
            self.progress = time.monotonic()
        for row in rows:
            step = self._step if row.step is None else row.step
            if self._is_known(row):
                self.known += 1
                continue
            values = values_of(row, prefix=prefix, step=step)
            if self._replay:
                values["sink/id"] = _id_of(row)
                self._ids.add(values["sink/id"])
            log_row(values)
            self._mark = (row.inc, row.pos)
            self._step = step
            self.logged += 1

    def change(self, changes: Changes, at: Envelope) -> None:
        """Apply what Run events and versions say; raises whatever wandb does.

        Args:
            changes: what they say.
            at: the last event they come from.
        """
        new = merged(self._config, changes)
        if changes.name and changes.name != self._run.name:
            self._run.name = changes.name
        if new == self._config:
            return
        stamp = {**self._config[STAMP], "inc": at.incarnation, "offset": at.offset}
        if stamp == self._config[STAMP]:  # written in part before: tell the two apart all the same
            stamp["part"] = stamp.get("part", 0) + 1
        new[STAMP] = stamp
        self._run.config.update(
            {k: v for k, v in new.items() if self._config.get(k, STAMP) != v or k == STAMP},
            allow_val_change=True,
        )
        self._config, self._wanted = new, stamp

    def is_in(self, changes: Changes) -> bool:
        """Whether its group and job type are those that Run events say."""
        return (not changes.group or changes.group == self._run.group) and (
            not changes.job_type or changes.job_type == self._run.job_type
        )

    @property
    def starting_step(self) -> int:
        """The step that wandb gives to its first row."""
        return int(self._run.starting_step)

    @property
    def changing(self) -> bool:
        """Whether a change of its config is not confirmed yet."""
        return self._wanted is not None

    def confirms(self, count: Count) -> bool:
        """Whether everything that was logged is kept, by what the store says."""
        if count.lines != self._lines:
            self._lines, self.progress = count.lines, time.monotonic()
        if self._wanted is not None and count.config.get(STAMP) == self._wanted:
            self._wanted = None
        return self._wanted is None and count.lines >= self._first_line + self.logged

    def finish(self, *, crashed: bool, within_s: float, remove: bool) -> bool:
        """End the run and return whether that was done in time; may be asked again.

        Args:
            crashed: whether it shall be shown as crashed.
            within_s: how long to wait; the thread that does it goes on beyond.
            remove: whether to remove its folder then.
        """
        if self.finishing is None:
            self.finishing = threading.Thread(
                target=self._finish, args=(crashed, remove), daemon=True
            )
            self.finishing.start()
        self.finishing.join(within_s)
        return not self.finishing.is_alive()

    def _finish(self, crashed: bool, remove: bool) -> None:
        try:
            self._run.finish(exit_code=int(crashed))
        except Exception as error:  # its rows are confirmed; whether core lives is asked elsewhere
            log.warning("a run did not end well", extra={"run": self.name.id, "error": repr(error)})
        if remove:
            shutil.rmtree(folder_of(self._run), ignore_errors=True)

    def _is_known(self, row: Row) -> bool:
        if self._replay:
            return _id_of(row) in self._ids
        return self._mark is not None and self._mark[0] == row.inc and row.pos <= self._mark[1]


def begin_run(
    core: WandbCore,
    name: RunName,
    found: Found | None,
    *,
    entity: str,
    first: Envelope,
    changes: Changes,
    replay: str,
) -> OpenRun:
    """Begin a run, or resume it, and return it; raises whatever wandb does.

    Args:
        core: wandb.
        name: the run.
        found: what there is of it; None if it is new.
        entity: whose it is; empty offline.
        first: the event that it is begun for.
        changes: what Run events say.
        replay: the id of the replay that it is for.
    """
    origin = first.origin
    stamp = {"run": name.run, "role": name.role, "uid": name.uid}
    known = found or Found()
    config = {**known.config, **config_of_origin(origin, first.tags)}
    config[STAMP] = {**stamp, **known.config.get(STAMP, {})}
    config = merged(config, changes)
    shown = changes.name or f"{name.role or 'node'}-{name.uid}".rstrip("-")
    run = core.begin(
        entity=entity or None,
        project=name.project,
        id=name.id,
        resume="must" if found is not None and entity else "allow",
        config=config,
        group=changes.group or origin.group or name.run or None,
        job_type=changes.job_type or origin.job_type or name.role or None,
        tags=[tag[:64] for tag in (name.role, origin.environment, replay) if tag],
        name=None
        if found is not None and not changes.name
        else f"{shown} ({replay})"
        if replay
        else shown,
    )
    # wandb forgets these at every resume; with step_sync it would fill in steps of its own
    run.define_metric("sink/*", hidden=True, step_sync=False)
    run.define_metric("*", step_metric="global_step", step_sync=False)
    return OpenRun(name, run, known, replay=bool(replay), config=config)


def merged(config: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Return a config with what changed."""
    new = {**config, **{k: v for k, v in changes.config.items() if k not in (STAMP, "_wandb")}}
    history = list(config.get("version_history") or [])
    history += [version for version in changes.versions if version not in history]
    if changes.versions:
        new["version_history"] = history
        new["current_version"] = changes.versions[-1]
    return new


def _mark_of(tail: dict[str, Any]) -> tuple[int, int] | None:
    inc, pos = tail.get("sink/inc"), tail.get("sink/pos")
    if inc is None or pos is None:
        return None  # a run that somebody else began
    return int(inc), int(pos)


def _id_of(row: Row) -> str:
    found = row.envelope.id
    if isinstance(found, tuple):  # of Stats
        return "/".join([found.emitter.hex(), *map(str, found[1:])])
    return str(found)
