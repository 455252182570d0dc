"""The committed bytes of every kind still mean what they meant, and are still what is written."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlops_events.schemas.deadletters import decode_dead_letter, encode_dead_letter
from mlops_events.schemas.events import (
    DeadLetter,
    Log,
    Observation,
    Origin,
    Profile,
    RawKind,
    Run,
    Stats,
)
from mlops_events.schemas.frame import (
    FrameEncoder,
    Free,
    Row,
    Series,
    StatsFrame,
    decode_frame,
    decode_stats,
    encode_stats,
)
from mlops_events.schemas.values import ENCODER

EMITTER = bytes(range(16))
TS = 1_767_225_600_000_000_000
ORIGIN = Origin(
    run="llama-7b-42",
    project="subnet-3",
    role="miner",
    uid=12,
    hotkey="5F3s",
    rank=0,
    world_size=2,
    node="gpu-1",
    version="1.4.0",
    environment="production",
    group="sweep",
    job_type="train",
    netuid=3,
    tags={"region": "eu"},
)
RUN = Run(
    ts=TS,
    state="start",
    config={"lr": 1e-4, "layers": [2, 4], "optimizer": {"name": "adamw"}},
    project="subnet-3",
    name="llama",
    group="sweep",
    job_type="train",
)
RUN_END = Run(ts=TS + 9, state="end", status="crashed")
PROFILE = Profile(ts=TS, name="forward", duration_ns=12_000_000, step=7, tags={"layer": 3})
LOG = Log(
    ts=TS,
    level="warning",
    message="slow peer",
    logger="miner.sync",
    fields={"peer": 9, "seconds": 2.5},
    step=7,
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    span_id="00f067aa0ba902b7",
)
SERIES = Series(0, "training", ["loss", "lr", "samples", "ok"], {"phase": "train"})
ROWS = [
    Row(0, TS, 7, [0.5, 1e-4, [1.0, 2.0], True]),
    Row(0, TS + 1, 8, [math.nan, None, [], False], {"phase": "eval"}),
    Free(TS + 2, None, "peers", {"active": 5, "status": "synced"}, {"source": "chain"}),
]
STATS = Stats(
    kind="observation",
    name="training",
    field="loss",
    start=TS,
    size=10_000_000_000,
    revision=5,
    final=True,
    count=4,
    mean=2.5,
    min=1.0,
    max=4.0,
    median=2.5,
    nonfinite=1,
    first_nonfinite_step=9,
    last_finite=4.0,
    closed_by="watermark",
)
FLEET = Stats(
    kind="observation",
    name="training",
    field="loss",
    start=TS,
    size=10_000_000_000,
    revision=12,
    final=False,
    count=11,
    mean=2.5,
    min=0.5,
    max=4.0,
    nonfinite=1,
    first_nonfinite_step=9,
    nodes=3,
    nodes_missing=1,
    median_of_medians=2.25,
)
LETTER = DeadLetter(
    sink="sqlite",
    reason="unreadable_event",
    message="Expected `int`",
    key="sqlite/000102030405060708090a0b0c0d0e0f/observation/7/1",
    kind="observation",
    first_seen_ns=TS,
    topic="mlops.events.observation.v1",
    partition=3,
    offset=42,
    size=3,
    payload=b"abc",
)


def _frame(kind: RawKind, events: list[Any], *series: Series, end: bool = False) -> bytes:
    return FrameEncoder(emitter=EMITTER, kind=kind, origin=ORIGIN).encode(
        [ENCODER.encode(event) for event in events],
        seq=7,
        closed_ns=TS + 10,
        accepted=100,
        dropped=3,
        series=series,
        end=end,
    )


def _tagged() -> bytes:
    """A frame as the streams send it on: tags attached, the second event filtered out."""
    whole = decode_frame(_frame("observation", ROWS, SERIES))
    return whole.encode(tags={"version": "1.4.0"}, only=[0, 2])


GOLDEN: dict[str, Callable[[], bytes]] = {
    "run.v1.bin": lambda: _frame("run", [RUN, RUN_END]),
    "observation.v1.bin": lambda: _frame("observation", ROWS, SERIES),
    "observation-tagged.v1.bin": _tagged,
    "profile.v1.bin": lambda: _frame("profile", [PROFILE]),
    "log.v1.bin": lambda: _frame("log", [LOG]),
    "log-end.v1.bin": lambda: _frame("log", [], end=True),
    "stats-fleet.v1.bin": lambda: encode_stats(
        StatsFrame(emitter=EMITTER, origin=ORIGIN, stats=[STATS, FLEET], tags={"version": "1.4.0"})
    ),
    "dead-letter.v1.bin": lambda: encode_dead_letter(LETTER),
}


OLDER = {"stats.v1.bin"}  # written before Stats had the three positions of fleets


@pytest.mark.parametrize("name", GOLDEN)
def test_todays_encoder_writes_the_committed_bytes(golden: Path, name: str) -> None:
    """The format did not change by accident."""
    assert (golden / name).read_bytes() == GOLDEN[name]()


def test_every_golden_file_is_checked(golden: Path) -> None:
    """No file lies there that nobody reads."""
    assert {path.name for path in golden.glob("*.bin")} == set(GOLDEN) | OLDER


@pytest.mark.parametrize("kind", ["run", "profile", "log"])
def test_events_of_a_golden_frame(golden: Path, kind: str) -> None:
    """Header and events are as they were written."""
    expected = {"run": [RUN, RUN_END], "profile": [PROFILE], "log": [LOG]}

    frame = decode_frame((golden / f"{kind}.v1.bin").read_bytes())
    assert (frame.version, frame.emitter, frame.kind, frame.seq) == (1, EMITTER, kind, 7)
    assert (frame.closed_ns, frame.accepted, frame.dropped) == (TS + 10, 100, 3)
    assert (frame.origin, frame.tags, frame.end) == (ORIGIN, {}, False)
    assert [event for _, event in frame.events()] == expected[kind]


def test_observations_of_the_golden_frame(golden: Path) -> None:
    """Rows have their names and tags, free forms their own; NaN and None are kept."""
    frame = decode_frame((golden / "observation.v1.bin").read_bytes())

    first, second, third = (event for _, event in frame.events())
    assert first == Observation(
        ts=TS,
        name="training",
        fields={"loss": 0.5, "lr": 1e-4, "samples": [1.0, 2.0], "ok": True},
        step=7,
        tags={"phase": "train"},
    )
    assert isinstance(second, Observation)
    assert math.isnan(second.fields.pop("loss"))
    assert second == Observation(
        ts=TS + 1,
        name="training",
        fields={"lr": None, "samples": [], "ok": False},
        step=8,
        tags={"phase": "eval"},
    )
    assert third == Observation(
        ts=TS + 2,
        name="peers",
        fields={"active": 5, "status": "synced"},
        tags={"source": "chain"},
    )


def test_tagged_golden_frame(golden: Path) -> None:
    """A frame from the streams has tags and an index column, and the identity it was sent with."""
    frame = decode_frame((golden / "observation-tagged.v1.bin").read_bytes())

    assert (frame.tags, list(frame.indices)) == ({"version": "1.4.0"}, [0, 2])
    assert str(frame.event_id(2)) == "000102030405060708090a0b0c0d0e0f/observation/7/2"


def test_last_golden_frame(golden: Path) -> None:
    """The last frame of an emitter and kind may hold nothing."""
    frame = decode_frame((golden / "log-end.v1.bin").read_bytes())

    assert (frame.end, len(frame)) == (True, 0)


def test_golden_stats(golden: Path) -> None:
    """Every field of a Stats is where it was."""
    frame = decode_stats((golden / "stats.v1.bin").read_bytes())

    assert (frame.emitter, frame.origin, frame.tags) == (EMITTER, ORIGIN, {"version": "1.4.0"})
    assert frame.stats == [STATS]


def test_golden_stats_of_a_fleet(golden: Path) -> None:
    """Stats of one emitter have nothing where those of a fleet have nodes."""
    frame = decode_stats((golden / "stats-fleet.v1.bin").read_bytes())

    assert frame.stats == [STATS, FLEET]


def test_golden_dead_letter(golden: Path) -> None:
    """Every field of a dead letter is where it was."""
    assert decode_dead_letter((golden / "dead-letter.v1.bin").read_bytes()) == LETTER


def write_missing(folder: Path) -> None:
    """Write the golden files that do not exist yet; those that do are never touched."""
    for name, make in GOLDEN.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(make())


if __name__ == "__main__":
    write_missing(Path(__file__).parents[1] / "golden")
