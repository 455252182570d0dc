"""How far a replay may go: up to where the stream has closed its windows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mlops_events.control.replay_request import ReplayRequest, show_time
from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.events import RawKind
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.checkpoint import Checkpoint, find_checkpoints
from mlops_events.streams.logreader import LogReader, Span, TopicPartition
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

__all__ = ["Hindrance", "StillOpenError", "check_until", "hindrances"]

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
) -> None:
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
        return
    unread = {
        tp: Span(_next(checkpoints.get(tp), log), log.end)
        for tp, log in logs.items()
        if _next(checkpoints.get(tp), log) < log.end
    }
    first = await reader.at({tp: span.start for tp, span in unread.items()})
    found = [
        Hindrance(
            first[tp].timestamp * _NS_PER_MS,
            f"the stream has not yet saved that it read {span.end - span.start:,} records of "
            f"partition {tp.partition} of {tp.topic}, the first of "
            f"{show_time(first[tp].timestamp * _NS_PER_MS)}",
            "when the stream has read and saved them",
        )
        for tp, span in unread.items()
        if tp in first
    ]
    for tp, checkpoint in checkpoints.items():
        state = PartitionState.decode(
            checkpoint.state,
            settings,
            topics=kafka.topics,
            kind=kinds[tp.topic],
            partition=tp.partition,
        )
        found += hindrances(state, request, kind=kinds[tp.topic], settings=settings, now_ns=now_ns)
    _refuse(request, found)


def hindrances(
    state: PartitionState,
    request: ReplayRequest,
    *,
    kind: RawKind,
    settings: StreamSettings,
    now_ns: int,
) -> Iterator[Hindrance]:
    """Yield, for each emitter that the replay is about, its oldest open window of the range.

    An emitter that was silent for longer than `hold` adds to none: whatever is read next closes
    its windows.
    """
    for emitter in state.emitters():
        origin = emitter.origin
        closes_ns = emitter.heard_ns + settings.hold_ns
        starts = [s for s in emitter.windows.open if s + settings.window_ns > request.since_ns]
        if not starts or closes_ns < now_ns or not request.is_about(origin):
            continue
        yield Hindrance(
            min(starts),
            f"{origin.run}/{origin.role}/{origin.uid} has a window of {kind} open since "
            f"{show_time(min(starts))}",
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
