"""Windows of a replay: all samples of each, however late they arrived."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import msgspec

from mlops_events.control.replay_request import ReplayRequest, show_time
from mlops_events.schemas.events import Origin, RawKind, Stats
from mlops_events.schemas.frame import Frame
from mlops_events.streams.by import By
from mlops_events.streams.fieldvalue import reader_of
from mlops_events.streams.figures import summarise
from mlops_events.streams.sampling import Window, group_events

__all__ = ["Closed", "EmitterWindows", "OpenWindow", "ReplayWindows"]


class OpenWindow(NamedTuple):
    """Names a window of an emitter over a field."""

    emitter: bytes
    kind: RawKind
    name: str
    size: int
    start: int


class Held(msgspec.Struct, array_like=True):
    """A window whose samples may still arrive; one that is cut holds none of them.

    `newest` is the highest event time in it. `inside` says that there are samples of the range.
    """

    newest: int
    samples: Window = msgspec.field(default_factory=dict)
    cut: bool = False
    inside: bool = False


class EmitterWindows(msgspec.Struct, array_like=True):
    """The windows of one emitter by rule and start.

    `gone` holds the starts of those that were written, for rules over fields: when these are over
    does not follow from their start.
    """

    id: bytes
    origin: Origin
    held: list[dict[int, Held]]
    gone: list[set[int]]


class Closed(NamedTuple):
    """A window that nothing is added to any more; without Stats if it was cut."""

    emitter: bytes
    origin: Origin
    stats: list[Stats]
    cut: str = ""


class ReplayWindows:
    """The windows of one source partition.

    There is no late rule: a window takes every sample that arrives up to `slack` after its end, by
    the time of arrival, and is put out then. Only windows that lie in the range as a whole are.

    Args:
        rules: what windows there are.
        kind: of the events.
        request: the range, its margins and the slack.
        still_open: windows over fields that the stream has open.
        emitters: as they were saved.
    """

    def __init__(
        self,
        rules: Sequence[By],
        *,
        kind: RawKind,
        request: ReplayRequest,
        still_open: Collection[OpenWindow] = (),
        emitters: Sequence[EmitterWindows] = (),
    ) -> None:
        self._rules = rules
        self._kind: RawKind = kind
        self._since = request.since_ns
        self._until = request.until_ns
        self._slack = request.slack_ns
        self._margin = request.margin_ns
        self._still_open = still_open
        self._emitters = {emitter.id: emitter for emitter in emitters}
        self._due = [
            (self._due_ns(number, start, held), emitter.id, number, start)
            for emitter in emitters
            for number, windows in enumerate(emitter.held)
            for start, held in windows.items()
        ]
        heapify(self._due)

    def emitters(self) -> list[EmitterWindows]:
        """Return all that is held, to be saved."""
        return list(self._emitters.values())

    def take(self, frame: Frame, *, arrived_ns: int) -> int:
        """Put the events of a new frame into their windows.

        Returns:
            How many events of the range came too late for a window that was put out.
        """
        near = self._between(frame.items, self._since - self._margin, self._until + self._margin)
        ours = self._between(near, self._since, self._until)
        beyond: set[int] = set()
        for number, rule in enumerate(self._rules):
            items = ours if rule.over_time else near
            for start, batch in _split(items, frame, rule):
                if self._is_over(frame.emitter, number, start, arrived_ns):
                    beyond.update(
                        id(item) for item in self._between(batch, self._since, self._until)
                    )
                else:
                    self._add(frame, number, start, batch)
        return len(beyond)

    def pass_time(self, arrived_ns: int) -> Iterator[Closed]:
        """Yield the windows that nothing can be added to any more."""
        while self._due and self._due[0][0] <= arrived_ns:
            _, name, number, start = heappop(self._due)
            emitter = self._emitters[name]
            due_ns = self._due_ns(number, start, emitter.held[number][start])
            if due_ns > arrived_ns:
                heappush(self._due, (due_ns, name, number, start))
                continue
            yield from self._close(emitter, number, start)

    def finish(self) -> Iterator[Closed]:
        """Yield all windows that are left: everything was read."""
        self._due.clear()
        for emitter in list(self._emitters.values()):
            for number, held in enumerate(emitter.held):
                for start in sorted(held):
                    yield from self._close(emitter, number, start)

    def _between(self, items: Sequence[Any], since: int, until: int) -> Sequence[Any]:
        if all(since <= item.ts < until for item in items):
            return items
        return [item for item in items if since <= item.ts < until]

    def _is_over(self, name: bytes, number: int, start: int, arrived_ns: int) -> bool:
        rule = self._rules[number]
        if rule.over_time:
            return start + rule.size + self._slack <= arrived_ns
        emitter = self._emitters.get(name)
        return emitter is not None and start in emitter.gone[number]

    def _due_ns(self, number: int, start: int, held: Held) -> int:
        rule = self._rules[number]
        return (start + rule.size if rule.over_time else held.newest) + self._slack

    def _add(self, frame: Frame, number: int, start: int, batch: Sequence[Any]) -> None:
        emitter = self._emitters.get(frame.emitter)
        if emitter is None:
            emitter = self._emitters[frame.emitter] = EmitterWindows(
                frame.emitter,
                frame.origin,
                [{} for _ in self._rules],
                [set() for _ in self._rules],
            )
        held = emitter.held[number].get(start)
        last = max(item.ts for item in batch)
        if held is None:
            held = emitter.held[number][start] = Held(last)
            heappush(self._due, (self._due_ns(number, start, held), emitter.id, number, start))
        held.newest = max(held.newest, last)
        inside = len(self._between(batch, self._since, self._until))
        rule = self._rules[number]
        if rule.over_time:
            cut = start < self._since or start + rule.size > self._until
        else:
            cut = inside < len(batch)
        if cut or held.cut:
            held.cut = True
            held.inside = held.inside or bool(held.samples) or bool(inside)
            held.samples = {}
        else:
            for group in group_events(batch, frame, self._kind):
                group.add_to(held.samples, frame.seq)

    def _close(self, emitter: EmitterWindows, number: int, start: int) -> Iterator[Closed]:
        rule = self._rules[number]
        held = emitter.held[number].pop(start)
        if not rule.over_time:
            emitter.gone[number].add(start)
        elif not any(emitter.held) and not any(emitter.gone):
            del self._emitters[emitter.id]
        place = OpenWindow(emitter.id, self._kind, rule.name, rule.size, start)
        if (held.cut and held.inside) or (held.samples and place in self._still_open):
            yield Closed(emitter.id, emitter.origin, [], self._name(emitter, rule, start))
        elif held.samples:
            stats = list(_stats(held.samples, rule, kind=self._kind, start=start))
            yield Closed(emitter.id, emitter.origin, stats)

    def _name(self, emitter: EmitterWindows, rule: By, start: int) -> str:
        origin = emitter.origin
        at = show_time(start) if rule.over_time else f"{rule.name} {start}"
        return f"{origin.run}/{origin.role}/{origin.uid} {self._kind} at {at}"


def _split(items: Sequence[Any], frame: Frame, rule: By) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the events of each window with its start; those without the field are in none."""
    if rule.over_time:
        numbers: list[int | None] = [item.ts for item in items]
    else:
        read = reader_of(frame, rule.name)
        numbers = [read(item) for item in items]
    batches: defaultdict[int, list[Any]] = defaultdict(list)
    for number, item in zip(numbers, items, strict=True):
        if number is not None:
            batches[number // rule.size].append(item)
    for place, batch in batches.items():
        yield place * rule.size, batch


def _stats(samples: Window, rule: By, *, kind: RawKind, start: int) -> Iterator[Stats]:
    for name, cell in samples.items():
        for field, series in cell.series().items():
            count = len(series.numbers)
            figures = summarise(series.numbers)
            bad = series.bad
            yield Stats(
                kind=kind,
                name=name,
                field=field,
                start=start,
                size=rule.size,
                revision=count + (bad.count if bad else 0),
                final=True,
                count=count,
                mean=figures.mean,
                min=figures.min,
                max=figures.max,
                median=figures.median,
                nonfinite=bad.count if bad else 0,
                first_nonfinite_step=bad.first_step if bad else None,
                last_finite=series.last,
                by=rule.name,
                closed_by="replay",
            )
