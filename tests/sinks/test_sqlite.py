"""The sqlite sink: the contract, and what is its own."""

import asyncio
import re
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mlops_events.schemas.events import (
    EventId,
    Log,
    Observation,
    Origin,
    Profile,
    Run,
    Stats,
    StatsKey,
)
from mlops_events.schemas.frame import Free, Row, Series
from mlops_events.sinks.base import Batch, Sink, SinkBroken, SinkUnavailable
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink, SQLiteStore
from mlops_events.sinks.testing import SinkContract, frame_record, sample_batch, stats_record

SECOND = 1_000_000_000
DOCS = Path(__file__).parents[2] / "docs" / "sinks.md"


def ids_in(path: Path) -> list[EventId | StatsKey]:
    """The ids of all that a store holds."""
    with SQLiteStore(path) as store:
        events: list[EventId | StatsKey] = [stored.id for stored in store.events()]
        return events + [w.stats.key(w.emitter) for w in store.windows()]


class TestContract(SinkContract):
    """The sqlite sink passes the tests of every sink."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "below" / "events.db"

    def make_sink(self) -> Sink:
        return SQLiteSink(SQLiteSettings(path=self.path))

    async def stored(self) -> Sequence[EventId | StatsKey]:
        return ids_in(self.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "events.db"


async def write(path: Path, *batches: Batch) -> None:
    """Write batches with a sink of their own."""
    sink = SQLiteSink(SQLiteSettings(path=path))
    await sink.open()
    try:
        for batch in batches:
            assert not await sink.write(batch)
    finally:
        await sink.close()


def window(*, revision: int, final: bool, mean: float) -> Stats:
    """The Stats of one window at some revision."""
    return Stats(
        kind="observation",
        name="training",
        field="loss",
        start=0,
        size=10 * SECOND,
        revision=revision,
        final=final,
        count=revision,
        mean=mean,
    )


async def test_events_come_back_as_they_were(path: Path) -> None:
    """Every kind of event is read back equal to what was written."""
    batch = sample_batch()
    await write(path, batch)

    with SQLiteStore(path) as store:
        read = {stored.id: stored for stored in store.events()}
    for envelope in batch:
        if isinstance(envelope.id, EventId):
            assert read[envelope.id].event == envelope.event
            assert read[envelope.id].origin == envelope.origin


@pytest.mark.parametrize(
    ("shown", "winner"),
    [
        ([(1, False), (2, False)], (2, False)),
        ([(2, False), (1, False)], (2, False)),
        ([(2, False), (2, True)], (2, True)),
        ([(2, True), (2, False)], (2, True)),
        ([(2, True), (3, False)], (3, False)),
    ],
)
async def test_the_higher_revision_of_a_window_wins(
    path: Path, shown: list[tuple[int, bool]], winner: tuple[int, bool]
) -> None:
    """Stats of one key give way to a higher (revision, final), in whatever order they come."""
    windows = [window(revision=r, final=f, mean=r + f / 2) for r, f in shown]
    await write(path, *(Batch([stats_record([w])]) for w in windows))

    with SQLiteStore(path) as store:
        (kept,) = store.windows()
    assert (kept.stats.revision, kept.stats.final) == winner
    assert kept.stats.mean == winner[0] + winner[1] / 2


async def test_stats_of_one_batch_are_compared_too(path: Path) -> None:
    """Two revisions in one batch leave the higher one."""
    shown = [window(revision=2, final=True, mean=2.0), window(revision=1, final=False, mean=1.0)]
    await write(path, Batch([stats_record(shown)]))

    with SQLiteStore(path) as store:
        (kept,) = store.windows()
    assert kept.stats.mean == 2.0


async def test_an_emitters_counts_are_those_of_its_last_frame(path: Path) -> None:
    """What an emitter sent is known from its frames' headers, empty ones too, in any order."""
    events = [Free(0, None, "a", {"x": 1})]
    await write(
        path,
        Batch([frame_record([], seq=2, accepted=7, end=True)]),
        Batch([frame_record(events, seq=0, accepted=1)]),
        Batch([frame_record(events, seq=0, accepted=1)]),
    )

    with SQLiteStore(path) as store:
        (emitter,) = store.emitters()
    sent = emitter.sent["observation"]
    assert (sent.accepted, sent.stored, sent.missing) == (7, 1, 6)
    assert (sent.last_seq, sent.ended) == (2, True)
    assert sent.first_ns < sent.last_ns == emitter.last_ns


