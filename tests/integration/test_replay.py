"""Replays on a real Kafka: into a store that has it all, of a day-old range, and interrupted."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from mlops_events.schemas import DeadLetter, FrameEncoder, Log, Origin, Profile, Run
from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.events import RAW_KINDS, RawKind
from mlops_events.schemas.frame import Row, Series
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import Topics, origin_key, raw_headers, topic_specs
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition

PARTITIONS = 3
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
WINDOW = 10 * SECOND
STRETCH = 20 * SECOND  # of time that the field `window` counts
COMMAND = (sys.executable, "-m", "mlops_events.control")
TABLES = ("emitters", "sent", "frames", "series", "event", "stats", "runs")


class Frame(NamedTuple):
    """A frame as it is sent: of which kind, its number, how many events, and its bytes."""

    kind: RawKind
    seq: int
    events: int
    value: bytes


class Node:
    """An emitter whose events have the times that the test gives."""

    def __init__(self, uid: int, *, run: str = "r", version: str = "v1.2") -> None:
        self.origin = Origin(run=run, role="miner", uid=uid, version=version)
        self.id = os.urandom(16)
        self._seq = dict.fromkeys(RAW_KINDS, 0)
        self._accepted = dict.fromkeys(RAW_KINDS, 0)

    def frame(self, kind: RawKind, events: Sequence[Any], *, end: bool = False) -> Frame:
        """Return the next frame of a kind."""
        encoder = FrameEncoder(emitter=self.id, kind=kind, origin=self.origin)
        self._accepted[kind] += len(events)
        value = encoder.encode(
            [ENCODER.encode(event) for event in events],
            seq=self._seq[kind],
            closed_ns=max((event.ts for event in events), default=time.time_ns()),
            accepted=self._accepted[kind],
            dropped=0,
            series=[Series(0, "training", ["loss", "rate", "window"])]
            if kind == "observation"
            else [],
            end=end,
        )
        self._seq[kind] += 1
        return Frame(kind, self._seq[kind] - 1, len(events), value)

    def observations(self, times: Iterable[int], *, end: bool = False) -> Frame:
        """Return the next frame of observations; their values follow from their times."""
        return self.frame("observation", [observation(ts) for ts in times], end=end)


def observation(ts: int) -> Row:
    """Return the observation of a time."""
    return Row(0, ts, ts // SECOND % 1000, [loss_at(ts), ts % 97, ts // STRETCH])


def loss_at(ts: int) -> float:
    """Return the value that an observation of this time has."""
    return float(np.sin(ts / 7e9)) + ts % 13


class Lab:
    """Topics, what is written to them, and commands that are run."""

    def __init__(self, brokers: str, prefix: str, folder: Path, processes: Any, until: Any) -> None:
        self.topics = Topics(prefix)
        self.folder = folder
        self._brokers = brokers
        self._processes = processes
        self.until = until
        self._producer: Any = None
        self.environ = {
            "MLOPS_EVENTS_KAFKA_BROKERS": brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
            "MLOPS_EVENTS_STREAM_BY": "time:10s,field:window",
            "MLOPS_EVENTS_STREAM_CHECKPOINT_S": "0.5",
            "XDG_STATE_HOME": str(folder / "state"),
        }

    async def open(self, *, timestamps: str) -> None:
        """Create the topics, the raw ones with timestamps of the broker or of whoever writes."""
        raws = set(self.topics.raws)
        specs = topic_specs(self.topics, sinks=["sqlite"], partitions=PARTITIONS, replication=1)
        admin = AIOKafkaAdminClient(bootstrap_servers=self._brokers)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(
                        s.name,
                        PARTITIONS,
                        1,
                        topic_configs={
                            **s.config,
                            **({"message.timestamp.type": timestamps} if s.name in raws else {}),
                        },
                    )
                    for s in specs
                ]
            )
        finally:
            await admin.close()
        self._producer = AIOKafkaProducer(bootstrap_servers=self._brokers, acks="all")
        await self._producer.start()

    async def close(self) -> None:
        """Let go of Kafka."""
        if self._producer is not None:
            await self._producer.stop()

    async def send(
        self, node: Node, *frames: Frame, at_ns: int | None = None, topic: str = ""
    ) -> None:
        """Write frames of a node; where the topics allow it, as if they arrived at that time.

        Args:
            node: whose they are.
            frames: each in the topic of its kind.
            at_ns: when they arrive; now if None.
            topic: another topic than theirs.
        """
        arriving = [
            await self._producer.send(
                topic or self.topics.raw(frame.kind),
                frame.value,
                key=origin_key(node.origin),
                headers=raw_headers(
                    node.origin, kind=frame.kind, emitter=node.id, seq=frame.seq, count=frame.events
                ),
                timestamp_ms=None if at_ns is None else at_ns // 1_000_000,
            )
            for frame in frames
        ]
        await asyncio.gather(*arriving)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters."""
        kafka = KafkaSettings(brokers=self._brokers, prefix=self.topics.prefix)
        places = [TopicPartition(self.topics.dead_letters, n) for n in range(PARTITIONS)]
        async with open_reader(kafka) as reader:
            logs = await reader.bounds(places)
            return [decode_dead_letter(r.value) async for _, r in reader.read(logs)]

    def start(self, *arguments: str, store: str = "live.db") -> Any:
        """Start a command of mlops-pipeline; its sink writes to this file."""
        environ = {**self.environ, "MLOPS_EVENTS_SQLITE_PATH": str(self.folder / store)}
        return self._processes.start(*COMMAND, *arguments, env=environ)

    def replay(
        self, kind: str, since: int, until: int, *options: str, store: str = "live.db"
    ) -> Any:
        """Start a replay."""
        return self.start(
            *("replay", kind, "--sink", "sqlite", "--since", iso(since), "--until", iso(until)),
            *("--json", *options),
            store=store,
        )

    async def done(self, process: Any, *, code: int = 0) -> dict[str, Any]:
        """Wait for a replay to end and return its account."""
        found = await asyncio.to_thread(process.wait)
        assert found == code, process.stderr()
        return dict(json.loads(process.stdout())) if process.stdout() else {}

    def query(self, text: str, *, store: str = "live.db") -> list[Any]:
        """Return what a store answers; nothing while it has no tables."""
        path = self.folder / store
        if not path.exists():
            return []
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return db.execute(text).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            db.close()

    def dump(self, *, store: str = "live.db") -> list[str]:
        """Return all rows of all tables, sorted."""
        return sorted(
            f"{table} {row!r}"
            for table in TABLES
            for row in self.query(f"SELECT * FROM {table}", store=store)  # noqa: S608 - constants
        )

    def count(self, *, store: str = "live.db") -> int:
        """Return how many events a store holds."""
        rows = self.query("SELECT count(*) FROM event", store=store)
        return int(rows[0][0]) if rows else 0


