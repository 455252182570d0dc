"""Sends dead letters once more, and takes each away when what it held was acknowledged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)

from mlops_events.control.deadletters import Choice, Letter, LetterError, by_key
from mlops_events.control.deadletters_plan import Account, Kept, Outgoing, Planner, whole_payload
from mlops_events.control.deadletters_read import chunks, open_letters, read_letters, with_payloads
from mlops_events.control.topics import list_topics
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.clients import make_producer
from mlops_events.streams.logreader import LogReader, TopicPartition
from mlops_events.streams.settings import StreamSettings

__all__ = ["LetterProducer", "redrive", "send_again"]

log = logging.getLogger(__name__)

_SEND_S: Final = 60.0
_STOP_S: Final = 10.0
_OF_THE_RECORD = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)
"""What one record or topic fails with while others may pass."""


_Planned: TypeAlias = tuple[Letter, list[Outgoing]]


class LetterProducer(Protocol):
    """What is used of aiokafka's producer."""

    async def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes,
        headers: Sequence[tuple[str, bytes]],
        partition: int | None = None,
    ) -> "asyncio.Future[Any]":
        """Send a record; the future is done when it is acknowledged."""
        ...


async def redrive(
    kafka: KafkaSettings,
    settings: StreamSettings,
    choice: Choice,
    *,
    keys: Sequence[str] = (),
    limit: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Callable[[Account], None] = lambda _: None,
) -> Account:
    """Redrive the letters that lie there now; those that come meanwhile are left alone.

    Args:
        kafka: where.
        settings: of the stream.
        choice: which letters.
        keys: only these of them: keys, or beginnings that only one has; all if there are none.
        limit: only so many of them, the oldest.
        force: also those that failed again too often.
        dry_run: say what would become of them, and do nothing.
        progress: told after each part.

    Raises:
        ConfigError: no broker answers.
        LetterError: a key is none, or Kafka failed; what was not acknowledged has stayed.
    """
    async with AsyncExitStack() as stack:
        reader, partitions = await stack.enter_async_context(open_letters(kafka))
        letters = await read_letters(reader, partitions, choice)
        if keys:
            named = {found.place: found for found in (by_key(letters, key) for key in keys)}
            letters = sorted(named.values(), key=lambda found: found.written_ns)
        producer = None
        if not dry_run:
            producer = make_producer(kafka)
            await producer.start()
            stack.push_async_callback(_stop, producer)
        return await send_again(
            letters[:limit],
            topic=partitions[0].topic,
            planner=Planner(
                settings,
                topics=kafka.topics,
                existing={topic.name for topic in await list_topics(kafka)},
                force=force,
            ),
            reader=reader,
            producer=producer,
            progress=progress,
        )


async def send_again(
    letters: Sequence[Letter],
    *,
    topic: str,
    planner: Planner,
    reader: LogReader,
    producer: LetterProducer | None,
    progress: Callable[[Account], None] = lambda _: None,
) -> Account:
    """Send letters once more and take those away that were acknowledged.

    Whatever ends this process at any moment, each letter is there or its event was acknowledged:
    at worst it is sent once more by the next call, under the same id.

    Args:
        letters: which, without their payloads.
        topic: of the dead letters.
        planner: decides what each becomes.
        reader: reads payloads.
        producer: a started one; None for a dry run.
        progress: told after each part.

    Raises:
        LetterError: Kafka failed; what was not acknowledged has stayed.
        TimeoutError: the broker does not answer.
    """
    account = Account(chosen=len(letters), dry_run=producer is None)
    for part in chunks(letters):
        loaded = await with_payloads(reader, topic, part)
        account.gone += len(part) - len(loaded)
        planned: list[_Planned] = []
        for letter in loaded:
            plan = planner.plan((await _whole(letter, reader, planner)).letter)
            if isinstance(plan, str):
                account.kept.append(Kept(key=letter.letter.key, why=plan))
            else:
                planned.append((letter, plan))
        if producer is not None:
            planned = await _send(planned, topic, producer, account)
        account.redriven += len(planned)
        account.sent.update(record.topic for _, plan in planned for record in plan)
        progress(account)
    return account


async def _whole(letter: Letter, reader: LogReader, planner: Planner) -> Letter:
    """Return a letter with its whole payload, if what was cut off still lies where it stood."""
    cut = letter.letter
    if not cut.truncated or cut.topic not in planner.existing:
        return letter
    place = TopicPartition(cut.topic, cut.partition)
    try:
        logs = await reader.bounds([place])
        if not logs[place].start <= cut.offset < logs[place].end:
            return letter
        record = (await reader.at({place: cut.offset})).get(place)
    except (KafkaError, TimeoutError) as error:
        log.debug("what was cut off is not there", extra={"key": cut.key, "error": str(error)})
        return letter
    if record is None or record.offset != cut.offset:
        return letter
    payload = whole_payload(cut, record.value)
    if payload is None:
        return letter
    whole = msgspec.structs.replace(cut, payload=payload, truncated=False)
    return msgspec.structs.replace(letter, letter=whole)


async def _send(
    planned: list[_Planned], topic: str, producer: LetterProducer, account: Account
) -> list[_Planned]:
    """Send records, take away the letters that they were, and return those letters.

    Raises:
        LetterError: Kafka failed.
    """
    failures = await asyncio.gather(*(_sent(plan, producer) for _, plan in planned))
    done: list[_Planned] = []
    broken: list[Exception] = []
    for one, failure in zip(planned, failures, strict=True):
        if failure is None:
            done.append(one)
        elif isinstance(failure, _OF_THE_RECORD):
            account.kept.append(Kept(key=one[0].letter.key, why=f"was not taken: {failure}"))
        else:
            broken.append(failure)
    removals = [
        producer.send(
            topic,
            key=letter.letter.key.encode(),
            value=None,
            headers=[],
            partition=letter.partition,
        )
        for letter, _ in done
    ]
    answers = await asyncio.gather(*map(_acknowledged, removals))
    broken += [answer for answer in answers if answer is not None]
    if broken:
        raise LetterError(
            f"Kafka failed ({broken[0]!r}) after {account.redriven} of {account.chosen} letters; "
            "the others have stayed; run it again: what was sent twice has the same ids"
        ) from broken[0]
    return done


async def _sent(plan: Sequence[Outgoing], producer: LetterProducer) -> Exception | None:
    """Send the records of a letter; return why one was not acknowledged."""
    for record in plan:
        sending = producer.send(
            record.topic, key=record.key, value=record.value, headers=record.headers
        )
        failure = await _acknowledged(sending)
        if failure is not None:
            return failure
    return None


async def _acknowledged(
    sending: Awaitable[asyncio.Future[Any]],
) -> Exception | None:
    """Wait for an acknowledgement; return why there is none."""
    try:
        async with asyncio.timeout(_SEND_S):
            await (await sending)
    except (KafkaError, TimeoutError) as error:
        return error
    return None


async def _stop(producer: Any) -> None:
    # With idempotence aiokafka waits without end for a broker that is away.
    with suppress(TimeoutError):
        await asyncio.wait_for(producer.stop(), _STOP_S)