async def test_a_redriven_event_is_added_to_its_frame(path: Path) -> None:
    """A frame that is known takes an event that it lacked, and counts it."""
    events = [Free(k, None, "a", {"x": k}) for k in range(3)]
    whole = frame_record(events, accepted=3)
    part = msgspec.structs.replace(whole, frame=_only(whole, [0, 2]))
    again = msgspec.structs.replace(whole, frame=_only(whole, [1]), redriven=True)
    await write(path, Batch([part]), Batch([again]), Batch([again]))

    with SQLiteStore(path) as store:
        (emitter,) = store.emitters()
        assert [stored.id.index for stored in store.events()] == [0, 1, 2]
    assert emitter.sent["observation"].missing == 0


def _only(record, indices):  # type: ignore[no-untyped-def]
    from mlops_events.schemas.frame import decode_frame

    return decode_frame(record.frame.encode(only=indices))


async def test_runs_put_the_words_of_their_emitters_together(path: Path) -> None:
    """A run has the merged config of its Run events, its span, and the state of its emitters."""

    def runs(emitter: int, seq: int, *events: Run) -> Batch:
        name = bytes([emitter]) * 16
        return Batch([frame_record(events, kind="run", emitter=name, seq=seq)])

    await write(
        path,
        runs(1, 0, Run(ts=10, state="start", config={"lr": 1, "seed": 7}, project="p", name="n")),
        runs(2, 0, Run(ts=20, state="start", config={"lr": 2})),
        runs(1, 1, Run(ts=30, state="update", config={"epochs": 3})),
        runs(1, 2, Run(ts=40, state="end", status="finished")),
    )

    with SQLiteStore(path) as store:
        (run,) = store.runs()
        assert run.config == {"lr": 2, "seed": 7, "epochs": 3}
        assert (run.project, run.name, run.emitters) == ("p", "n", 2)
        assert (run.started_ns, run.ended_ns, run.status) == (10, 40, "running")
    await write(path, runs(2, 1, Run(ts=50, state="end", status="crashed")))
    with SQLiteStore(path) as store:
        assert store.runs()[0].status == "crashed"
        assert {e.status for e in store.emitters()} == {"finished", "crashed"}


async def test_an_old_start_does_not_reopen_a_run(path: Path) -> None:
    """A Run event that comes again changes nothing."""
    start = Batch([frame_record([Run(ts=1, state="start")], kind="run", seq=0)])
    end = Batch([frame_record([Run(ts=2, state="end", status="finished")], kind="run", seq=1)])
    await write(path, start, end, start)

    with SQLiteStore(path) as store:
        assert store.runs()[0].status == "finished"


async def test_points_are_a_fields_values_over_time(path: Path) -> None:
    """A series' values come in order of time from all its emitters and all lists of fields."""
    table = [Series(0, "training", ["loss", "lr"]), Series(1, "training", ["lr", "loss"])]
    rows = [Row(0, 3, 3, [0.3, 1.0]), Row(1, 1, 1, [1.0, 0.1]), Row(0, 2, 2, [float("inf"), 1.0])]
    free = Free(4, 4, "training", {"loss": 0.4})
    other = Free(5, 5, "training", {"lr": 0.4})
    await write(path, Batch([frame_record([*rows, free, other], series=table)]))

    with SQLiteStore(path) as store:
        points = store.points(run="contract", name="training", field="loss")
        newest = store.points(run="contract", name="training", field="loss", limit=2)
        middle = store.points(run="contract", name="training", field="loss", since_ns=2, until_ns=4)
    assert [(p.ts, p.step, p.value) for p in points] == [
        (1, 1, 0.1),
        (2, 2, float("inf")),
        (3, 3, 0.3),
        (4, 4, 0.4),
    ]
    assert [p.ts for p in newest] == [3, 4]
    assert [p.ts for p in middle] == [2, 3]


