"""Verification: finds nothing wrong with a sound store, and every single thing that is."""

# ruff: noqa: S608 - the tests damage a database of their own
import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlops_events.control.truth import Truth, WindowRules, give_up_large
from mlops_events.control.verify import Report, verify
from mlops_events.control.verify_fleet import fleet_has_arrived
from mlops_events.producers import EmitterSettings
from mlops_events.producers.simulate import FleetSettings, run_fleet
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.truth import Truth as TruthWriter
from mlops_events.schemas.events import RAW_KINDS, Log, Origin
from mlops_events.schemas.frame import StatsFrame, decode_frame, decode_stats
from mlops_events.schemas.topics import Topics
from mlops_events.sinks.base import Batch, FrameRecord, Record, StatsRecord
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.streams.crew import Crews
from mlops_events.streams.derived import DerivedLog
from mlops_events.streams.fleet import Fleet
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.outputs import FrameOut, StatsOut
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
SETTINGS = StreamSettings(by=("time:10s", "field:step/20", "field:window"))
RULES = WindowRules(by=SETTINGS.rules, lateness=10 * SECOND)


class Time:
    """A clock that goes on when somebody waits."""

    now = START

    def __call__(self) -> int:
        return self.now

    def pause(self, seconds: float) -> bool:
        """Let the time pass at once."""
        self.now += round(seconds * SECOND)
        return False


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a fleet emitted and what our streams and sink made of it."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "truth").mkdir()
    transports: list[MemoryTransport] = []

    def transport() -> MemoryTransport:
        transports.append(MemoryTransport())
        return transports[-1]

    time = Time()
    with TruthWriter(folder / "truth" / "1.jsonl") as truth:
        run_fleet(
            FleetSettings(nodes=8, duration_s=40, rate=5, seed=3),
            emitter=EmitterSettings(),
            truth=truth,
            clock=time,
            pause=time.pause,
            transport=transport,
        )
    store(folder, transports)
    return folder


def store(folder: Path, transports: list[MemoryTransport]) -> None:
    """Take what was sent through our streams into our sink."""
    settings, topics = SETTINGS, Topics("t")
    fleet_settings = FleetStatsSettings()
    fleet = Fleet(fleet_settings, Crews(fleet_settings))
    records: list[Record] = []
    for kind in RAW_KINDS:
        state = PartitionState(settings, topics=topics, kind=kind, partition=0)
        values = [r.value for t in transports for r in t.records if r.topic.endswith(f".{kind}.v1")]
        for offset, value in enumerate(values):
            now_ms = (START + 40 * SECOND) // 1_000_000
            for out in state.fold(offset, now_ms, value):
                if out.topic == topics.stats:
                    fleet.take(decode_stats(out.value), log_ns=now_ms * 1_000_000)
                if out.topic == topics.sink("sqlite"):
                    place = {"topic": out.topic, "partition": 0, "offset": len(records)}
                    if isinstance(out, FrameOut):
                        records.append(FrameRecord(frame=decode_frame(out.value), **place))
                    elif isinstance(out, StatsOut):
                        records.append(StatsRecord(frame=decode_stats(out.value), **place))
    for made in fleet.rest(now_ns=START + 60 * SECOND):
        frame = StatsFrame(emitter=made.emitter, origin=made.origin, stats=made.stats)
        place = {"topic": topics.sink("sqlite"), "partition": 0, "offset": len(records)}
        records.append(StatsRecord(frame=frame, **place))
    line = Log(ts=START, level="info", message="ours", logger="mlops_events.fleet")
    said = DerivedLog(emitter=bytes(16), origin=Origin(run="simulation"), log=line).frame()
    place = {"topic": topics.sink("sqlite"), "partition": 0, "offset": len(records)}
    records.append(FrameRecord(frame=said, **place))

    async def write() -> None:
        sink = SQLiteSink(SQLiteSettings(path=folder / "events.db"))
        await sink.open()
        await sink.write(Batch(records))
        await sink.close()

    asyncio.run(write())


