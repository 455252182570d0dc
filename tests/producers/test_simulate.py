"""The simulated fleet: repeatable, honest about what it emitted, and as troubled as real nodes."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise, takewhile
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from mlops_events.producers import EmitterSettings, EmitterStats
from mlops_events.producers.nodes import Node, fleet_of, schedule
from mlops_events.producers.simulate import Fleet, FleetSettings, run_fleet
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.truth import Truth, plain
from mlops_events.producers.workload import ROLES, Workload
from mlops_events.schemas import Frame, Log, Observation, Profile

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
LATENESS = 10 * SECOND
WINDOW = 10 * SECOND


class Time:
    """A clock that goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def pause(self, seconds: float) -> bool:
        """Let the time pass at once."""
        self.now += round(seconds * SECOND)
        return False


class Show:
    """A fleet's run: what it wrote down as true, and what its transports got."""

    def __init__(self, file: Path, accounts: list[EmitterStats], sent: list[MemoryTransport]):
        self.lines: list[dict[str, Any]] = [json.loads(t) for t in file.read_text().splitlines()]
        self.accounts = accounts
        self.frames: list[Frame] = [frame for transport in sent for frame in transport.frames()]

    def true(self, kind: str, **origin: Any) -> list[dict[str, Any]]:
        """The true events of one kind, of emitters with this role, uid or version."""
        emitters = {line["emitter"] for line in self.emitters(**origin)}
        return [
            line
            for line in self.lines
            if line["t"] == "event" and line["kind"] == kind and line["emitter"] in emitters
        ]

    def emitters(self, **origin: Any) -> list[dict[str, Any]]:
        """The accounts of emitters with this role, uid or version."""
        return [
            line for line in self.lines if line["t"] == "emitter" and line.items() >= origin.items()
        ]


Play = Callable[..., Show]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """A function that runs a fleet to its end, in no time, into transports in memory."""
    count = 0

    def play(**settings: Any) -> Show:
        nonlocal count
        count += 1
        file = tmp_path / f"truth-{count}.jsonl"
        sent: list[MemoryTransport] = []
        time = Time()

        def transport() -> MemoryTransport:
            sent.append(MemoryTransport())
            return sent[-1]

        with Truth(file) as truth:
            accounts = run_fleet(
                FleetSettings(**settings),
                emitter=EmitterSettings(frame_events=40),
                truth=truth,
                clock=time,
                pause=time.pause,
                transport=transport,
            )
        return Show(file, accounts, sent)

    return play


class TestSeed:
    """What comes from the seed."""

    def test_same_seed_gives_the_same_events(self, play: Play) -> None:
        """All but the emitters' ids is repeated, the times too."""
        a, b = (
            [line | {"emitter": ""} for line in show.lines if line["t"] == "event"]
            for show in (play(nodes=8, duration_s=20, seed=3) for _ in range(2))
        )

        assert len(a) > 2_000
        assert a == b

    def test_another_seed_gives_other_values(self, play: Play) -> None:
        """The schedule stays; the values do not."""
        a, b = (play(nodes=1, duration_s=5, seed=seed).true("observation") for seed in (1, 2))

        assert [line["ts"] for line in a] == [line["ts"] for line in b]
        assert [line["fields"] for line in a] != [line["fields"] for line in b]


