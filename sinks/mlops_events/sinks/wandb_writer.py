"""Writes batches into runs: opens them, logs, waits until the rows are confirmed."""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from mlops_events.schemas.events import Run
from mlops_events.sinks.base import (
    Batch,
    Envelope,
    Rejected,
    SinkBroken,
    SinkError,
    SinkUnavailable,
)
from mlops_events.sinks.wandb_changes import Changes, changes_of
from mlops_events.sinks.wandb_core import WandbCore
from mlops_events.sinks.wandb_names import IdFiles, RunName, name_run
from mlops_events.sinks.wandb_rows import Row, Unfit, clean, row_of
from mlops_events.sinks.wandb_run import STAMP, OpenRun, begin_run
from mlops_events.sinks.wandb_settings import WandbSettings
from mlops_events.sinks.wandb_store import Found, RunStore

__all__ = ["WandbWriter"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS: Final = 8
_POLL_S: Final = (0.1, 0.5)
_SETTLE_S: Final = 10.0
"""How long a run without rows, but with a summary of some, is looked at again."""
_CLOSE_S: Final = 10.0
_LINGER_S: Final = 95.0
"""How long wandb keeps connections of a run that has ended."""
_REMEMBERED: Final = 100_000


class _Group:
    """What a batch holds for one run."""

    def __init__(self, name: RunName) -> None:
        self.name = name
        self.events: list[Envelope] = []
        self.rows: list[Row] = []
        self.changes = Changes()

    @property
    def last(self) -> tuple[int, int]:
        """The place of its last record."""
        event = self.events[-1]
        return event.incarnation, event.offset


class WandbWriter:
    """The open sink, as its thread sees it.

    Args:
        settings: the sink's.
        store: where runs are kept.
        core: wandb.
        entity: says whose the runs are, once the store was asked; empty offline.
    """

    def __init__(
        self,
        settings: WandbSettings,
        store: RunStore,
        core: WandbCore,
        *,
        entity: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._store = store
        self._core = core
        self._entity = entity
        self._replay = ""
        self._ids = IdFiles(settings.id_folder)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="wandb-run")
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._leaving: dict[str, OpenRun] = {}
        self._gone: dict[str, str] = {}  # runs that take no rows: why
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._done: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._endings: deque[float] = deque()  # when runs ended whose connections may linger
        self._abandoned = threading.Event()

    def open(self) -> None:
        """Get ready. Raises what `RunStore.check` does."""
        self._store.check()
        self._core.start()

    def write(self, batch: Batch) -> list[Rejected]:
        """Write a batch and return what is refused, once all else is confirmed.

        Raises:
            SinkUnavailable: not at present; what was logged of the batch is known when it comes
                again.
            SinkBroken: wandb does not go on in this process.
        """
        self._core.check()
        self._replay = batch.replay
        rejected: list[Rejected] = []
        groups = [g for g in self._groups(batch, rejected) if g.events and not self._is_done(g)]
        end = time.monotonic() + self._settings.confirm_s
        while groups:
            some = self._make_room(groups)
            rejected += self._write_some(some)
            for group in some:
                if group.name.key not in self._gone:
                    self._done[group.name.key] = group.last
                    self._done.move_to_end(group.name.key)
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            groups = groups[len(some) :]
            if groups and time.monotonic() > end:
                raise SinkUnavailable(f"{len(groups)} runs of this batch have to wait for a turn")
        return rejected

    def abandon(self) -> None:
        """Write nothing from now on, at once: somebody else may hold the runs. For any thread."""
        self._abandoned.set()
        self._core.kill()

    def leave(self) -> None:
        """End all open runs, which somebody else may go on with."""
        runs = list(self._open.values())
        self._open.clear()
        end = time.monotonic() + _CLOSE_S

        def finish(run: OpenRun) -> bool:
            left_s = max(0.0, end - time.monotonic())
            return run.finish(crashed=False, within_s=left_s, remove=bool(self._entity()))

        if not all(self._pool.map(finish, runs)):
            log.warning("some runs did not end in time", extra={"runs": len(runs)})
            self._core.kill()

    def close(self) -> None:
        """End all runs, and wandb."""
        self.leave()  # without core too: wandb's threads for each run end with it
        self._core.stop()
        self._pool.shutdown()
        self._store.close()

    def _groups(self, batch: Batch, rejected: list[Rejected]) -> Iterator[_Group]:
        groups: dict[str, _Group] = {}
        for record in batch.records:
            if not record.count:
                continue
            name = name_run(record.frame.origin, self._settings, replay=self._replay)
            group = groups.get(name.key)
            if group is None:
                group = groups[name.key] = _Group(name)
            for envelope in record.envelopes():
                found = _row(envelope)
                if isinstance(found, Rejected):
                    rejected.append(found)
                    continue
                if isinstance(found, Row):
                    group.rows.append(found)
                group.events.append(envelope)
        for group in groups.values():
            group.changes = changes_of(group.events)
            yield group

    def _write_some(self, groups: Sequence[_Group]) -> list[Rejected]:
        """Write as many runs as may be open."""
        refused = [one for some in self._pool.map(self._put, groups) for one in some]
        refused += self._confirm([group for group in groups if group.name.key in self._open])
        ending = [g for g in groups if g.changes.status and g.name.key in self._open]
        if not all(self._pool.map(self._end, ending)):
            raise SinkUnavailable("a run that has ended is not ended at W&B yet")
        return refused

    def _put(self, group: _Group) -> list[Rejected]:
        """Log what there is for one run; return all of it if the run takes none."""
        name, changes = group.name, group.changes
        if why := self._gone.get(name.key):
            return _refuse(group, why)
        if not group.rows and not changes.started and changes.status is not None:
            # one rank's end after another's; a crash is what the run is shown with
            ended = self._ended.get(name.key)
            if ended is not None and ended in ("crashed", changes.status):
                return []
        try:
            run = self._run_of(group)
            if run is None:
                return _refuse(group, self._gone[name.key])
            known = run.known
            run.change(changes, group.events[-1])
            run.log(group.rows, prefix=self._settings.version_prefix)
        except SinkError:
            raise
        except Exception as error:
            raise SinkBroken(f"wandb does not go on: {error!r}") from error
        if run.known > known:
            log.info("rows were known", extra={"run": name.id, "rows": run.known - known})
        return []

    def _run_of(self, group: _Group) -> OpenRun | None:
        """Return the open run of a group, opened if need be; None if it takes no rows."""
        key = group.name.key
        run = self._open.get(key)
        if run is not None and run.finishing is None and run.is_in(group.changes):
            self._open.move_to_end(key)
            return run
        leaving = run or self._leaving.get(key)
        if leaving is not None:
            self._see_off(leaving)
            self._open.pop(key, None)
            self._leaving.pop(key, None)
        run = self._begin(group)
        if run is not None:
            self._open[key] = run
        return run

    def _see_off(self, run: OpenRun) -> None:
        """Wait until a run has ended that is to be opened again."""
        in_time = run.finish(
            crashed=False, within_s=self._settings.finish_s, remove=bool(self._entity())
        )
        if in_time:
            return
        if time.monotonic() - run.progress > self._settings.stuck_s:
            raise SinkBroken(f"run {run.name.id} does not end")
        raise SinkUnavailable(f"run {run.name.id} is still being ended")

    def _begin(self, group: _Group) -> OpenRun | None:
        name = self._ids.read(group.name) if not self._replay else group.name
        entity = self._entity()
        found = self._store.look(name, ids=bool(self._replay))
        if found is None and entity and self._ids.known(name):
            self._bar(group, f"run {name.id} was deleted; its id file is {name.file}")
            return None
        if found is not None and (other := _other(name, found)):
            self._bar(group, f"run {name.id} belongs to {other}, not to {name.key}")
            return None
        try:
            run = begin_run(
                self._core,
                name,
                found,
                entity=entity,
                first=group.events[0],
                changes=group.changes,
                replay=self._replay,
            )
        except Exception as error:
            if _says_deleted(error, known=found is not None):
                self._bar(group, f"run {name.id} was deleted")
                return None
            # wandb takes the id for one in use from here on, until the process ends
            raise SinkBroken(f"run {name.id} cannot be begun: {error}") from error
        self._settle(run, name, found or Found())
        self._ids.keep(name)
        return run

    def _settle(self, run: OpenRun, name: RunName, found: Found) -> None:
        """See that nobody else's rows are still on their way."""
        if run.starting_step == found.next_step:
            return
        end = time.monotonic() + _SETTLE_S
        while not found.lines and time.monotonic() < end:
            # only a summary came before the last writer died; its rows may yet
            again = self._store.look(name, ids=False)
            if again is None or again.lines:
                break
            time.sleep(_POLL_S[1])
        else:
            if not found.lines:
                return
        raise SinkBroken(
            f"run {name.id} goes on at step {run.starting_step}, not at {found.next_step}: "
            "rows of another writer came late"
        )

    def _bar(self, group: _Group, why: str) -> None:
        """Take no rows for a run any more."""
        self._gone[group.name.key] = why
        log.error("a run takes no rows", extra={"run": group.name.id, "reason": why})

    def _confirm(self, groups: Sequence[_Group]) -> list[Rejected]:
        """Wait until everything that was logged is kept."""
        rejected: list[Rejected] = []
        waiting = {self._open[g.name.key].name.id: (g, self._open[g.name.key]) for g in groups}
        end, pause_s = time.monotonic() + self._settings.confirm_s, _POLL_S[0]
        while waiting:
            self._check()
            try:
                counts = self._store.counts(
                    [run.name for _, run in waiting.values()],
                    with_config={run.name.id for _, run in waiting.values() if run.changing},
                )
            except SinkUnavailable:
                for _, run in waiting.values():
                    run.progress = time.monotonic()
                raise
            now = time.monotonic()
            for run_id, (group, run) in list(waiting.items()):
                count = counts[run_id]
                if count is None:
                    rejected += self._deleted(group)
                elif not run.confirms(count):
                    if now - run.progress > self._settings.stuck_s:
                        raise SinkBroken(f"rows of run {run_id} do not arrive; begin anew")
                    continue
                del waiting[run_id]
            if waiting:
                if now > end:
                    some = ", ".join(list(waiting)[:3])
                    raise SinkUnavailable(f"rows of {len(waiting)} runs not confirmed yet: {some}")
                time.sleep(pause_s)
                pause_s = min(_POLL_S[1], pause_s * 1.5)
        return rejected

    def _check(self) -> None:
        if self._abandoned.is_set():
            raise SinkBroken("the partitions went to another process; this one must begin anew")
        self._core.check()

    def _deleted(self, group: _Group) -> list[Rejected]:
        """Give up a run that was deleted while it was open."""
        run = self._open.pop(group.name.key)
        run.finish(crashed=False, within_s=0.0, remove=True)
        self._bar(group, f"run {run.name.id} was deleted")
        return _refuse(group, self._gone[group.name.key])

    def _end(self, group: _Group) -> bool:
        """End a run whose program has ended; return whether that was done in time."""
        key, status = group.name.key, group.changes.status
        run = self._open[key]
        if not run.finish(
            crashed=status == "crashed",
            within_s=self._settings.finish_s,
            remove=bool(self._entity()),
        ):
            return False
        self._open.pop(key)
        self._endings.append(time.monotonic())
        self._ended[key] = status or ""
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return True

    def _is_done(self, group: _Group) -> bool:
        """Whether all of it was confirmed when the batch came before."""
        done = self._done.get(group.name.key)
        return done is not None and done[0] == group.last[0] and group.last <= done

    def _excess(self, groups: Sequence[_Group]) -> int:
        """How many runs must end before these may be open."""
        wanted = {group.name.key for group in groups}
        return len(wanted | self._open.keys()) - self._core.room

    def _make_room(self, groups: Sequence[_Group]) -> Sequence[_Group]:
        """End the runs that were idle longest, and return the first groups that may be open now."""
        now = time.monotonic()
        while self._endings and now - self._endings[0] > _LINGER_S:
            self._endings.popleft()
        may_end = max(0, self._core.turns - len(self._endings))
        some = list(groups[: self._core.room])
        while (excess := self._excess(some)) > may_end:
            some.pop()
        if not some:
            time.sleep(_POLL_S[1])
            return some
        wanted = {group.name.key for group in some}
        idle = [run for key, run in self._open.items() if key not in wanted][: max(0, excess)]

        def finish(run: OpenRun) -> None:
            self._open.pop(run.name.key)
            self._endings.append(now)
            if not run.finish(
                crashed=False, within_s=self._settings.finish_s, remove=bool(self._entity())
            ):
                self._leaving[run.name.key] = run

        list(self._pool.map(finish, idle))
        return some


def _row(envelope: Envelope) -> Row | Rejected | None:
    """Return an event's row; None if it is none but is taken all the same."""
    if not isinstance(envelope.event, Run):
        return row_of(envelope)
    try:
        clean(envelope.event.config)
    except Unfit as error:
        return Rejected(envelope, error.reason, str(error))
    return None


def _refuse(group: _Group, why: str) -> list[Rejected]:
    return [Rejected(envelope, "run_gone", why) for envelope in group.events]


def _other(name: RunName, found: Found) -> str:
    """Return whose a run is, if it is somebody else's."""
    stamp = found.config.get(STAMP)
    if not isinstance(stamp, dict):
        return ""
    whose = [stamp.get(word, "") for word in ("run", "role", "uid")]
    return "" if whose == [name.run, name.role, name.uid] else "/".join(map(str, whose))


def _says_deleted(error: Exception, *, known: bool) -> bool:
    text = str(error)
    return "previously created and deleted" in text or (known and "does not exist" in text)
