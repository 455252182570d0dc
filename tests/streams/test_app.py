"""The Faust app: set up for either broker, and a process that ends when it cannot work."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import faust
import pytest

from mlops_events.schemas import ConfigError
from mlops_events.schemas.secret import Secret
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.app import StreamApp, build_app, run_stream
from mlops_events.streams.batches import BatchScheduler, BatchSchema
from mlops_events.streams.settings import StreamSettings


@pytest.fixture
def build() -> Iterator[Callable[..., StreamApp]]:
    """Yield a maker of apps that are never started."""
    made: list[Any] = []

    def make(
        settings: StreamSettings | None = None, *, brokers: str = "a:1,b:2", **kafka: Any
    ) -> StreamApp:
        app = build_app(settings or StreamSettings(), KafkaSettings(brokers=brokers, **kafka))
        made.append(app)
        return app

    yield make
    for app in made:
        app._outgoing._closed = True  # it was never started
        if app._consumer is not None:
            app._consumer._thread.thread_loop.close()


async def test_one_source_reads_all_raw_topics_in_batches(build: Callable[..., StreamApp]) -> None:
    """One agent, no acknowledgements of Faust's own, batches instead of messages."""
    app = build(prefix="p")
    (agent,) = app.agents.values()
    channel: Any = agent.channel

    assert set(channel.topics) == {
        f"p.{kind}.v1" for kind in ("run", "observation", "profile", "log")
    }
    assert channel.acks is False
    assert app.conf.id == "p.stream"
    assert app.conf.ConsumerScheduler is BatchScheduler
    assert app.conf.Schema is BatchSchema
    assert [str(url) for url in app.conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert app.conf.broker_max_poll_interval == 1e6


@pytest.mark.parametrize(
    ("settings", "embedded", "session_s", "rebalance_s", "instance_id"),
    [
        (StreamSettings(), False, 10, 60, None),
        (StreamSettings(instance_id="w0"), False, 30, 60, "w0"),
        (StreamSettings(), True, 2, 2, None),
        (StreamSettings(instance_id="w0"), True, 2, 2, None),
    ],
)
async def test_membership_fits_the_broker(
    build: Callable[..., StreamApp],
    settings: StreamSettings,
    embedded: bool,
    session_s: float,
    rebalance_s: float,
    instance_id: str | None,
) -> None:
    """A static member may be away for longer; the embedded broker knows no static members."""
    conf = build(settings, embedded=embedded).conf

    assert conf.broker_session_timeout == session_s
    assert conf.broker_rebalance_timeout == rebalance_s
    assert conf.consumer_group_instance_id == instance_id


async def test_credentials_reach_faust(build: Callable[..., StreamApp]) -> None:
    """SASL with and without TLS, TLS alone, and nothing."""
    secret = {
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "worker",
        "sasl_password": Secret("pass"),
    }
    plain = build(security_protocol="SASL_PLAINTEXT", **secret).conf.broker_credentials
    secure = build(security_protocol="SASL_SSL", **secret).conf.broker_credentials
    tls = build(security_protocol="SSL").conf.broker_credentials

    assert isinstance(plain, faust.SASLCredentials)
    assert (plain.username, plain.password, plain.mechanism.value, plain.protocol.value) == (
        *("worker", "pass", "SCRAM-SHA-512", "SASL_PLAINTEXT"),
    )
    assert isinstance(secure, faust.SASLCredentials)
    assert secure.protocol.value == "SASL_SSL"
    assert isinstance(tls, faust.SSLCredentials)
    assert build().conf.broker_credentials is None


async def test_without_brokers_nothing_is_built() -> None:
    """The setting is named."""
    with pytest.raises(ConfigError, match="MLOPS_EVENTS_KAFKA_BROKERS"):
        await run_stream(StreamSettings(), KafkaSettings())


async def test_without_a_broker_the_process_ends(
    free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody listens: exit code 1 and the reason, for whoever starts it again."""
    caplog.set_level(logging.CRITICAL, logger="aiokafka")
    kafka = KafkaSettings(brokers=f"127.0.0.1:{free_port()}")
    code = await run_stream(StreamSettings(), kafka)

    assert code == 1
    assert "the stream cannot go on" in caplog.text
    assert "KafkaConnectionError" in caplog.text
