"""Compares what was stored with what was emitted, event by event and window by window."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mlops_events.control.truth import Account, Fingerprint, TrueEvent, Truth, Windows, fingerprint
from mlops_events.control.verify_fleet import verify_fleet
from mlops_events.control.verify_turns import Turn, first_turns, turn_of
from mlops_events.schemas.events import Log, Stats, StatsKey
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.streams.by import TIME

__all__ = ["Report", "verify"]

_MAX_PROBLEMS = 20
_TOLERANCE = 1e-12
"""Of the largest sample: sums in another order differ by less, wrong ones by more."""


class Report(msgspec.Struct, kw_only=True):
    """What was found; counts of events, but for those whose name says otherwise.

    `lost` were emitted and acknowledged but are not stored; `changed` are stored with other
    values, `duplicates` twice, `extra` though nobody emitted them. `dropped` never got an id and
    `unsent` were never acknowledged: their emitters said so. `tail` are the last ones of
    `unknown_tail` emitters, which never said how many there were. `foreign` are stored events of
    other emitters, `derived` those that the streams made up themselves. `turns_missing` are series that became NaN
    or infinite without a line of log that says so. `fleet_checked` are windows
    over all nodes that every node's part has come to, `fleet_partial` those that lack one, and
    `fleet_wrong` those that numpy has otherwise. `late`, `late_by_field`, `too_old` and
    `ahead` were kept out of windows by the streams' rules. `windows_by_field` are those of
    `windows_checked` that are cut by a field, not by time.
    """

    emitters: int = 0
    emitted: int = 0
    stored: int = 0
    lost: int = 0
    changed: int = 0
    duplicates: int = 0
    extra: int = 0
    dropped: int = 0
    unsent: int = 0
    tail: int = 0
    unknown_tail: int = 0
    foreign: int = 0
    derived: int = 0
    turns_missing: int = 0
    dead_letters: int = 0
    non_finite: int = 0
    windows_expected: int = 0
    windows_checked: int = 0
    windows_by_field: int = 0
    windows_missing: int = 0
    windows_wrong: int = 0
    windows_extra: int = 0
    fleet_checked: int = 0
    fleet_partial: int = 0
    fleet_wrong: int = 0
    late: int = 0
    too_old: int = 0
    ahead: int = 0
    late_by_field: int = 0
    problems: list[str] = []

    @property
    def ok(self) -> bool:
        """True if everything is as it must be."""
        return not (
            self.lost
            or self.changed
            or self.duplicates
            or self.extra
            or self.turns_missing
            or self.windows_missing
            or self.windows_wrong
            or self.windows_extra
            or self.fleet_wrong
        )

    def note(self, problem: str) -> None:
        """Describe one of the things found, as long as there are few."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems = [*self.problems, problem]


def verify(truth: Truth, store: SQLiteStore) -> Report:
    """Compare everything that is stored with what was emitted."""
    report = Report(emitters=len(truth.emitters))
    said: set[Turn | None] = set()
    tallies = {emitter: _Tally(emitter) for emitter in truth.emitters}
    for found in store.events():
        tally = tallies.get(found.id.emitter)
        if tally is None and isinstance(found.event, Log) and _is_ours(found.event):
            report.derived += 1
            said.add(turn_of(found.event))
        elif tally is None or isinstance(found.event, Stats):
            report.foreign += 1
        else:
            report.stored += 1
            tally.store(fingerprint(found.id.kind, found.event))
    arrived: list[TrueEvent] = []
    for event in truth.events():
        report.emitted += 1
        if tallies[event.emitter].meet(event):
            arrived.append(event)
    for emitter, tally in tallies.items():
        tally.report(truth.accounts.get(emitter), report)
    for turn in first_turns(arrived) - said:
        report.turns_missing += 1
        report.note(f"not told: {turn.name}.{turn.field} was not finite at {turn.ts}")
    windows = Windows(arrived, truth.rules)
    _compare_windows(truth, store, windows, report)
    fleet = verify_fleet(store, windows.samples)
    report.fleet_checked, report.fleet_partial = fleet.checked, fleet.partial
    report.fleet_wrong = len(fleet.wrong)
    for problem in fleet.wrong:
        report.note(problem)
    report.unknown_tail = sum(not has_ended for has_ended in _ended(truth, store).values())
    return report


