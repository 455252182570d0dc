"""Reads a bounded stretch of the raw topics to count what is in it."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiokafka.errors import KafkaError

from mlops_events.control.cardinality import Cardinality
from mlops_events.control.topics import TopicError, list_topics
from mlops_events.schemas.errors import ConfigError, DecodeError
from mlops_events.schemas.events import RawKind
from mlops_events.schemas.frame import decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import LogReader, Span, TopicPartition

__all__ = ["newest", "read_cardinality"]

_TELL_EVERY: Final = 200


async def read_cardinality(
    kafka: KafkaSettings,
    counted: Cardinality,
    *,
    kinds: Collection[RawKind],
    since_ms: int,
    run: str | None,
    records: int,
    tell: Callable[[int, int, int], None],
) -> tuple[int, int]:
    """Count what arrived since a time, and return how many records were read, and there were.

    Where there are more records than are to be read, the newest of each partition are, in
    proportion.

    Args:
        kafka: where.
        counted: where to count.
        kinds: of the raw topics.
        since_ms: by the records' timestamps.
        run: only its frames; all if None.
        records: how many to read at most.
        tell: is told now and then how many were read, how many will be, and how many there are.

    Raises:
        ConfigError: no broker answers, or there are no topics.
        TopicError: Kafka failed.
    """
    names = {kafka.topics.raw(kind) for kind in kinds}
    places = [
        TopicPartition(state.name, number)
        for state in await list_topics(kafka)
        if state.name in names
        for number in range(state.partitions)
    ]
    if not places:
        raise ConfigError(
            f"no topics {', '.join(sorted(names))}; create them: mlops-pipeline topics create"
        )
    try:
        async with open_reader(kafka) as reader:
            spans = await _spans(reader, places, since_ms)
            there = sum(span.end - span.start for span in spans.values())
            return await _count(reader, newest(spans, records), counted, run, there, tell), there
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise TopicError(f"Kafka at {kafka.brokers} failed: {reason}") from error


def newest(spans: Mapping[TopicPartition, Span], records: int) -> dict[TopicPartition, Span]:
    """Cut spans to so many records in all, in proportion, by taking away the oldest."""
    total = sum(span.end - span.start for span in spans.values())
    if total <= records:
        return dict(spans)
    return {
        tp: Span(span.end - (span.end - span.start) * records // total, span.end)
        for tp, span in spans.items()
    }


async def _spans(
    reader: LogReader, places: Collection[TopicPartition], since_ms: int
) -> dict[TopicPartition, Span]:
    logs = await reader.bounds(places)
    first = await reader.since(places, timestamp_ms=since_ms)
    return {
        tp: Span(max(log.start, at), log.end)
        for tp, log in logs.items()
        if (at := first[tp]) is not None and at < log.end
    }


async def _count(
    reader: LogReader,
    spans: Mapping[TopicPartition, Span],
    counted: Cardinality,
    run: str | None,
    there: int,
    tell: Callable[[int, int, int], None],
) -> int:
    planned = sum(span.end - span.start for span in spans.values())
    read = 0
    async for _, record in reader.read(spans):
        read += 1
        if read % _TELL_EVERY == 0:
            tell(read, planned, there)
        if run is not None and dict(record.headers).get("run", run.encode()) != run.encode():
            continue
        try:
            frame = decode_frame(record.value)
        except DecodeError:
            counted.undecodable += 1
            continue
        if run is None or frame.origin.run == run:
            counted.add(frame)
    return read