@pytest.fixture
def check(sound: Path, tmp_path: Path) -> Callable[..., Report]:
    """Verify a copy of the sound store after some SQL was run on it."""

    def run(*statements: str, keep: Callable[[str], bool] = lambda line: True) -> Report:
        path = tmp_path / "events.db"
        with sqlite3.connect(sound / "events.db") as db:
            db.execute("VACUUM INTO ?", (str(path),))
        db.close()
        db = sqlite3.connect(path)
        with db:
            for statement in statements:
                assert db.execute(statement).rowcount == 1
        db.close()
        (tmp_path / "truth").mkdir()
        lines = (sound / "truth" / "1.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "truth" / "1.jsonl").write_text("".join(filter(keep, lines)))
        with SQLiteStore(path) as reader:
            return verify(Truth(tmp_path / "truth", RULES), reader)

    return run


def wrong(report: Report) -> dict[str, Any]:
    """What is not as it must be."""
    events = ("lost", "changed", "duplicates", "extra")
    names = (*events, "windows_missing", "windows_wrong", "windows_extra")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def test_a_sound_store_is_found_sound(check: Callable[..., Report]) -> None:
    """Every event and every window was looked at."""
    report = check()

    assert report.problems == []
    assert wrong(report) == {}
    assert report.ok
    assert report.emitted == report.stored > 1500
    assert report.windows_expected == report.windows_checked > 300
    assert 300 < report.windows_by_field < report.windows_checked - 300
    assert report.emitters > 8
    assert report.non_finite > 0
    assert report.fleet_checked > 200
    assert (report.fleet_partial, report.fleet_wrong, report.turns_missing) == (0, 0, 0)
    assert report.derived > 10
    assert report.unknown_tail == report.foreign == report.dropped == report.unsent == 0


def test_it_is_known_when_everything_has_arrived(sound: Path) -> None:
    """An empty store has not, the sound one has."""
    truth = Truth(sound / "truth", RULES)

    with SQLiteStore(sound / "events.db") as reader:
        assert truth.has_arrived(reader)


A_LOSS = """(
    SELECT e.id FROM event e JOIN series s ON s.id = e.series WHERE s.name = 'training' LIMIT 1)"""
A_WINDOW = """(emitter, kind, name, field, by, size, start) = (
    SELECT emitter, kind, name, field, by, size, start FROM stats
    WHERE name = 'system' AND field = 'cpu_percent' LIMIT 1)"""
THE_END = """(
    SELECT max(e.id) FROM event e JOIN series s ON s.id = e.series WHERE s.kind = 'run')"""


A_FLEET = """(emitter, kind, name, field, by, size, start) = (
    SELECT emitter, kind, name, field, by, size, start FROM stats
    WHERE nodes = 2 AND field = 'loss' LIMIT 1)"""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("mean = mean * 1.0001", "mean is"),
        ("nodes = 3", "nodes is 3, numpy has 2"),
        ("median_of_medians = NULL", "median_of_medians is None"),
        ("count = count + 1", "count is"),
    ],
)
def test_a_wrong_window_of_a_fleet_is_found(
    check: Callable[..., Report], change: str, problem: str
) -> None:
    """And what is wrong with it."""
    report = check(f"UPDATE stats SET {change} WHERE {A_FLEET}")

    assert not report.ok
    assert (report.fleet_wrong, report.fleet_partial, report.windows_wrong) == (1, 0, 0)
    assert problem in report.problems[0]


@pytest.mark.parametrize("damage", ["DELETE FROM stats", "UPDATE stats SET revision = 1"])
def test_a_window_of_a_fleet_that_lacks_a_node_is_counted(
    check: Callable[..., Report], damage: str
) -> None:
    """What a node adds may come when its window is kept no longer."""
    report = check(f"{damage} WHERE {A_FLEET}")

    assert report.ok
    assert (report.fleet_wrong, report.fleet_partial) == (0, 1)


def test_it_is_known_when_the_fleets_windows_have_arrived(sound: Path, tmp_path: Path) -> None:
    """One that lacks a node has not."""
    with sqlite3.connect(sound / "events.db") as db:
        db.execute("VACUUM INTO ?", (str(tmp_path / "events.db"),))
    db.close()
    with SQLiteStore(tmp_path / "events.db") as reader:
        whole = fleet_has_arrived(reader)
        with sqlite3.connect(tmp_path / "events.db") as db:
            db.execute(f"UPDATE stats SET revision = revision - 1 WHERE {A_FLEET}")
        db.close()

        assert (whole, fleet_has_arrived(reader)) == (True, False)