async def test_the_latest_event_is_found_for_each_emitter_and_name(path: Path) -> None:
    """A page shows what is new of everyone."""
    records = [
        frame_record(
            [Free(ts, ts, "training", {"loss": ts}) for ts in (5, 9, 7)],
            emitter=bytes([uid]) * 16,
            origin=Origin(run="r", role="miner", uid=uid),
        )
        for uid in (1, 2)
    ]
    await write(path, Batch(records))

    with SQLiteStore(path) as store:
        latest = store.latest(run="r")
    assert [(s.origin.uid, s.event) for s in latest] == [
        (uid, Observation(ts=9, name="training", fields={"loss": 9}, step=9)) for uid in (1, 2)
    ]


async def test_logs_are_the_newest_lines_in_order(path: Path) -> None:
    """Lines are found by level and time."""
    lines = [
        Log(ts=ts, level=level, message=f"{level} {ts}")
        for ts, level in ((1, "info"), (2, "error"), (3, "info"), (4, "error"))
    ]
    await write(path, Batch([frame_record(lines, kind="log")]))

    with SQLiteStore(path) as store:
        newest = [line.ts for _, line in store.logs(limit=3)]
        errors = [line.ts for _, line in store.logs(levels=["error"])]
        early = [line.ts for _, line in store.logs(until_ns=3)]
    assert newest == [2, 3, 4]
    assert errors == [2, 4]
    assert early == [1, 2]


async def test_events_are_read_on_from_a_cursor(path: Path) -> None:
    """A terminal that shows what arrives asks for what came after."""
    await write(path, sample_batch(seq=0))
    with SQLiteStore(path) as store:
        seen = store.last_cursor()
        assert list(store.events(after=seen)) == []
        await write(path, sample_batch(seq=1))
        new = list(store.events(after=seen))
        some = list(store.events(after=seen, limit=2))

        assert {stored.id.seq for stored in new} == {1}
        assert some == new[:2]
        assert len(list(store.events(kinds=["log"]))) == 2
        assert not list(store.events(run="another"))


async def test_the_view_shows_events_with_their_fields(path: Path) -> None:
    """People who query the file see names, values and who sent them."""
    await write(path, sample_batch())

    with sqlite3.connect(path) as db:
        rows = db.execute(
            "SELECT uid, step, fields ->> 'loss', fields -> 'losses', tags ->> 'phase' "
            "FROM events WHERE run = 'contract' AND name = 'training' ORDER BY ts"
        ).fetchall()
        free = db.execute("SELECT fields FROM events WHERE name = 'evaluation'").fetchone()
        profile = db.execute(
            "SELECT fields ->> 'duration_ns' FROM events WHERE kind = 'profile'"
        ).fetchone()
    db.close()
    assert rows[0] == ("7", 0, 1.5, "[0.5,0.25]", "train")
    assert free == ('{"accuracy":0.5,"passed":true,"note":null}',)
    assert profile == (1_500_000,)


async def test_ever_new_fields_do_not_make_ever_new_series(path: Path) -> None:
    """A program that invents field names costs rows of events, not of series."""
    records = []
    for seq in range(300):
        table = [Series(0, "odd", [f"step_{seq}"])]
        records.append(frame_record([Row(0, seq, seq, [1.0])], seq=seq, series=table))
    await write(path, Batch(records[:200]))
    await write(path, Batch(records[200:]))

    with SQLiteStore(path) as store:
        fields = [next(iter(s.event.fields)) for s in store.events()]  # type: ignore[union-attr]
    with sqlite3.connect(path) as db:
        (series,) = db.execute("SELECT count(*) FROM series").fetchone()
    db.close()
    assert fields == [f"step_{seq}" for seq in range(300)]
    assert series < 100


