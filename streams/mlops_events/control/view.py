"""Shows in a terminal what a running pipeline does: tables that move, or plain lines."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mlops_events.control.snapshot import Moment, Snapshot, node
from mlops_events.control.supervise import Child
from mlops_events.control.verify import Report
from mlops_events.schemas.events import Log, Observation, Stats
from mlops_events.sinks.sqlite_store import StoredEmitter, StoredEvent, StoredStats

__all__ = ["TerminalDisplay", "lines", "news", "screen", "summary"]

_KINDS = ("run", "observation", "profile", "log", "stats")
_STATES = {"running": "green", "waiting": "yellow", "ended": "dim"}
_LEVELS = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}
_NODES = 12
_LINE_S = 2.0
_RATE_LOOKS = 11
_VALUES = 4
_FLEET_NS = 600_000_000_000
"""A version whose newest window is older is not shown any more."""


class TerminalDisplay:
    """Shows a pipeline on a console: moving tables on a terminal with colours, else lines.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: Moment | None = None
        self._shown_s = -math.inf
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=_RATE_LOOKS)
        self._live: Live | None = None
        if console.is_terminal and not console.no_color:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "TerminalDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """Show how everything is."""
        self._seen.append((moment.elapsed_s, moment.snapshot.counts))
        for line in news(self._before, moment):
            self.say(line)
        rates = self._rates()
        if self._live is not None:
            self._live.update(screen(moment, rates), refresh=True)
        elif moment.elapsed_s - self._shown_s >= _LINE_S:
            self._shown_s = moment.elapsed_s
            for line in lines(self._before, moment, rates):
                self.say(line)
        self._before = moment

    def _rates(self) -> dict[str, float]:
        (began_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        over_s = max(now_s - began_s, 1.0)
        return {kind: (count - before.get(kind, 0)) / over_s for kind, count in now.items()}


def screen(moment: Moment, rates: Mapping[str, float]) -> RenderableType:
    """Return everything as tables; `rates` are per second by kind."""
    head = Text.assemble(
        (f"{moment.elapsed_s:5.0f} s  ", "bold"),
        f"broker {moment.brokers}, data in {moment.folder}; Ctrl-C stops",
    )
    top = Table.grid(padding=(0, 4))
    top.add_row(_processes(moment), _kinds(moment.snapshot, rates))
    snapshot = moment.snapshot
    if not snapshot.events:
        return Group(head, Text(), top, Text("waiting for the first events", "dim"))
    return Group(
        head,
        Text(),
        top,
        _nodes(moment),
        _fleet(moment),
        _windows(snapshot.windows),
        _logs(snapshot.logs),
    )


def news(before: Moment | None, now: Moment) -> Iterator[str]:
    """Yield what happened for the first time, or went wrong, since the moment before."""
    had = before.snapshot if before else Snapshot()
    known = {child.program.name: child.restarts for child in before.children} if before else {}
    for child in now.children:
        name = child.program.name
        if name not in known:
            yield f"{name} started, log in {child.log}"
    if now.snapshot.events and not had.events:
        yield f"first events after {now.elapsed_s:.1f} s"
    if now.snapshot.stats and not had.stats:
        yield f"first aggregates after {now.elapsed_s:.1f} s"


def lines(before: Moment | None, now: Moment, rates: Mapping[str, float]) -> Iterator[str]:
    """Yield how everything is, without tables."""
    snapshot = now.snapshot
    rate = sum(rate for kind, rate in rates.items() if kind != "stats")
    nodes = sum(emitter.status == "running" for emitter in snapshot.emitters)
    yield (
        f"{now.elapsed_s:6.1f} s  {snapshot.events} events (+{rate:.0f}/s), {snapshot.stats}"
        f" aggregates, {nodes} nodes | {' '.join(map(_state, now.children))}"
    )
    if before is not None and snapshot.windows != before.snapshot.windows:
        stats = snapshot.windows[0].stats
        yield (
            f"          {_clean(_start(stats))} {_clean(node(snapshot.windows[0].origin))}"
            f" {_clean(f'{stats.name}.{stats.field}')} n={stats.count} mean={_number(stats.mean)}"
            f" min={_number(stats.min)} max={_number(stats.max)} median={_number(stats.median)}"
        )


def summary(report: Report) -> str:
    """Return what verification found, as text."""
    counts = ", ".join(
        f"{getattr(report, name)} {name}" for name in report.__struct_fields__ if name != "problems"
    )
    verdict = "everything arrived and is right" if report.ok else "NOT as it must be"
    return "\n".join((f"{verdict}: {counts}", *report.problems))


def _state(child: Child) -> str:
    again = f" ({child.restarts} restarts)" if child.restarts else ""
    return f"{child.program.name} {child.state}{again}"


def _processes(moment: Moment) -> Table:
    table = _table("process", "state", "pid", "restarts")
    for child in moment.children:
        table.add_row(
            child.program.name,
            Text(child.state, _STATES[child.state]),
            str(child.pid or "-"),
            str(child.restarts or ""),
        )
    return table


def _kinds(snapshot: Snapshot, rates: Mapping[str, float]) -> Table:
    table = _table("kind", ">stored", ">per second")
    for kind in _KINDS:
        count = snapshot.counts.get(kind, 0)
        table.add_row(kind, f"{count:,}", f"{rates.get(kind, 0.0):,.1f}")
    return table


def _nodes(moment: Moment) -> Table:
    table = _table("node", "version", "status", ">events", ">heard", "last values", stretch=True)
    last: dict[bytes, StoredEvent] = {}
    for event in moment.snapshot.latest:
        known = last.get(event.id.emitter)
        if known is None or event.cursor > known.cursor:
            last[event.id.emitter] = event
    emitters = moment.snapshot.emitters
    shown = sorted(emitters, key=_heard, reverse=True)[:_NODES]
    for emitter in sorted(shown, key=lambda e: (e.origin.run, str(e.origin.uid), e.origin.role)):
        newest = last.get(emitter.emitter)
        table.add_row(
            _text(node(emitter.origin)),
            _text(emitter.origin.version),
            emitter.status or "",
            f"{sum(sent.stored for sent in emitter.sent.values()):,}",
            f"{max(0.0, (moment.now_ns - _heard(emitter)) / 1e9):.0f} s ago",
            _text("" if newest is None else _values(newest.event)),
        )
    if len(emitters) > len(shown):
        table.add_row(f"and {len(emitters) - len(shown)} more", "", "", "", "", "")
    return table


def _heard(emitter: StoredEmitter) -> int:
    return emitter.last_ns


def _values(event: Any) -> str:
    if not isinstance(event, Observation):
        return ""
    values = [f"{name}={_value(value)}" for name, value in list(event.fields.items())[:_VALUES]]
    return f"{event.name} " + " ".join(values)


def _fleet(moment: Moment) -> Table:
    """Return how many nodes of each version report, by the series that most of them have."""
    table = _table("fleet", "version", ">reporting", ">missing")
    fullest: dict[tuple[str, str, str], StoredStats] = {}
    for found in moment.snapshot.fleet:
        stats, origin = found.stats, found.origin
        if stats.by == "time" and moment.now_ns - stats.start - stats.size > _FLEET_NS:
            continue
        place = (origin.run, origin.role, origin.version)
        known = fullest.get(place)
        if known is None or _fullness(stats) > _fullness(known.stats):
            fullest[place] = found
    for (_, role, version), found in sorted(fullest.items()):
        missing = found.stats.nodes_missing or 0
        table.add_row(
            _text(role),
            _text(version),
            str(found.stats.nodes),
            Text(str(missing or ""), "yellow"),
        )
    if not fullest:
        table.add_row("no window of all nodes yet", "", "", "")
    return table


def _fullness(stats: Stats) -> tuple[int, int]:
    return stats.nodes or 0, stats.start


def _windows(windows: Sequence[StoredStats]) -> Table:
    table = _table(
        "aggregate", "node", "window", ">count", ">mean", ">min", ">max", ">median", ">not finite"
    )
    for window in windows:
        stats = window.stats
        table.add_row(
            _text(f"{stats.name}.{stats.field}"),
            _text(node(window.origin)),
            _text(_window(stats)),
            str(stats.count),
            *map(_number, (stats.mean, stats.min, stats.max, stats.median)),
            str(stats.nonfinite or ""),
        )
    if not windows:
        table.add_row("the first window is still open", *[""] * 8)
    return table


def _window(stats: Stats) -> str:
    size = f"{stats.size / 1e9:g} s" if stats.by == "time" else str(stats.size)
    return f"{_start(stats)} +{size}"


def _start(stats: Stats) -> str:
    return _time(stats.start) if stats.by == "time" else f"{stats.by} {stats.start}"


def _logs(logs: Sequence[tuple[StoredEvent, Log]]) -> Table:
    table = _table("log", "node", "line", stretch=True)
    for stored, line in logs:
        beside = " ".join(f"{name}={_value(value)}" for name, value in line.fields.items())
        table.add_row(
            Text(_clean(f"{_time(line.ts)} {line.level}"), _LEVELS.get(line.level, "")),
            _text(node(stored.origin)),
            _text(f"{line.message} {beside}".strip()),
        )
    return table


def _table(*columns: str, stretch: bool = False) -> Table:
    """Return an empty table; numbers' columns start with ">", the last one may take all space."""
    table = Table(box=None, header_style="bold", pad_edge=False, expand=stretch)
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if stretch and column == columns[-1] else None,
        )
    return table


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9).astimezone().strftime("%H:%M:%S")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"[{len(value)}]"
    return str(value)


def _text(text: str) -> Text:
    """Events say what they like: neither markup nor the terminal's own orders are obeyed."""
    return Text(_clean(text))


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