def iso(time_ns: int) -> str:
    """Return a time as it is typed."""
    seconds, rest = divmod(time_ns, SECOND)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06}Z"


@pytest.fixture
async def lab(
    kafka: str, prefix: str, tmp_path: Path, processes: Any, until: Any
) -> AsyncIterator[Lab]:
    """Return a Lab without topics."""
    lab = Lab(kafka, prefix, tmp_path, processes, until)
    yield lab
    await lab.close()


EVENTS = """
SELECT hex(emitter), kind, seq, idx, run, role, uid, rank, version, ts, step, name, fields, tags,
  stream_tags FROM events ORDER BY 1, 2, 3, 4
"""
STATS = """
SELECT hex(m.emitter), s.kind, name, field, by, size, start, revision, final, count, mean, min,
  max, median, nonfinite, first_nonfinite_step, last_finite
FROM stats s JOIN emitters m ON m.id = s.emitter WHERE m.uid != '' ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


async def test_replaying_what_ran_live_changes_nothing(lab: Lab) -> None:
    """Into the same store: byte for byte the same; into a new one: the same events and Stats."""
    await lab.open(timestamps="LogAppendTime")
    stream, sink = lab.start("stream"), lab.start("sink", "sqlite")
    begin = (time.time_ns() - 3 * MINUTE) // STRETCH * STRETCH
    nodes = [Node(uid) for uid in range(4)]
    for node in nodes:
        run = node.frame("run", [Run(ts=begin, state="start", config={"lr": 0.1})])
        await lab.send(node, run)
        for at in range(begin, begin + MINUTE, 5 * SECOND):
            times = range(at, at + 5 * SECOND, SECOND // 4)
            profiles = [Profile(ts=ts, name="step", duration_ns=ts % 999) for ts in times]
            logs = [Log(ts=at, level="info", message=f"at {at}", step=3)]
            await lab.send(
                node,
                node.observations(times),
                node.frame("profile", profiles),
                node.frame("log", logs),
            )
    span = (begin, begin + MINUTE)
    await lab.until(lambda: len(lab.query(STATS)) > 0)
    refused = lab.replay("observation", *span)
    await lab.done(refused, code=1)
    assert "r/miner/" in refused.stderr()
    assert "open since" in refused.stderr() or "not yet saved" in refused.stderr()
    for node in nodes:
        for kind in RAW_KINDS:
            await lab.send(node, node.frame(kind, [], end=True))
    windows = 4 * (6 * 3 + 3 * 2)
    finals = (
        "SELECT count(*) FROM stats s JOIN emitters m ON m.id = s.emitter WHERE final AND uid != ''"
    )
    ended = (
        "SELECT count(*) FROM sent s JOIN emitters m ON m.id = s.emitter WHERE ended AND uid != ''"
    )
    await lab.until(lambda: lab.query(finals) == [(windows,)] and lab.query(ended) == [(16,)])

    async def replay(store: str) -> dict[str, Any] | None:
        process = lab.replay("run,observation,profile,log", *span, store=store)
        code = await asyncio.to_thread(process.wait)
        assert code in (0, 1), process.stderr()
        return None if code else dict(json.loads(process.stdout()))

    before = lab.dump()
    account = await lab.until(lambda: replay("live.db"))
    after = lab.dump()
    await lab.until(lambda: replay("fresh.db"))
    stream.signal(signal.SIGTERM)
    sink.signal(signal.SIGTERM)

    assert before == after
    assert account["written"] == account["read"] == 4 * (1 + 2 * 240 + 12)
    assert (account["stats_written"], account["off_by"]) == (windows, 0)
    inside = [row for row in lab.query(EVENTS) if row[6] != ""]
    assert lab.query(EVENTS, store="fresh.db") == inside
    assert lab.query(STATS, store="fresh.db") == lab.query(STATS)


async def test_a_day_old_range_with_late_events_equals_the_truth(lab: Lab) -> None:
    """Events out of order, hours late and sent again: every window of the range is the true one."""
    await lab.open(timestamps="CreateTime")
    begin = (time.time_ns() - 26 * HOUR) // STRETCH * STRETCH
    rng = np.random.default_rng(7)
    since, until = begin + 3 * SECOND, begin + 10 * MINUTE + 7 * SECOND
    truth: dict[tuple[str, str, int], list[int]] = {}
    inside = total = 0
    for uid in range(3):
        node, other = Node(uid), Node(uid, run="other")
        times = rng.integers(begin - MINUTE, begin + 11 * MINUTE, size=3000)
        frames = [node.observations(map(int, part)) for part in np.split(np.sort(times), 100)]
        for ts in map(int, times):
            for by, start in (("time", ts // WINDOW * WINDOW), ("window", ts // STRETCH)):
                truth.setdefault((node.id.hex().upper(), by, start), []).append(ts)
            inside += since <= ts < until
        order = rng.permutation(100)
        late = [(begin + 20 * MINUTE, order[:60]), (begin + 5 * HOUR, order[60:])]
        for at, some in late:
            await lab.send(node, *(frames[k] for k in some), at_ns=at)
        await lab.send(node, *(frames[k] for k in order[:20]), at_ns=begin + 6 * HOUR)  # again
        await lab.send(other, other.observations(range(begin, begin + MINUTE, SECOND)), at_ns=begin)
        total += 3000 + 20 * 30 + 60

    account = await lab.done(
        lab.replay("observation", since, until, "--run", "r", "--version", "1.2")
    )

    wanted = {
        (name, by, start): ts
        for (name, by, start), ts in truth.items()
        if (
            since <= start and start + WINDOW <= until
            if by == "time"
            else since <= min(ts) and max(ts) < until
        )
    }
    found = {(row[0], row[4], row[6]): row for row in lab.query(STATS) if row[3] == "loss"}
    assert set(found) == set(wanted)
    for key, ts in wanted.items():
        values = np.array([loss_at(t) for t in ts])
        row = found[key]
        assert (row[7], row[8], row[9]) == (len(ts), 1, len(ts))
        np.testing.assert_allclose(row[10], values.mean(), rtol=1e-12)
        assert row[11:14] == (values.min(), values.max(), np.median(values))
        assert row[16] == loss_at(max(ts))
    assert lab.count() == inside
    assert account["off_by"] == 0
    assert (account["read"], account["written"]) == (total, inside)
    assert account["filtered"]["repeat"] == 3 * 20 * 30
    assert account["filtered"]["other_run"] == 3 * 60
    assert (account["windows_cut"], account["beyond_slack"]) == (3 * 4, 0)


async def test_a_replay_writes_while_the_sink_delivers(lab: Lab) -> None:
    """Into one SQLite file at the same time; what it refuses becomes a dead letter."""
    await lab.open(timestamps="CreateTime")
    old, new = Node(1), Node(2)
    begin = (time.time_ns() - 26 * HOUR) // STRETCH * STRETCH
    odd = Row(0, begin, 0, [msgspec.msgpack.Ext(5, b"what JSON cannot hold"), 1, 2])
    await lab.send(old, old.frame("observation", [odd]), at_ns=begin)
    for first in range(begin, begin + 200 * SECOND, SECOND):
        await lab.send(
            old, old.observations(range(first, first + SECOND, SECOND // 50)), at_ns=first
        )
    sink = lab.start("sink", "sqlite")
    await lab.send(new, new.observations([begin]), topic=lab.topics.sink("sqlite"))
    await lab.until(lambda: lab.count() == 1)
    replay = lab.replay("observation", begin, begin + HOUR, "--rate", "2500/s")
    sent = 1
    while replay.poll() is None:
        await lab.send(new, new.observations([begin + sent]), topic=lab.topics.sink("sqlite"))
        sent += 1
        await asyncio.sleep(0.02)
    account = await lab.done(replay)
    await lab.until(lambda: lab.count() == 10_000 + sent)
    sink.signal(signal.SIGTERM)
    code = await asyncio.to_thread(sink.wait)

    assert code == 0, sink.stderr()
    assert (account["read"], account["written"], account["dead_lettered"]) == (10_001, 10_000, 1)
    order = lab.query(
        "SELECT m.uid FROM frames f JOIN emitters m ON m.id = f.emitter ORDER BY f.id"
    )
    assert sum(a != b for a, b in pairwise(order)) >= 4, "one wrote only after the other"
    assert lab.query("PRAGMA integrity_check") == [("ok",)]
    (letter,) = await lab.dead_letters()
    assert (letter.sink, letter.reason) == ("sqlite", "unencodable")
    assert letter.topic == lab.topics.raw("observation")


async def test_a_replay_reads_the_embedded_broker_too(
    embedded_broker: Any, prefix: str, tmp_path: Path, processes: Any, until: Any
) -> None:
    """Up to its logs' ends, which it does not tell as Kafka does."""
    lab = Lab(embedded_broker.address, prefix, tmp_path, processes, until)
    lab.environ["MLOPS_EVENTS_KAFKA_EMBEDDED"] = "1"
    await lab.open(timestamps="CreateTime")
    try:
        node = Node(1)
        begin = (time.time_ns() - MINUTE) // STRETCH * STRETCH
        for at in range(begin, begin + 40 * SECOND, SECOND):
            await lab.send(node, node.observations(range(at, at + SECOND, SECOND // 4)))
        account = await lab.done(lab.replay("observation", begin, begin + 30 * SECOND))
    finally:
        await lab.close()

    assert (account["read"], account["written"], account["off_by"]) == (160, 120, 0)
    assert lab.count() == 120
    assert account["stats_written"] == (3 + 1) * 2
    assert account["cut"] == [f"r/miner/1 observation at window {begin // STRETCH + 1}"]


@pytest.mark.parametrize("events", [int(os.environ.get("REPLAY_EVENTS", "50000"))])
async def test_a_replay_interrupted_three_times_accounts_for_every_event(
    lab: Lab, events: int
) -> None:
    """SIGINT, kill -9, SIGINT, and resumed each time: the account is right, the store complete."""
    await lab.open(timestamps="CreateTime")
    begin = (time.time_ns() - 26 * HOUR) // STRETCH * STRETCH
    per_node = events // 5
    step = HOUR // per_node
    nodes = [Node(uid) for uid in range(5)]
    for first in range(0, per_node, 100):
        times = range(begin + first * step, begin + (first + 100) * step, step)
        sent = (lab.send(node, node.observations(times), at_ns=times[-1]) for node in nodes)
        await asyncio.gather(*sent)
    span = (begin, begin + HOUR)
    how = ("--rate", f"{events // 5}/s", "--slack", "10min")
    for round_, (number, code) in enumerate(
        [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGINT, 130)]
    ):
        process = lab.replay("observation", *span, *how, *(["--resume"] * (round_ > 0)))
        had = lab.count()
        more = had + (events // 10 if round_ != 1 else 1)
        await lab.until(lambda more=more: lab.count() > more)
        process.signal(number)
        assert await asyncio.to_thread(process.wait) == code, process.stderr()
        assert (number == signal.SIGKILL) or "--resume" in process.stderr()
    changed = lab.replay("observation", *span, *how, "--run", "r", "--resume")
    await lab.done(changed, code=2)
    assert "nothing to resume" in changed.stderr()
    assert "unfinished ones" in changed.stderr()

    account = await lab.done(lab.replay("observation", *span, *how, "--resume"))
    whole = await lab.done(lab.replay("observation", *span, "--slack", "10min", store="whole.db"))

    assert (account["read"], account["written"], account["off_by"]) == (events, events, 0)
    assert account["stats_written"] == 5 * (360 + 180) * 2
    parts = ("read", "written", "filtered", "stats_written", "windows_cut", "beyond_slack")
    assert {name: account[name] for name in parts} == {name: whole[name] for name in parts}
    assert lab.count() == events
    assert lab.query(EVENTS) == lab.query(EVENTS, store="whole.db")
    assert lab.query(STATS) == lab.query(STATS, store="whole.db")
