"""What people see: tables on a terminal, lines elsewhere, nothing that a terminal would obey."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from mlops_events.control.snapshot import Moment, Snapshot
from mlops_events.control.supervise import Child, Program
from mlops_events.control.verify import Report
from mlops_events.control.view import TerminalDisplay, screen, summary
from mlops_events.schemas.events import EventId, Log, Observation, Origin, Stats
from mlops_events.sinks.sqlite_store import Sent, StoredEmitter, StoredEvent, StoredStats

SECOND = 1_000_000_000
NOW = 1_767_225_600 * SECOND
EMITTER = bytes(16)
ORIGIN = Origin(run="r", role="miner", uid=7, version="1.4.0")


def stored(event: Observation | Log, cursor: int = 1) -> StoredEvent:
    id_ = EventId(EMITTER, type(event).__name__.lower(), 0, cursor)
    return StoredEvent(cursor=cursor, id=id_, origin=ORIGIN, event=event, tags={})


def busy(*, name: str = "training") -> Snapshot:
    sent = Sent(
        stored=12, last_seq=3, accepted=12, dropped=0, ended=False, first_ns=0, last_ns=NOW - SECOND
    )
    line = Log(ts=NOW, level="warning", message=f"{name} is odd", fields={"step": 3})
    return Snapshot(
        counts={"observation": 12, "stats": 1},
        emitters=[
            StoredEmitter(
                emitter=EMITTER, origin=ORIGIN, status="running", sent={"observation": sent}
            )
        ],
        latest=[stored(Observation(ts=NOW, name=name, fields={"loss": 2.123456, "ok": [1, 2]}))],
        windows=[
            StoredStats(
                emitter=EMITTER,
                origin=ORIGIN,
                stats=Stats(
                    kind="observation",
                    name=name,
                    field="loss",
                    start=NOW,
                    size=10 * SECOND,
                    revision=9,
                    final=True,
                    count=8,
                    mean=2.5,
                    min=1.0,
                    max=4.0,
                    median=2.25,
                    nonfinite=1,
                ),
            )
        ],
        logs=[(stored(line), line)],
    )


def moment(snapshot: Snapshot, *, elapsed_s: float = 3.0) -> Moment:
    child = Child(Program(name="stream", argv=()), Path("logs/stream.log"))
    child.state, child.pid, child.restarts = "running", 4711, 2
    return Moment(
        elapsed_s=elapsed_s,
        now_ns=NOW,
        brokers="127.0.0.1:9",
        folder=Path("data"),
        children=[child],
        snapshot=snapshot,
    )


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def plain(out: io.StringIO) -> TerminalDisplay:
    return TerminalDisplay(Console(file=out, width=60))


def test_without_a_terminal_there_are_lines(plain: TerminalDisplay, out: io.StringIO) -> None:
    """What came for the first time, how much there is, and the newest aggregate; unbroken."""
    plain.show(moment(Snapshot(), elapsed_s=1))
    plain.show(moment(busy(), elapsed_s=4))

    assert out.getvalue().splitlines()[1:] == [
        "   1.0 s  0 events (+0/s), 0 aggregates, 0 nodes | stream running (2 restarts)",
        "first events after 4.0 s",
        "first aggregates after 4.0 s",
        "   4.0 s  12 events (+4/s), 1 aggregates, 1 nodes | stream running (2 restarts)",
        out.getvalue().splitlines()[-1],
    ]
    assert "miner/7 training.loss n=8 mean=2.5 min=1 max=4 median=2.25" in out.getvalue()


def of_fleet(*, version: str, nodes: int, missing: int, name: str = "training") -> StoredStats:
    return StoredStats(
        emitter=version.ljust(16).encode(),
        origin=Origin(run="r", role="miner", version=version),
        stats=Stats(
            kind="observation",
            name=name,
            field="loss",
            start=NOW - 20 * SECOND,
            size=10 * SECOND,
            revision=9,
            final=not missing,
            count=9,
            nodes=nodes,
            nodes_missing=missing,
        ),
    )


@pytest.mark.parametrize("width", [40, 80])
def test_each_version_has_a_line_with_its_nodes(out: io.StringIO, width: int) -> None:
    """By the series that most nodes have; it fits a narrow terminal."""
    fleet = [
        of_fleet(version="1.4.0", nodes=120, missing=3),
        of_fleet(version="1.4.0", nodes=7, missing=0, name="gpu"),
        of_fleet(version="1.5.0", nodes=8, missing=0),
    ]
    now = moment(msgspec.structs.replace(busy(), fleet=fleet))
    console = Console(file=out, width=width, color_system=None)
    console.print(screen(now, {}))

    lines = [line.split() for line in out.getvalue().splitlines()]
    at = lines.index(["fleet", "version", "reporting", "missing"])
    assert lines[at + 1 : at + 3] == [["miner", "1.4.0", "120", "3"], ["miner", "1.5.0", "8"]]


def test_lines_do_not_come_too_often(plain: TerminalDisplay, out: io.StringIO) -> None:
    """Every two seconds will do."""
    for elapsed_s in (1.0, 1.5, 2.0, 2.5, 3.5):
        plain.show(moment(Snapshot(), elapsed_s=elapsed_s))

    assert out.getvalue().count(" aggregates, ") == 2


def test_on_a_terminal_there_are_tables(out: io.StringIO) -> None:
    """Processes, kinds, nodes, aggregates and logs."""
    console = Console(file=out, force_terminal=True, width=200, height=60, color_system="truecolor")
    with TerminalDisplay(console) as display:
        display.show(moment(busy()))
    shown = out.getvalue()

    for text in ("4711", "miner/7", "1.4.0", "training loss=2.123 ok=[2]", "training.loss"):
        assert text in shown
    for text in ("2.25", "training is odd step=3", "1 s ago", "broker 127.0.0.1:9, data in data"):
        assert text in shown


def test_before_the_first_event_a_terminal_says_so(out: io.StringIO) -> None:
    """Rather than show empty tables."""
    console = Console(file=out, force_terminal=True, width=120, height=40)
    with TerminalDisplay(console) as display:
        display.show(moment(Snapshot()))

    assert "waiting for the first events" in out.getvalue()


def test_without_colours_a_terminal_gets_lines(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR asks for it."""
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=out, force_terminal=True)
    with TerminalDisplay(console) as display:
        display.show(moment(busy()))

    assert " aggregates, 1 nodes | " in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_events_cannot_give_orders_to_the_terminal(out: io.StringIO, terminal: bool) -> None:
    """Nor write in rich's markup."""
    console = Console(
        file=out, force_terminal=terminal, width=200, height=60, no_color=not terminal
    )
    with TerminalDisplay(console) as display:
        display.show(moment(Snapshot()))
        display.show(moment(busy(name="[red]x\x1b]0;title\x07"), elapsed_s=9))

    assert "\x1b]0;" not in out.getvalue()
    assert "[red]x\\x1b]0;title\\x07" in out.getvalue()


def test_the_summary_says_what_is_wrong() -> None:
    """First of all whether anything is."""
    good = summary(Report(emitted=3, stored=3))
    bad = summary(Report(emitted=3, stored=2, lost=1, problems=["lost: an event"]))

    assert good.startswith("everything arrived and is right: ")
    assert "3 emitted, 3 stored, 0 lost" in good
    assert bad.startswith("NOT as it must be: ")
    assert bad.endswith("\nlost: an event")