class TestTruth:
    """What is written down."""

    def test_truth_is_what_the_transports_got(self, play: Play) -> None:
        """Every event, every field, NaN and the infinities too."""
        show = play(nodes=8, duration_s=30, seed=5)
        true: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for line in show.lines:
            if line.pop("t") == "event":
                true[line.pop("emitter"), line.pop("kind")].append(line)
        got: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for frame in sorted(show.frames, key=lambda f: f.seq):
            for _, event in frame.events():
                got[frame.emitter.hex(), frame.kind].append(plain(msgspec.structs.asdict(event)))

        assert got == true
        assert len({emitter for emitter, _ in got}) == 10
        assert {"NaN", "Infinity", "-Infinity"} <= _texts(list(got.values()))

    def test_last_lines_are_the_accounts(self, play: Play) -> None:
        """One for each emitter, with what it accepted of each kind."""
        show = play(nodes=8, duration_s=10)
        accounts = show.lines[-10:]

        assert all(line["t"] == "emitter" and line["ended"] for line in accounts)
        assert all(not any(line["dropped"].values()) for line in accounts)
        for line in accounts:
            for kind, count in line["accepted"].items():
                of_this = [
                    event
                    for event in show.lines[:-10]
                    if (event["emitter"], event["kind"]) == (line["emitter"], kind)
                ]
                assert len(of_this) == count

    def test_truth_is_appended(self, tmp_path: Path) -> None:
        """A second run into the same file keeps the first."""
        file = tmp_path / "truth.jsonl"
        file.write_text("{}\n")

        with Truth(file) as truth:
            truth.write(bytes(16), Log(ts=1, level="info", message="hello"))

        first, second = file.read_text().splitlines()
        assert first == "{}"
        assert json.loads(second)["message"] == "hello"

    def test_events_that_are_not_acknowledged_are_accounted(self, tmp_path: Path) -> None:
        """A broker that is away costs the deadline, and the account says so."""
        file = tmp_path / "truth.jsonl"
        time = Time()
        broken = MemoryTransport()
        broken.fail()

        with Truth(file) as truth:
            accounts = run_fleet(
                FleetSettings(nodes=1, duration_s=2, close_timeout_s=0.2),
                emitter=EmitterSettings(),
                truth=truth,
                clock=time,
                pause=time.pause,
                transport=lambda: broken,
            )

        last = json.loads(file.read_text().splitlines()[-1])
        assert (last["t"], last["ended"]) == ("emitter", False)
        assert accounts[0].sent == 0
        assert accounts[0].emitted > 20


class TestTroubles:
    """What goes wrong in the fleet, and what must not."""

    def test_nothing_is_late_or_ahead(self, play: Play) -> None:
        """By the rule of the streams: against the watermark before the frame, and its closing."""
        frames = play(nodes=8, duration_s=60).frames
        watermarks: dict[tuple[bytes, str], int] = defaultdict(int)

        for frame in sorted(frames, key=lambda f: f.seq):
            key = frame.emitter, frame.kind
            times = [event.ts for _, event in frame.events()]
            for ts in times:
                assert ts // WINDOW * WINDOW + WINDOW > watermarks[key]
                assert ts <= frame.closed_ns + LATENESS
            watermarks[key] = max([watermarks[key], *(ts - LATENESS for ts in times)])

        assert any(frame.seq > 3 for frame in frames)

    def test_some_clocks_are_wrong(self, play: Play) -> None:
        """One node is 45 s fast and one 30 s slow, in the frames' own times too."""
        show = play(nodes=4, duration_s=5)
        started = {
            frame.origin.uid: (next(e.ts for _, e in frame.events()), frame.closed_ns)
            for frame in show.frames
            if frame.kind == "run" and frame.seq == 0
        }

        for uid, skew in ((0, 0), (1, 45), (2, 0), (3, -30)):
            assert 0 <= started[uid][0] - START - skew * SECOND < SECOND
            assert 0 <= started[uid][1] - START - skew * SECOND < 6 * SECOND

    def test_a_silent_node_goes_on_as_the_same_emitter(self, play: Play) -> None:
        """It says nothing for a fifth of the time."""
        show = play(nodes=3, duration_s=20)
        times = [line["ts"] for line in show.true("observation", uid=2)]

        assert len(show.emitters(uid=2)) == 1
        assert max(b - a for a, b in pairwise(times)) > 3.9 * SECOND

    def test_a_crashing_node_comes_back_as_a_new_emitter(self, play: Play) -> None:
        """The first run of it ends as crashed; its training goes on."""
        show = play(nodes=5, duration_s=20)
        runs = [(line["state"], line["status"]) for line in show.true("run", uid=4)]
        steps = [line["step"] for line in show.true("observation", uid=4)]

        assert len(show.emitters(uid=4)) == 2
        assert runs == [("start", None), ("end", "crashed"), ("start", None), ("end", "finished")]
        assert steps == list(range(len(steps)))

    def test_an_upgraded_node_changes_its_version(self, play: Play) -> None:
        """From half-way on, and once."""
        show = play(nodes=6, duration_s=20)
        old, new = show.emitters(uid=5)
        first = min(line["ts"] for line in show.true("observation", uid=5, version=new["version"]))

        assert (old["version"], new["version"]) == ("1.4.0", "1.5.0")
        assert 0 <= first - START - 10 * SECOND < SECOND

    def test_a_fleet_that_stood_still_does_not_catch_up(self) -> None:
        """After a suspend it goes on with the present."""
        time = Time()
        sent = MemoryTransport()
        fleet = Fleet(
            FleetSettings(nodes=1),
            emitter=EmitterSettings(),
            truth=Truth(None),
            clock=time,
            transport=lambda: sent,
        )

        fleet.advance()
        time.now += 3_600 * SECOND
        fleet.advance()
        fleet.close()

        assert 2 <= len(sent.observations()) < 20
        assert sent.observations()[-1].ts > time.now - 2 * SECOND

    def test_habits_repeat_in_every_period(self) -> None:
        """A crashing node has a new life in each; an upgraded one only once."""
        ticks = {
            habit: list(
                takewhile(
                    lambda tick: tick.offset_ns < 200 * SECOND,
                    schedule(
                        Node(role="miner", uid=0, versions=("1", "2"), habit=habit),
                        rate=1,
                        period_s=60,
                    ),
                )
            )
            for habit in ("crashing", "upgraded", "silent")
        }

        assert {tick.life for tick in ticks["crashing"]} == {None, 0, 1, 2, 3}
        assert {tick.life for tick in ticks["upgraded"]} == {0, 1}
        assert sum(not tick.speaks for tick in ticks["silent"]) == 36


