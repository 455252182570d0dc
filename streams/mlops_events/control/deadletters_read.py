"""Reads the dead letters' topic: which letters lie there, and what each holds."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiokafka.errors import KafkaError

from mlops_events.control.deadletters import Choice, Letter, LetterError, by_key
from mlops_events.control.topics import list_topics
from mlops_events.schemas.deadletters import decode_dead_letter
from mlops_events.schemas.errors import ConfigError, DecodeError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import LogReader, LogRecord, Span, TopicPartition

__all__ = [
    "chunks",
    "fetch_letter",
    "find_letters",
    "open_letters",
    "read_letters",
    "with_payloads",
]

_CHUNK: Final = 200
_CHUNK_BYTES: Final = 4 << 20
_NS_PER_MS: Final = 1_000_000


async def find_letters(kafka: KafkaSettings, choice: Choice) -> list[Letter]:
    """Return the letters that lie there now, oldest first, without their payloads.

    Raises:
        ConfigError: no broker answers.
        LetterError: there is no such topic, or Kafka failed.
    """
    async with open_letters(kafka) as (reader, partitions):
        return await read_letters(reader, partitions, choice)


async def fetch_letter(
    kafka: KafkaSettings, *, key: str = "", place: tuple[int, int] | None = None
) -> Letter:
    """Return one letter with its payload.

    Args:
        kafka: where.
        key: its key, or a beginning that only it has.
        place: partition and offset instead, whatever was written under its key later.

    Raises:
        ConfigError: no broker answers, or there is no such partition.
        LetterError: there is no such letter, or Kafka failed.
    """
    async with open_letters(kafka) as (reader, partitions):
        if place is None:
            found = by_key(await read_letters(reader, partitions, Choice()), key)
            loaded = await with_payloads(reader, partitions[0].topic, [found])
            if not loaded:
                raise LetterError(f"{found.letter.key} was taken away just now")
            return loaded[0]
        number, offset = place
        if number >= len(partitions):
            raise ConfigError(f"no partition {number}; {partitions[0].topic} has {len(partitions)}")
        return await _letter_at(reader, partitions[number], offset)


@asynccontextmanager
async def open_letters(
    kafka: KafkaSettings,
) -> AsyncIterator[tuple[LogReader, list[TopicPartition]]]:
    """Open the dead letters' topic for as long as it is needed: a reader, and its partitions.

    Raises:
        ConfigError: no broker answers.
        LetterError: there is no such topic, or Kafka failed.
    """
    name = kafka.topics.dead_letters
    counts = {topic.name: topic.partitions for topic in await list_topics(kafka)}
    if name not in counts:
        raise LetterError(f"no topic {name}; create it with: mlops-pipeline topics create")
    try:
        async with open_reader(kafka) as reader:
            yield reader, [TopicPartition(name, number) for number in range(counts[name])]
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise LetterError(f"Kafka at {kafka.brokers} failed: {reason}") from error


async def read_letters(
    reader: LogReader, partitions: Sequence[TopicPartition], choice: Choice
) -> list[Letter]:
    """Return the letters that lie there now, oldest first, without their payloads.

    The last record of a key counts; one without a value says that the letter was taken away.

    Raises:
        TimeoutError: the broker does not answer.
    """
    last: dict[bytes | None, Letter | None] = {}
    async for tp, record in reader.read(await reader.bounds(partitions)):
        found = _letter(tp, record)
        if found is not None:
            meant = choice.takes(found.letter, written_ns=found.written_ns)
            found = _without_payload(found) if meant else None
        last[record.key] = found
    letters = [letter for letter in last.values() if letter is not None]
    return sorted(letters, key=lambda found: (found.written_ns, found.place))


def chunks(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """Split letters into parts of one partition each, in the order of their offsets."""
    some: list[Letter] = []
    size = 0
    for letter in sorted(letters, key=lambda found: found.place):
        full = len(some) == _CHUNK or size > _CHUNK_BYTES
        if some and (full or some[-1].partition != letter.partition):
            yield some
            some, size = [], 0
        some.append(letter)
        size += letter.letter.size
    if some:
        yield some


async def with_payloads(reader: LogReader, topic: str, letters: Sequence[Letter]) -> list[Letter]:
    """Return these letters of one partition once more, with their payloads.

    One that the broker has deleted since is left out.

    Raises:
        TimeoutError: the broker does not answer.
    """
    wanted = {letter.offset for letter in letters}
    place = TopicPartition(topic, letters[0].partition)
    span = Span(min(wanted), max(wanted) + 1)
    read = [
        _letter(tp, record)
        async for tp, record in reader.read({place: span})
        if record.offset in wanted
    ]
    return [letter for letter in read if letter is not None]


async def _letter_at(reader: LogReader, place: TopicPartition, offset: int) -> Letter:
    logs = await reader.bounds([place])
    record = None
    if logs[place].start <= offset < logs[place].end:
        record = (await reader.at({place: offset})).get(place)
    found = _letter(place, record) if record is not None and record.offset == offset else None
    if found is None:
        raise LetterError(
            f"no letter at offset {offset} of partition {place.partition} of {place.topic}, which "
            f"holds {logs[place].start} to {logs[place].end}"
        )
    return found


def _letter(tp: TopicPartition, record: LogRecord) -> Letter | None:
    try:
        letter = decode_dead_letter(record.value)
    except DecodeError:
        return None
    return Letter(
        letter=letter,
        partition=tp.partition,
        offset=record.offset,
        written_ns=record.timestamp * _NS_PER_MS,
    )


def _without_payload(found: Letter) -> Letter:
    letter = msgspec.structs.replace(found.letter, payload=b"")
    return msgspec.structs.replace(found, letter=letter)