async def test_two_sinks_do_not_write_one_file(path: Path) -> None:
    """The second writer waits until the first one is gone."""
    first, second = (SQLiteSink(SQLiteSettings(path=path)) for _ in range(2))
    await first.open()
    with pytest.raises(SinkUnavailable, match="another process holds"):
        await second.open()
    await first.close()
    await second.open()
    await second.close()


async def test_a_replay_writes_beside_the_sink_that_delivers(path: Path) -> None:
    """Two writers of the same emitters and series, in turn: everything is stored once."""
    live, replay = (SQLiteSink(SQLiteSettings(path=path)) for _ in range(2))
    replay.expect_replay("a-1")
    await live.open()
    await replay.open()
    try:
        for seq in range(20):
            table = [Series(0, "odd", [f"value_{seq // 2}"])]
            record = frame_record([Row(0, seq, seq, [1.0])], seq=seq, series=table)
            for sink in (live, replay) if seq % 2 else (replay, live):
                assert not await sink.write(Batch([record], replay="a-1" * (sink is replay)))
    finally:
        await replay.close()
        await live.close()

    assert len(ids_in(path)) == 20
    with SQLiteStore(path) as store:
        (emitter,) = store.emitters()
        assert emitter.sent["observation"].stored == 20


async def test_a_replay_notices_what_the_other_one_deletes(path: Path) -> None:
    """An emitter that was forgotten as too old, and comes again, does not become another one."""
    days = [0.0]
    settings = SQLiteSettings(path=path, keep_s=86_400)
    live = SQLiteSink(settings, now=lambda: days[0] * 86_400)
    replay = SQLiteSink(settings)
    replay.expect_replay("a-1")
    await live.open()
    await replay.open()
    try:
        old = frame_record([Free(1, 1, "old", {"value": 1.0})], timestamp_ms=0)
        await replay.write(Batch([old]))
        days[0] = 9
        for seq in range(2):
            new = frame_record(
                [Free(2, 2, "new", {"value": 2.0})],
                seq=seq,
                emitter=b"b" * 16,
                timestamp_ms=9 * 86_400_000,
            )
            await live.write(Batch([new]))
        await replay.write(Batch([old]))
    finally:
        await replay.close()
        await live.close()

    with SQLiteStore(path) as store:
        found = {(s.id.emitter[:1], s.id.seq, s.event.name) for s in store.events()}  # type: ignore[union-attr]
    assert found == {(b"\0", 0, "old"), (b"b", 0, "new"), (b"b", 1, "new")}


async def test_a_file_that_was_removed_is_not_written_to(path: Path) -> None:
    """Events must not end in a file that nobody can find any more."""
    sink = SQLiteSink(SQLiteSettings(path=path))
    await sink.open()
    await asyncio.to_thread(path.unlink)
    try:
        with pytest.raises(SinkBroken, match="removed"):
            await sink.write(sample_batch())
    finally:
        await sink.close()


async def test_anothers_database_is_left_alone(path: Path) -> None:
    """A path that points at another program's file is refused."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()
    sink = SQLiteSink(SQLiteSettings(path=path))

    with pytest.raises(SinkBroken, match="another program's database"):
        await sink.open()
    with pytest.raises(SinkBroken):
        SQLiteStore(path)
    await sink.close()


async def test_a_newer_schema_is_left_alone(path: Path) -> None:
    """An older version of the program does not touch a newer one's file."""
    await write(path, sample_batch())
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    sink = SQLiteSink(SQLiteSettings(path=path))

    with pytest.raises(SinkBroken, match="has schema 99"):
        await sink.open()
    with pytest.raises(SinkBroken, match="schema 99"):
        SQLiteStore(path)
    await sink.close()


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    """Bytes that are no database are neither read nor overwritten."""
    text = b"no database, but long enough to be looked at" * 100
    await asyncio.to_thread(path.write_bytes, text)
    sink = SQLiteSink(SQLiteSettings(path=path))

    with pytest.raises(SinkBroken, match="not a database"):
        await sink.open()
    with pytest.raises(SinkBroken):
        SQLiteStore(path)
    await sink.close()


