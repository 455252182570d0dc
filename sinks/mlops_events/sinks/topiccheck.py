"""Makes sure that a sink's topics are as its guarantees need them."""

import asyncio
import logging

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import find_faults, refusal, topic_states
from mlops_events.sinks.log import LogError

__all__ = ["check_topic"]

log = logging.getLogger(__name__)

_CALL_S = 10.0


async def check_topic(kafka: KafkaSettings, topic: str) -> None:
    """Look at a sink's topic, and at that of the dead letters if it is there.

    The embedded broker does not tell its topics' settings, so nothing is checked there.

    Raises:
        ConfigError: they are not as they must be; it lists what is wrong, and how to mend each.
        LogError: Kafka does not say.
    """
    if kafka.embedded:
        return
    names = [topic, kafka.topics.dead_letters]
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        await asyncio.wait_for(admin.start(), _CALL_S)
        # Of all topics: a question about one that is missing may create it.
        everything = await asyncio.wait_for(admin.describe_topics(), _CALL_S)
        described = [found for found in everything if found["topic"] in names]
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, found["topic"]) for found in described
        ]
        answers = await asyncio.wait_for(admin.describe_configs(resources), _CALL_S)
    except (KafkaError, TimeoutError) as error:
        raise LogError(f"{topic}: its settings cannot be read: {error!r}") from error
    finally:
        await asyncio.wait_for(admin.close(), _CALL_S)
    found = topic_states(described, answers)
    unread = [name for name in found if not found[name].config]
    if unread:
        log.warning("settings of topics cannot be read, so not checked", extra={"topics": unread})
    refused = refusal(find_faults(kafka, found, names=list(found)))
    if refused is not None:
        raise ConfigError(refused)
