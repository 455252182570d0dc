"""The public API of the streams as users write it: the fold over a log, without Kafka."""

from collections.abc import Iterable
from typing import assert_never, assert_type

from mlops_events.schemas.topics import Topics
from mlops_events.streams import (
    DeadLetterOut,
    FrameOut,
    Mark,
    Output,
    PartitionState,
    Provisional,
    StatsOut,
    StreamSettings,
)

__all__ = ["analyse", "resume"]


def analyse(records: Iterable[tuple[int, int, bytes | None]]) -> dict[str, int]:
    """Fold a partition's records, (offset, timestamp in ms, value), and count what comes out."""
    settings = StreamSettings(
        by=("time:1min", "field:global_step/100"), sinks=("sqlite", "loki"), tags={"cluster": "eu"}
    )
    state = PartitionState(settings, topics=Topics(), kind="observation", partition=0)
    found = {"frames": 0, "stats": 0, "dead letters": 0}
    for offset, timestamp_ms, value in records:
        for output in assert_type(state.fold(offset, timestamp_ms, value), list[Output]):
            match output:
                case FrameOut():
                    found["frames"] += output.count
                case StatsOut():
                    found["stats"] += output.count
                case DeadLetterOut():
                    found["dead letters"] += 1
                case _:
                    assert_never(output)
    for emitter in state.emitters():
        assert_type(emitter.lost, int | None)
        print(emitter.origin.run, emitter.counts.late, emitter.lost)
    return found


def resume(checkpoint: bytes, log_start: int, now: float) -> list[StatsOut]:
    """Go on from a checkpoint in a log that was made anew, and show what is open."""
    settings = StreamSettings()
    state = PartitionState.decode(
        checkpoint, settings, topics=Topics(), kind="observation", partition=0
    )
    assert_type(state.mark, Mark | None)
    state.restart_at(log_start, recreated=True)
    return Provisional(settings).due(state, now=now)