class _Tally:
    """The events of one emitter, as emitted and as stored."""

    def __init__(self, emitter: bytes) -> None:
        self._emitter = emitter
        self._left: Counter[Fingerprint] = Counter()
        self._emitted: set[Fingerprint] = set()
        self._missing: defaultdict[bytes, list[tuple[int, TrueEvent]]] = defaultdict(list)
        self._met: Counter[str] = Counter()
        self._last_arrived: dict[str, int] = {}

    def store(self, found: Fingerprint) -> None:
        """Take one that is stored."""
        self._left[found] += 1

    def meet(self, event: TrueEvent) -> bool:
        """Take one that was emitted, after all that are stored; return whether it arrived."""
        number = self._met[event.kind] = self._met[event.kind] + 1
        found = fingerprint(event.kind, event.values)
        self._emitted.add(found)
        if self._left[found] > 0:
            self._left[found] -= 1
            self._last_arrived[event.kind] = number
            return True
        self._missing[found.identity].append((number, event))
        return False

    def report(self, account: Account | None, report: Report) -> None:
        """Count what is left on both sides."""
        for found, count in (+self._left).items():
            for _ in range(count):
                twins = self._missing[found.identity]
                if found in self._emitted:
                    report.duplicates += 1
                    report.note(f"stored twice: an event of {self._emitter.hex()[:8]}")
                elif twins:
                    report.changed += 1
                    report.note(f"changed: {twins.pop()[1]}")
                else:
                    report.extra += 1
                    report.note(f"never emitted: an event of {self._emitter.hex()[:8]}")
        missing: defaultdict[str, list[tuple[int, TrueEvent]]] = defaultdict(list)
        for twins in self._missing.values():
            for number, event in twins:
                missing[event.kind].append((number, event))
        for kind, events in missing.items():
            self._count_missing(kind, events, account, report)
        if account is not None:
            report.dropped += sum(account.dropped.values())

    def _count_missing(
        self,
        kind: str,
        events: list[tuple[int, TrueEvent]],
        account: Account | None,
        report: Report,
    ) -> None:
        if account is None:
            behind = self._last_arrived.get(kind, 0)
            lost = [event for number, event in events if number < behind]
            report.tail += len(events) - len(lost)
            absent = 0
        else:
            lost = [event for _, event in events]
            absent = min(len(lost), account.absent(kind))
            report.unsent += max(0, absent - account.dropped.get(kind, 0))
        report.lost += len(lost) - absent
        for event in lost[absent:]:
            report.note(f"lost: {event}")


def _is_ours(line: Log) -> bool:
    """Whether the streams speak in a line of log, not a program."""
    return line.logger.startswith("mlops_events.")


def _ended(truth: Truth, store: SQLiteStore) -> dict[bytes, bool]:
    """Say of each emitter whether the store knows how many events there were."""
    ended = dict.fromkeys(truth.emitters, False)
    for found in store.emitters():
        if found.emitter in ended:
            account = truth.accounts.get(found.emitter)
            whole = {kind for kind, sent in found.sent.items() if sent.ended}
            ended[found.emitter] = account is not None and account.accepted.keys() <= whole
    return ended


def _compare_windows(truth: Truth, store: SQLiteStore, windows: Windows, report: Report) -> None:
    missing = windows.due(truth.ended)
    report.windows_expected = len(missing)
    for found in store.windows(final=True):
        if found.emitter not in truth.emitters:
            continue
        key = found.stats.key(found.emitter)
        missing.discard(key)
        if key not in windows.samples:
            report.windows_extra += 1
            report.note(f"a window without samples: {_name(key)}")
            continue
        report.windows_checked += 1
        report.windows_by_field += key.by != TIME
        report.non_finite += found.stats.nonfinite
        wrong = _differences(found.stats, windows.samples[key])
        if wrong:
            report.windows_wrong += 1
            report.note(f"wrong: {_name(key)}: {', '.join(wrong)}")
    report.windows_missing = len(missing)
    for key in missing:
        report.note(f"missing: {_name(key)}")


def _differences(stats: Stats, samples: Sequence[float]) -> list[str]:
    """Return what of a window is not as numpy has it."""
    numbers = np.array(samples)
    finite = numbers[np.isfinite(numbers)]
    right: dict[str, Any] = {
        "revision": numbers.size,
        "count": finite.size,
        "nonfinite": numbers.size - finite.size,
        "mean": float(np.mean(finite, dtype=np.longdouble)) if finite.size else None,
        "min": float(np.min(finite)) if finite.size else None,
        "max": float(np.max(finite)) if finite.size else None,
        "median": float(np.median(finite)) if finite.size else None,
    }
    near = {"mean", "median"}
    slack = _TOLERANCE * float(np.max(np.abs(finite))) if finite.size else 0.0
    wrong: list[str] = []
    for name, value in right.items():
        found = getattr(stats, name)
        same = found == value
        if not same and name in near and found is not None and value is not None:
            same = abs(found - value) <= slack
        if not same:
            wrong.append(f"{name} is {found}, numpy has {value}")
    return wrong


def _name(key: StatsKey) -> str:
    where = f"at {key.start}" if key.by == TIME else f"at {key.by} {key.start}"
    return f"{key.kind} {key.name}.{key.field} {where} of {key.emitter.hex()[:8]}"
