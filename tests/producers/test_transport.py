"""Kafka as a transport, where no broker is needed: what is said about those that are away."""

import logging
from collections.abc import Callable

import pytest

from mlops_events.producers.transport import KafkaTransport, OutRecord, TransportError
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings, Secret

RECORD = OutRecord(topic="t", key=b"k", headers=[], value=b"v")


async def test_nobody_listens(free_port: Callable[[], int]) -> None:
    """The error names the address and the reason, and comes at once."""
    port = free_port()
    transport = KafkaTransport(KafkaSettings(brokers=f"127.0.0.1:{port}"))

    with pytest.raises(TransportError, match=rf"127.0.0.1:{port}.*[Rr]efused|Connect call"):
        await transport.send(RECORD)
    await transport.close(1)


async def test_a_name_that_does_not_resolve() -> None:
    """The error names it."""
    transport = KafkaTransport(KafkaSettings(brokers="no-such-host.invalid:9092"))

    with pytest.raises(TransportError, match=r"no-such-host.invalid:9092"):
        await transport.open()
    await transport.close(1)


async def test_close_without_open() -> None:
    """There is nothing to let go of."""
    await KafkaTransport(KafkaSettings(brokers="127.0.0.1:1")).close(1)


def test_no_brokers() -> None:
    """It is said when it is made, not when the first record is sent."""
    with pytest.raises(ConfigError, match="no brokers"):
        KafkaTransport(KafkaSettings())


async def test_the_password_is_in_no_message(free_port: Callable[[], int]) -> None:
    """Errors end up in logs."""
    settings = KafkaSettings(
        brokers=f"127.0.0.1:{free_port()}",
        security_protocol="SASL_PLAINTEXT",
        sasl_username="u",
        sasl_password=Secret("hunter2"),
    )
    transport = KafkaTransport(settings)

    with pytest.raises(TransportError) as error:
        await transport.open()
    await transport.close(1)
    assert "hunter2" not in str(error.value)


async def test_clients_of_the_program_are_heard_as_ever(
    free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """Only what aiokafka says in the transport's own thread is kept quiet, until it is closed."""
    transport = KafkaTransport(KafkaSettings(brokers=f"127.0.0.1:{free_port()}"))

    with caplog.at_level(logging.DEBUG, "aiokafka"), pytest.raises(TransportError):
        await transport.open()
    assert not [r for r in caplog.records if r.name.startswith("aiokafka")]
    await transport.close(1)
    logging.getLogger("aiokafka").warning("heard")
    assert "heard" in caplog.text
