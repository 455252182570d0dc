"""How far a replay may go: up to where the stream has closed its windows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlops_events.control.replay_request import ReplayRequest, show_time
from mlops_events.control.replay_windows import OpenWindow
from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.events import Origin, RawKind
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.checkpoint import Checkpoint, find_checkpoints
from mlops_events.streams.logreader import LogReader, Span, TopicPartition
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

__all__ = ["Hindrance", "StillOpenError", "check_until", "find_open"]

_NS_PER_MS = 1_000_000


class StillOpenError(MlopsEventsError):
    """The stream may still change what would be replayed."""


class Hindrance(NamedTuple):
    """Why a replay must end at or before a time."""

    limit_ns: int
    why: str
    when: str


async def check_until(
    reader: LogReader,
    kafka: KafkaSettings,
    settings: StreamSettings,
    request: ReplayRequest,
    *,
    logs: Mapping[TopicPartition, Span],
    now_ns: int,
) -> set[OpenWindow]:
    """Refuse a range of which the stream has windows open, or records unread.

    Until a window is closed, the stream may still put out a higher revision of it. Without any
    checkpoint there is no stream, and the present is the limit.

    Args:
        reader: of the topics.
        kafka: the names of the topics.
        settings: of the stream.
        request: the range.
        logs: where the raw topics' logs start and end.
        now_ns: the time.

    Returns:
        The windows over fields that the stream has open. When they began is not known, so they do
        not limit the range, but are left out of it.

    Raises:
        ConfigError: the range ends in the future.
        StillOpenError: says what is open, and when the replay will be possible.
        TimeoutError: the broker does not answer.
    """
    if request.until_ns > now_ns:
        raise ConfigError(
            f"--until {show_time(request.until_ns)} lies in the future; it is {show_time(now_ns)}"
        )
    kinds: dict[str, RawKind] = {kafka.topics.raw(kind): kind for kind in request.sources}
    checkpoints = await find_checkpoints(
        reader,
        topic=kafka.topics.checkpoints,
        group=settings.group or f"{kafka.prefix}.stream",
        wanted=list(logs),
    )
    if not checkpoints:
        return set()
    found = await _unread(reader, checkpoints, logs)
    still_open: set[OpenWindow] = set()
    for tp, checkpoint in checkpoints.items():
        kind = kinds[tp.topic]
        state = PartitionState.decode(
            checkpoint.state, settings, topics=kafka.topics, kind=kind, partition=tp.partition
        )
        limits, over_fields = find_open(state, settings, request, kind=kind, now_ns=now_ns)
        found += limits
        still_open |= over_fields
    _refuse(request, found)
    return still_open


async def _unread(
    reader: LogReader,
    checkpoints: Mapping[TopicPartition, Checkpoint],
    logs: Mapping[TopicPartition, Span],
) -> list[Hindrance]:
    """Return what the stream has not read of each log, by when the first of it arrived."""
    spans = {
        tp: Span(_next(checkpoints.get(tp), log), log.end)
        for tp, log in logs.items()
        if _next(checkpoints.get(tp), log) < log.end
    }
    found: list[Hindrance] = []
    for tp, record in (await reader.at({tp: span.start for tp, span in spans.items()})).items():
        first_ns = record.timestamp * _NS_PER_MS
        why = (
            f"the stream has not yet saved that it read {spans[tp].end - spans[tp].start:,} records "
            f"of partition {tp.partition} of {tp.topic}, the first of {show_time(first_ns)}"
        )
        found.append(Hindrance(first_ns, why, "when the stream has read and saved them"))
    return found


def find_open(
    state: PartitionState,
    settings: StreamSettings,
    request: ReplayRequest,
    *,
    kind: RawKind,
    now_ns: int,
) -> tuple[list[Hindrance], set[OpenWindow]]:
    """Return what the stream has open of the emitters that a replay is about.

    That is the oldest window over time of each that ends in or behind the range, and all over
    fields. An emitter that was silent for longer than `hold` adds to none: whatever is read next
    closes its windows.
    """
    rules = settings.rules
    limits: list[Hindrance] = []
    over_fields: set[OpenWindow] = set()
    for emitter in state.emitters():
        closes_ns = emitter.heard_ns + settings.hold_ns
        if closes_ns < now_ns or not request.is_about(emitter.origin):
            continue
        starts: list[int] = []
        for by, windows in zip(rules, emitter.windows.each, strict=False):  # none before the first
            if by.over_time:
                starts += [start for start in windows.open if start + by.size > request.since_ns]
            else:
                over_fields.update(
                    OpenWindow(emitter.id, kind, by.name, by.size, start) for start in windows.open
                )
        if starts:
            limits.append(_limit(emitter.origin, kind, min(starts), closes_ns=closes_ns))
    return limits, over_fields


def _limit(origin: Origin, kind: RawKind, start: int, *, closes_ns: int) -> Hindrance:
    return Hindrance(
        start,
        f"{origin.run}/{origin.role}/{origin.uid} has a window of {kind} open since "
        f"{show_time(start)}",
        "when that node goes on or ends, at the latest at "
        f"{show_time(closes_ns)} if it stays silent",
    )


def _next(checkpoint: Checkpoint | None, log: Span) -> int:
    """Return what the stream reads next of a log, which may have been made anew meanwhile."""
    if checkpoint is None or not log.start <= checkpoint.next <= log.end:
        return log.start
    return checkpoint.next


def _refuse(request: ReplayRequest, found: Sequence[Hindrance]) -> None:
    beyond = [one for one in found if one.limit_ns < request.until_ns]
    if not beyond:
        return
    first = min(beyond)
    more = f" ({len(beyond) - 1} more like this)" if len(beyond) > 1 else ""
    raise StillOpenError(
        f"--until {show_time(request.until_ns)} lies beyond what the stream has closed: "
        f"{first.why}{more}; replay up to {show_time(first.limit_ns)}, or later: {first.when}"
    )
