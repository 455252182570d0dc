"""The stream's Faust app, and its life in a process."""

import asyncio
import logging
import os
import signal
import threading
from functools import partial
from typing import Any, Final

import faust

from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.health import Counters, Health, serve_health
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.batches import SETTINGS, BatchApp
from mlops_events.streams.clients import (
    check_topics,
    count_partitions,
    make_producer,
    open_reader,
    place_keys,
)
from mlops_events.streams.logreader import TopicPartition
from mlops_events.streams.outbox import Outbox
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.source import FaustSource
from mlops_events.streams.watchdog import Watchdog
from mlops_events.streams.worker import Worker

__all__ = ["StreamApp", "build_app", "run_stream"]

log = logging.getLogger(__name__)

DRAIN_S: Final = 10.0
STOP_S: Final = 5.0
LEAVE_S: Final = 2.0
HANG_S: Final = 60.0


class StreamApp(BatchApp):
    """A Faust app whose agent hands what it reads to a worker.

    Args:
        settings: of the stream.
        kafka: where the topics are.
    """

    def __init__(self, settings: StreamSettings, kafka: KafkaSettings) -> None:
        self.group = settings.group or f"{kafka.prefix}.stream"
        super().__init__(self.group, **_options(settings, kafka))
        self.counters = Counters("stream")
        self.worker: Worker | None = None
        self.source = FaustSource(self)
        self._outgoing = make_producer(kafka)
        self._stream_settings = settings
        self._kafka = kafka

    async def open(self) -> Worker:
        """Connect the producer and make the worker; to be done before the app starts.

        Raises:
            ConfigError: topics are missing, or break what the guarantees rest on.
            KafkaError: no broker answers.
        """
        topics = self._kafka.topics
        await self._outgoing.start()
        names = [
            *topics.raws,
            *(topics.sink(name) for name in self._stream_settings.sinks),
            topics.stats,
            topics.dead_letters,
            topics.checkpoints,
        ]
        await check_topics(self._kafka, names)
        partitions = await count_partitions(self._outgoing, names)
        for topic in topics.raws:
            if partitions[topic] != partitions[topics.checkpoints]:
                raise ConfigError(
                    f"{topic} has {partitions[topic]} partitions, {topics.checkpoints} has "
                    f"{partitions[topics.checkpoints]}; they must have the same number, and a "
                    "live topic keeps its number: move to topics with another prefix"
                )
        self.worker = Worker(
            self._stream_settings,
            topics=topics,
            group=self.group,
            partitions=partitions,
            place=place_keys(partitions),
            source=self.source,
            producer=self._outgoing,
            outbox=Outbox(self._outgoing),
            reader=partial(open_reader, self._kafka),
            counters=self.counters,
        )
        return self.worker

    async def close(self) -> None:
        """Disconnect the producer; to be done after the app's stop."""
        # With idempotence aiokafka waits without end for a broker that is away.
        await asyncio.wait_for(self._outgoing.stop(), STOP_S)


def build_app(settings: StreamSettings, kafka: KafkaSettings) -> StreamApp:
    """Return the app with its one source, all raw topics, and its one agent.

    It is to be built in the event loop that runs it; `run_stream` does both.

    Raises:
        ConfigError: there are no brokers, or the CA file cannot be read.
    """
    app = StreamApp(settings, kafka)
    source = app.topic(*kafka.topics.raws, value_type=bytes, acks=False)
    revoke_s = 1.0 if kafka.embedded else 8.0

    @app.agent(source, name="stream")
    async def stream(batches: Any) -> None:
        async for batch in batches:
            if app.worker is not None:
                await app.worker.take(TopicPartition(*batch.tp), batch.records)

    async def assigned(*args: Any, **kwargs: Any) -> None:
        if app.worker is not None:
            app.worker.assigned(TopicPartition(*tp) for tp in args[1])

    async def revoked(*args: Any, **kwargs: Any) -> None:
        if app.worker is not None:
            await app.worker.revoked(within_s=revoke_s)

    app.on_partitions_assigned.connect(assigned)
    app.on_partitions_revoked.connect(revoked)
    return app


