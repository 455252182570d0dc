"""What the topics say about a run: events kept out of windows, and dead letters."""

from collections.abc import Container, Mapping

import msgspec

from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import RAW_KINDS, RawKind
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.checkpoint import find_checkpoints
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import LogReader, TopicPartition
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

__all__ = ["Ledger", "read_ledger"]


class Ledger(msgspec.Struct, kw_only=True):
    """Events that the streams stored but kept out of windows, and dead letters."""

    late: int = 0
    too_old: int = 0
    ahead: int = 0
    late_by_field: int = 0
    dead_letters: int = 0


async def read_ledger(
    kafka: KafkaSettings,
    settings: StreamSettings,
    *,
    partitions: Mapping[str, int],
    emitters: Container[bytes],
    since_ns: int,
) -> Ledger:
    """Read the streams' last checkpoints, and the dead letters.

    Args:
        kafka: where the topics are.
        settings: of the stream that wrote the checkpoints.
        partitions: how many each topic has.
        emitters: whose events count.
        since_ns: dead letters from before this time do not count.

    Raises:
        KafkaError: no broker answers.
        TimeoutError: the broker does not answer.
    """
    ledger = Ledger()
    async with open_reader(kafka) as reader:
        await _add_states(ledger, reader, kafka, settings, partitions, emitters)
        letters = [
            TopicPartition(kafka.topics.dead_letters, number)
            for number in range(partitions[kafka.topics.dead_letters])
        ]
        async for _, record in reader.read(await reader.bounds(letters)):
            try:
                letter = decode_dead_letter(record.value)
            except DecodeError:  # a tombstone: it was delivered after all
                continue
            ledger.dead_letters += letter.first_seen_ns >= since_ns
    return ledger


async def _add_states(
    ledger: Ledger,
    reader: LogReader,
    kafka: KafkaSettings,
    settings: StreamSettings,
    partitions: Mapping[str, int],
    emitters: Container[bytes],
) -> None:
    topics = kafka.topics
    kinds: dict[str, RawKind] = {topics.raw(kind): kind for kind in RAW_KINDS}
    checkpoints = await find_checkpoints(
        reader,
        topic=topics.checkpoints,
        group=settings.group or f"{kafka.prefix}.stream",
        wanted=[TopicPartition(raw, n) for raw in kinds for n in range(partitions[raw])],
    )
    for source, checkpoint in checkpoints.items():
        state = PartitionState.decode(
            checkpoint.state,
            settings,
            topics=topics,
            kind=kinds[source.topic],
            partition=source.partition,
        )
        for emitter in state.emitters():
            if emitter.id in emitters:
                ledger.late += emitter.counts.late
                ledger.too_old += emitter.counts.too_old
                ledger.ahead += emitter.counts.ahead
                ledger.late_by_field += emitter.counts.late_by_field
