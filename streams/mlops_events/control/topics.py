"""Creates topics and makes sure that they are as the guarantees need them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code

from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import Topics, TopicSpec

__all__ = ["TopicError", "TopicState", "count_brokers", "create_topics", "list_topics"]

_CREATED, _EXISTS, _REPLICATION = 0, 36, 38
_DAY_MS = 86_400_000
_RETRY_S = 0.1
_REQUEST_S = 20.0


class TopicError(MlopsEventsError):
    """Topics are not what is needed and cannot be made so; the message names each."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is; what the broker does not tell of its settings is missing."""

    name: str
    partitions: int
    config: dict[str, str] = {}
    created: bool = False


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
    async with _admin(kafka, within_s=within_s) as admin:
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
        states = await _describe(admin, [s.name for s in specs], embedded=kafka.embedded)
    problems = [
        problem
        for spec in specs
        for problem in _differences(kafka.topics, spec, states[spec.name])
        if codes[spec.name][0] == _EXISTS
    ]
    if problems:
        raise TopicError("\n".join(problems))
    return [
        msgspec.structs.replace(states[s.name], created=codes[s.name][0] == _CREATED) for s in specs
    ]


async def list_topics(kafka: KafkaSettings, *, within_s: float = 10.0) -> list[TopicState]:
    """Return the topics below the prefix, by name.

    Raises:
        ConfigError: no broker answers.
    """
    async with _admin(kafka, within_s=within_s) as admin:
        names = sorted(
            name
            for name in await _timed(admin.list_topics())
            if name.startswith(f"{kafka.prefix}.")
        )
        states = await _describe(admin, names, embedded=kafka.embedded) if names else {}
    return [states[name] for name in names]


async def count_brokers(kafka: KafkaSettings, *, within_s: float = 10.0) -> int:
    """Return how many brokers the cluster has.

    Raises:
        ConfigError: no broker answers.
    """
    async with _admin(kafka, within_s=within_s) as admin:
        return len((await _timed(admin.describe_cluster()))["brokers"])


@asynccontextmanager
async def _admin(kafka: KafkaSettings, *, within_s: float) -> AsyncIterator[Any]:
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


async def _describe(admin: Any, names: list[str], *, embedded: bool) -> dict[str, TopicState]:
    topics = await _led(admin, names)
    config: dict[str, dict[str, str]] = {}
    if not embedded:  # that one knows what it was given, but keeps to none of it
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        for answer in await _timed(admin.describe_configs(resources)):
            for resource in answer.resources:
                config[resource[3]] = {entry[0]: entry[1] for entry in resource[4]}
    return {
        name: TopicState(name=name, partitions=count, config=config.get(name, {}))
        for name, count in topics.items()
    }


async def _led(admin: Any, names: list[str]) -> dict[str, int]:
    """Return how many partitions topics have when each has a leader, a moment after creation."""
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
            return {topic["topic"]: len(topic["partitions"]) for topic in found}
        if loop.time() > deadline:
            raise TopicError(f"no broker leads {', '.join(waiting)}")
        await asyncio.sleep(_RETRY_S)


def _check_retention(topics: Topics, specs: Sequence[TopicSpec]) -> None:
    for spec in specs:
        if spec.name in topics.raws and int(spec.config["retention.ms"]) < _DAY_MS:
            raise ConfigError(
                f"a retention of {int(spec.config['retention.ms']) / 3_600_000:g} h for {spec.name};"
                " raw topics need 24 h or more, since a node may be away that long"
            )


def _refusal(spec: TopicSpec, code: int, text: str | None) -> str:
    if code == _REPLICATION:
        return (
            f"{spec.name}: replication {spec.replication} needs as many brokers;"
            " set MLOPS_EVENTS_KAFKA_REPLICATION=1 for a cluster of one"
        )
    return f"{spec.name} cannot be created: {text or for_code(code).__name__}"


def _differences(topics: Topics, spec: TopicSpec, state: TopicState) -> list[str]:
    found: list[str] = []
    if state.partitions != spec.partitions:
        found.append(
            f"{spec.name} has {state.partitions} partitions, expected {spec.partitions};"
            f" set MLOPS_EVENTS_KAFKA_PARTITIONS={state.partitions}, or another prefix"
        )
    config = state.config
    if config.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        found.append(
            f"{spec.name} keeps its writers' timestamps; silence is judged by the broker's:"
            " set message.timestamp.type=LogAppendTime"
        )
    retention_ms = int(config.get("retention.ms", _DAY_MS))
    if spec.name in topics.raws and 0 <= retention_ms < _DAY_MS:
        found.append(
            f"{spec.name} keeps records for {retention_ms / 3_600_000:g} h: set retention.ms to"
            f" {_DAY_MS} or more"
        )
    if spec.name == topics.checkpoints and config.get("cleanup.policy", "delete") != "delete":
        found.append(f"{spec.name} is compacted: set cleanup.policy=delete")
    return found