async def run_stream(settings: StreamSettings, kafka: KafkaSettings) -> int:
    """Run a worker until it is told to stop, and return the process's exit code.

    SIGTERM and SIGINT stop it cleanly: nothing more is taken, what was taken is delivered and
    saved, 0 is returned. Whatever goes wrong ends it with 1, to be started again; nothing is
    committed that was not delivered.

    Raises:
        ConfigError: settings, topics and checkpoints do not fit.
    """
    misfit: BaseException | None = None
    code = 0
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = build_app(settings, kafka)
    watchdog = Watchdog(HANG_S)
    health = serve_health(
        settings.health_port,
        counters=app.counters,
        health=Health(
            alive=lambda: "the event loop hangs" if watchdog.behind_s > HANG_S / 2 else None,
            ready=lambda: None if app.worker is not None and app.worker.ready else "starting",
        ),
    )
    try:
        await _run(app, watchdog, stop)
    except* ConfigError as errors:
        misfit, code = _first(errors), 1
    except* Exception:  # the edge: whatever it is, it is said, and the process starts anew
        log.critical("the stream cannot go on; nothing more is committed", exc_info=True)
        code = 1
    finally:
        if health is not None:
            health.close()
        if not await _stopped(app):
            _leave(code)
    if misfit is not None:
        raise misfit
    return code


async def _run(app: StreamApp, watchdog: Watchdog, stop: asyncio.Event) -> None:
    """Run until told to stop.

    Raises:
        ExceptionGroup: what ended it before.
    """
    async with asyncio.TaskGroup() as tasks:
        worker = await app.open()
        running = [
            tasks.create_task(watchdog.run()),
            tasks.create_task(worker.run()),
            tasks.create_task(app.source.watch()),
            tasks.create_task(_run_faust(app)),
        ]
        await stop.wait()
        log.info("stopping")
        await worker.drain(within_s=DRAIN_S)
        for task in running:
            task.cancel()


async def _run_faust(app: StreamApp) -> None:
    """Start Faust's side and wait for its end.

    Raises:
        MlopsEventsError: it crashed.
    """
    await app.start()
    await app.wait_until_stopped()
    raise MlopsEventsError(f"Faust stopped: {app.crash_reason!r}") from app.crash_reason


async def _stopped(app: StreamApp) -> bool:
    """Stop Faust and the producer; return whether the time sufficed."""
    endings = await asyncio.gather(
        *(asyncio.wait_for(ending, STOP_S) for ending in (app.stop(), app.close())),
        return_exceptions=True,  # of aiokafka's consumer a CancelledError if its broker is away
    )
    for reason in endings:
        if reason is not None:
            log.warning("not stopped cleanly", extra={"reason": repr(reason)})
    return not any(isinstance(reason, TimeoutError) for reason in endings)


def _leave(code: int) -> None:
    """Let the process end soon, though a thread of Faust's may still wait for a broker that hangs."""
    leaving = threading.Timer(LEAVE_S, os._exit, [code])
    leaving.daemon = True
    leaving.start()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _options(settings: StreamSettings, kafka: KafkaSettings) -> dict[str, Any]:
    """Return the settings of Faust."""
    clients = kafka.client_options()
    session_s, heartbeat_s, rebalance_s, instance_id = 10.0, 1.0, 60.0, settings.instance_id or None
    if kafka.embedded:
        session_s, heartbeat_s, rebalance_s, instance_id = 2.0, 0.5, 2.0, None
    elif instance_id:
        session_s = 30.0
    return {
        **SETTINGS,
        "broker": [f"kafka://{address}" for address in clients["bootstrap_servers"]],
        "broker_credentials": _credentials(kafka, clients.get("ssl_context")),
        "broker_session_timeout": session_s,
        "broker_heartbeat_interval": heartbeat_s,
        "broker_rebalance_timeout": rebalance_s,
        "broker_request_timeout": 90.0,
        "consumer_group_instance_id": instance_id,
        "consumer_auto_offset_reset": "earliest",
        "consumer_metadata_max_age_ms": 5000,
        "store": "memory://",
        "value_serializer": "raw",
        "web_enabled": False,
        "topic_disable_leader": True,
        "topic_allow_declare": False,
        "table_standby_replicas": 0,
        "stream_wait_empty": False,
        # Faust's own complaints about slow streams and commits it does not see
        "stream_processing_timeout": 1e9,
        "broker_commit_livelock_soft_timeout": 1e9,
    }


def _credentials(kafka: KafkaSettings, ssl_context: Any) -> Any:
    if kafka.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            mechanism=kafka.sasl_mechanism,
            username=kafka.sasl_username,
            password=kafka.sasl_password.reveal(),
            ssl_context=ssl_context,
        )
    return None if ssl_context is None else faust.SSLCredentials(ssl_context)