class TestWorkload:
    """What nodes report."""

    @pytest.mark.parametrize("role", ROLES)
    def test_each_role_has_its_own_values(self, role: str) -> None:
        """Numbers, lists of samples, bools and text; profiles and logs beside them."""
        workload = Workload(role=role, rng=Random(1))

        events = [event for k in range(400) for event in workload.step(k)]

        observations = [event for event in events if isinstance(event, Observation)]
        assert len(observations) == 400
        assert [event.step for event in observations] == list(range(400))
        assert len({event.name for event in observations}) == 3
        assert 150 < sum(isinstance(event, Profile) for event in events) < 250
        assert {"debug", "info", "warning"} <= {e.level for e in events if isinstance(e, Log)}

    def test_loss_falls_and_learning_rate_warms_up(self) -> None:
        """They look like a training run."""
        workload = Workload(role="miner", rng=Random(1))

        fields = [
            event.fields
            for k in range(1_000)
            for event in workload.step(k)
            if isinstance(event, Observation) and event.name == "training"
        ]

        losses = [f["loss"] for f in fields if math.isfinite(f["loss"])]
        assert losses[0] > 10
        assert losses[-1] < 4
        assert fields[0]["learning_rate"] < fields[40]["learning_rate"]
        assert fields[-1]["learning_rate"] < max(f["learning_rate"] for f in fields)

    def test_the_fleet_has_all_roles_and_distinct_uids(self) -> None:
        """Eight nodes show everything; more repeat it."""
        nodes = fleet_of(20)

        assert {node.role for node in nodes[:4]} == set(ROLES)
        assert [node.uid for node in nodes] == list(range(20))
        assert {node.habit for node in nodes[:8]} == {"steady", "silent", "crashing", "upgraded"}
        assert len({node.version(0) for node in nodes}) > 1


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_texts, value)) if value else set()
    return {value} if isinstance(value, str) else set()
