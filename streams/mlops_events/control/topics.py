"""Creates topics and makes sure that they are as the guarantees need them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code

from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import find_faults, refusal
from mlops_events.schemas.topicrules import TopicState, kept_for
from mlops_events.schemas.topics import DAY_MS, Topics, TopicSpec
from mlops_events.streams.clients import describe_topics

__all__ = ["TopicError", "count_brokers", "create_topics", "list_topics", "open_admin"]

_CREATED, _EXISTS, _REPLICATION = 0, 36, 38
_RETRY_S = 0.1
_REQUEST_S = 20.0


class TopicError(MlopsEventsError):
    """Topics are not what is needed and cannot be made so; the message names each."""


async def create_topics(
    kafka: KafkaSettings, specs: Sequence[TopicSpec], *, within_s: float = 20.0
) -> list[TopicState]:
    """Create the topics that are missing, check the others, return all.

    Args:
        kafka: where.
        specs: the topics as they must be.
        within_s: how long the brokers may take to answer at all.

    Raises:
        ConfigError: no broker answers, or a retention is too short.
        TopicError: a topic cannot be created, or one that exists differs in what matters.
    """
    _check_retention(kafka.topics, specs)
    async with open_admin(kafka, within_s=within_s) as admin:
        wanted = [
            NewTopic(s.name, s.partitions, s.replication, topic_configs=s.config) for s in specs
        ]
        answer = await _timed(admin.create_topics(wanted))
        codes = {name: (code, text) for name, code, text in answer.topic_errors}
        problems = [
            _refusal(spec, *codes[spec.name])
            for spec in specs
            if codes[spec.name][0] not in (_CREATED, _EXISTS)
        ]
        if problems:
            raise TopicError("\n".join(problems))
        await _wait_for_leaders(admin, [s.name for s in specs])
        states = await describe_topics(admin, prefix=kafka.prefix, settings=not kafka.embedded)
    there = [spec for spec in specs if codes[spec.name][0] == _EXISTS]
    others = [_other_number(spec, states[spec.name]) for spec in there]
    refused = refusal(find_faults(kafka, states, names=[spec.name for spec in there]))
    problems = [problem for problem in (*others, refused) if problem]
    if problems:
        raise TopicError("\n".join(problems))
    return [
        msgspec.structs.replace(states[s.name], created=codes[s.name][0] == _CREATED) for s in specs
    ]


async def list_topics(kafka: KafkaSettings, *, within_s: float = 10.0) -> list[TopicState]:
    """Return the topics below the prefix, by name.

    Raises:
        ConfigError: no broker answers.
        TopicError: Kafka failed.
    """
    async with open_admin(kafka, within_s=within_s) as admin:
        found = await describe_topics(admin, prefix=kafka.prefix, settings=not kafka.embedded)
    return sorted(found.values(), key=lambda topic: topic.name)


async def count_brokers(kafka: KafkaSettings, *, within_s: float = 10.0) -> int:
    """Return how many brokers the cluster has.

    Raises:
        ConfigError: no broker answers.
    """
    async with open_admin(kafka, within_s=within_s) as admin:
        return len((await _timed(admin.describe_cluster()))["brokers"])


@asynccontextmanager
async def open_admin(kafka: KafkaSettings, *, within_s: float = 10.0) -> AsyncIterator[Any]:
    """Connect aiokafka's admin client for as long as it is needed.

    Raises:
        ConfigError: no broker answers.
        TopicError: Kafka failed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        admin = AIOKafkaAdminClient(**kafka.client_options())
        try:
            await asyncio.wait_for(admin.start(), max(_RETRY_S, deadline - loop.time()))
            break
        except (KafkaConnectionError, TimeoutError) as error:
            await _closed(admin)
            if loop.time() > deadline:
                raise ConfigError(
                    f"no Kafka answers at {kafka.brokers} within {within_s:g} s; is it running?"
                ) from error
            await asyncio.sleep(_RETRY_S)
    try:
        yield admin
    except (KafkaError, TimeoutError) as error:
        raise TopicError(f"Kafka at {kafka.brokers} failed: {error or type(error)}") from error
    finally:
        await _closed(admin)


async def _closed(admin: Any) -> None:
    await asyncio.wait_for(admin.close(), _REQUEST_S)


async def _timed(request: Any) -> Any:
    return await asyncio.wait_for(request, _REQUEST_S)


async def _wait_for_leaders(admin: Any, names: list[str]) -> None:
    """Wait until each partition has a leader, a moment after creation."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _REQUEST_S
    while True:
        found = await _timed(admin.describe_topics(names))
        waiting = [
            topic["topic"]
            for topic in found
            if topic["error_code"] or any(part["leader"] < 0 for part in topic["partitions"])
        ]
        if not waiting:
            return
        if loop.time() > deadline:
            raise TopicError(f"no broker leads {', '.join(waiting)}")
        await asyncio.sleep(_RETRY_S)


def _check_retention(topics: Topics, specs: Sequence[TopicSpec]) -> None:
    for spec in specs:
        kept_ms = int(spec.config["retention.ms"])
        if spec.name != topics.dead_letters and 0 <= kept_ms < DAY_MS:
            raise ConfigError(
                f"a retention of {kept_for(kept_ms)} for {spec.name}; it needs 24 h or more, "
                "since a node or a sink may be away that long"
            )


def _refusal(spec: TopicSpec, code: int, text: str | None) -> str:
    if code == _REPLICATION:
        return (
            f"{spec.name}: replication {spec.replication} needs as many brokers;"
            " set MLOPS_EVENTS_KAFKA_REPLICATION=1 for a cluster of one"
        )
    return f"{spec.name} cannot be created: {text or for_code(code).__name__}"


def _other_number(spec: TopicSpec, state: TopicState) -> str | None:
    if state.partitions == spec.partitions:
        return None
    return (
        f"{spec.name} has {state.partitions} partitions, expected {spec.partitions};"
        f" set MLOPS_EVENTS_KAFKA_PARTITIONS={state.partitions}, or another prefix"
    )