def test_a_store_that_is_not_there_yet_says_so(path: Path) -> None:
    """A reader that is faster than the sink tries again."""
    with pytest.raises(SinkUnavailable, match="no store at"):
        SQLiteStore(path)


async def test_a_locked_file_is_unavailable(path: Path) -> None:
    """Somebody else's lock passes, and nothing is half written meanwhile."""
    sink = SQLiteSink(SQLiteSettings(path=path), busy_s=0.05)
    await sink.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(SinkUnavailable, match="locked"):
            await sink.write(sample_batch())
        other.execute("ROLLBACK")
        assert not await sink.write(sample_batch())
    finally:
        other.close()
        await sink.close()
    assert len(ids_in(path)) == 8


async def test_a_reader_sees_whole_batches_while_the_sink_writes(path: Path) -> None:
    """Reading needs no pause of the writer."""
    sink = SQLiteSink(SQLiteSettings(path=path))
    await sink.open()
    await sink.write(sample_batch(seq=0))
    with SQLiteStore(path) as store:
        for seq in range(1, 20):
            writing = asyncio.ensure_future(sink.write(sample_batch(seq=seq)))
            assert len(list(store.events())) % 7 == 0
            await writing
    await sink.close()


async def test_counts_are_by_kind_and_run(path: Path) -> None:
    """A page shows how much there is."""
    await write(path, sample_batch())

    with SQLiteStore(path) as store:
        everything = store.counts()
        assert store.counts(run="contract") == everything
        assert store.counts(run="another") == {"stats": 0}
        assert {(s.kind, s.name, s.field) for s in store.series()} >= {
            ("observation", "training", "loss"),
            ("profile", "forward", "duration_ns"),
        }
    assert everything == {"run": 1, "observation": 4, "profile": 1, "log": 1, "stats": 1}


@pytest.fixture
def documentation() -> str:
    """Return the text of docs/sinks.md."""
    if not DOCS.exists():
        pytest.skip("the documentation is not here")
    return DOCS.read_text(encoding="utf-8")


async def test_the_newest_windows_are_those_that_arrived_last(path: Path) -> None:
    """A terminal shows the aggregates that just came."""
    for start in range(5):
        one = msgspec.structs.replace(window(revision=1, final=True, mean=0.0), start=start)
        await write(path, Batch([stats_record([one], timestamp_ms=1_000 + start)]))

    with SQLiteStore(path) as store:
        assert [w.stats.start for w in store.newest_windows(limit=3)] == [4, 3, 2]


async def test_the_queries_in_the_documentation_work(path: Path, documentation: str) -> None:
    """Every SQL statement of docs/sinks.md runs against a store and finds something."""
    text = re.search(r"```sql\n(.*?)```", documentation, re.DOTALL)
    assert text is not None
    origin = Origin(run="llama-7b-42", role="miner", uid=1)
    now = time.time_ns()
    values = [
        Free(now, 1, "training", {"loss": 1.5}),
        Free(now + 1, 2, "training", {"loss": float("nan")}),
    ]
    error = Log(ts=now, level="error", message="out of memory")
    profile = Profile(ts=now, name="forward", duration_ns=5)
    await write(
        path,
        Batch(
            [
                frame_record(values, origin=origin),
                frame_record([error], origin=origin, kind="log"),
                frame_record([profile], origin=origin, kind="profile"),
                stats_record([window(revision=1, final=True, mean=0.5)], origin=origin),
            ]
        ),
    )

    with sqlite3.connect(path) as db:
        found = [db.execute(query).fetchall() for query in text[1].split(";") if query.strip()]
    db.close()
    assert len(found) == 6
    assert all(found)
    assert found[0] == [(now, 1, 1.5), (now + 1, 2, "NaN")]