def test_a_deleted_event_is_lost(check: Callable[..., Report]) -> None:
    """And the windows that it is in hold more than arrived."""
    report = check(f"DELETE FROM event WHERE id = {A_LOSS}")

    assert not report.ok
    assert report.lost == 1
    assert report.windows_wrong > 0
    assert "lost: observation training at step" in report.problems[0]


def test_a_changed_value_is_found(check: Callable[..., Report]) -> None:
    """Neither as lost nor as one too many."""
    report = check(
        f"UPDATE event SET body = '[9.5' || substr(body, instr(body, ',')) WHERE id = {A_LOSS}"
    )

    assert not report.ok
    assert (report.changed, report.lost, report.extra) == (1, 0, 0)
    assert "changed: observation training" in report.problems[0]


def test_an_event_that_is_stored_twice_is_found(check: Callable[..., Report]) -> None:
    """Under two ids."""
    again = f"SELECT {THE_END} + 1, series, ts, step, body, tags FROM event WHERE id = {A_LOSS}"
    report = check(f"INSERT INTO event {again}")

    assert wrong(report) == {"duplicates": 1}


@pytest.mark.parametrize("column", ["mean", "min", "max", "median", "count", "nonfinite"])
def test_a_changed_window_is_found(check: Callable[..., Report], column: str) -> None:
    """Whichever of its figures it is, if only by a millionth."""
    more = "+ 1" if column in ("count", "nonfinite") else "* 1.000001"
    report = check(f"UPDATE stats SET {column} = {column} {more} WHERE {A_WINDOW}")

    assert wrong(report) == {"windows_wrong": 1}
    assert f"{column} is " in report.problems[0]
    assert "numpy has" in report.problems[0]


def test_a_series_whose_first_bad_sample_is_not_told_is_found(check: Callable[..., Report]) -> None:
    """The streams must say so in a line of log."""
    report = check(
        "DELETE FROM event WHERE id = "
        "(SELECT id FROM event WHERE body LIKE '%grad_norm became %' LIMIT 1)"
    )

    assert not report.ok
    assert (report.turns_missing, wrong(report)) == (1, {})
    assert "not told: training.grad_norm was not finite at" in report.problems[0]


@pytest.mark.parametrize("damage", ["DELETE FROM stats", "UPDATE stats SET final = 0"])
def test_a_missing_window_is_found(check: Callable[..., Report], damage: str) -> None:
    """As is one that never became final."""
    report = check(f"{damage} WHERE {A_WINDOW}")

    assert wrong(report) == {"windows_missing": 1}
    assert "missing: observation system.cpu_percent at" in report.problems[0]


def test_an_event_that_nobody_emitted_is_found(check: Callable[..., Report]) -> None:
    """A line of the truth that is taken away makes one, and its windows have a sample too many."""
    seen: list[str] = []

    def without_a_log(line: str) -> bool:
        if '"kind":"log"' in line and not seen:
            seen.append(line)
            return False
        return True

    assert wrong(check(keep=without_a_log)) == {"extra": 1}


def test_the_tail_of_an_emitter_without_an_account_is_no_loss(
    check: Callable[..., Report],
) -> None:
    """Nobody knows how many events a process had in memory when it was killed."""
    report = check(
        f"DELETE FROM event WHERE id = {THE_END}",
        keep=lambda line: '"t":"emitter"' not in line,
    )

    assert report.tail == 1
    assert report.lost == 0
    assert report.unknown_tail == report.emitters


def test_a_line_of_truth_that_was_cut_off_is_left_out(
    check: Callable[..., Report], sound: Path, tmp_path: Path
) -> None:
    """The simulator may be killed while it writes."""
    lines = (sound / "truth" / "1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "1.jsonl").write_bytes(b"".join(lines[:10]) + lines[10][:-5])

    assert len(list(Truth(tmp_path / "cut", RULES).events())) == 10


def test_truth_does_not_fill_the_disk(tmp_path: Path) -> None:
    """The oldest run's goes first; that of a run that goes on is emptied again and again."""
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).write_bytes(bytes(60))
    first = give_up_large(tmp_path, max_bytes=100)
    left = [path.name for path in tmp_path.glob("*.jsonl")]
    with (tmp_path / "2.jsonl").open("ab", buffering=0) as running:
        running.write(bytes(60))
        second = give_up_large(tmp_path, max_bytes=100)
        running.write(bytes(60))
        third = give_up_large(tmp_path, max_bytes=100)

    assert (first, second, third) == (False, True, False)
    assert left == ["2.jsonl"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
