"""One sink as a process: settings, signals, health, exit code."""

import asyncio
import gc
import logging
import os
import signal

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.health import Counters, Health, serve_health
from mlops_events.schemas.settings import KafkaSettings, load
from mlops_events.sinks.base import Sink, load_sink
from mlops_events.sinks.deliver import Delivery
from mlops_events.sinks.grouplog import GroupLog
from mlops_events.sinks.intake import DeliverSettings

__all__ = ["run_sink"]

log = logging.getLogger(__name__)

_STOP_S = 20.0
_HUNG_S = 60.0
_HUNG_EXIT_CODE = 70


def run_sink(
    name: str,
    *,
    kafka: KafkaSettings | None = None,
    settings: DeliverSettings | None = None,
) -> int:
    """Deliver to a sink until SIGTERM or SIGINT, and return the exit code of the process.

    0 after a signal: what was gathered is written and committed. 1 when the sink or the consumer
    cannot go on: whoever started the process starts it again.

    Args:
        name: the sink's name.
        kafka: from the environment if None.
        settings: from the environment if None.

    Raises:
        ConfigError: there is no such sink, or settings cannot be used.
    """
    kafka = kafka if kafka is not None else load(KafkaSettings, "kafka")
    settings = settings if settings is not None else load(DeliverSettings, "sink")
    kafka.client_options()
    sink = load_sink(name)
    # Batches are large and hold no cycles: looking for some costs a quarter of the throughput.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        asyncio.run(_serve(sink, kafka, settings))
    except ConfigError:
        raise
    except Exception:  # the edge: whatever it is, it is said, and the process starts anew
        log.exception("the sink's process cannot go on", extra={"sink": name})
        return 1
    return 0


async def _serve(sink: Sink, kafka: KafkaSettings, settings: DeliverSettings) -> None:
    counters = Counters("sink", sink=sink.name)
    topic = GroupLog(
        kafka,
        topic=kafka.topics.sink(sink.name),
        group=f"{kafka.prefix}.sink.{sink.name}",
        instance_id=settings.instance_id,
    )
    delivery = Delivery(
        sink,
        topic,
        dead_letters=kafka.topics.dead_letters,
        settings=settings,
        counters=counters,
    )
    limit_s = settings.write_timeout_s + _HUNG_S
    health = Health(
        alive=lambda: (
            f"silent for {delivery.silent_s:.0f} s" if delivery.silent_s > limit_s else None
        ),
        ready=lambda: delivery.trouble,
    )
    server = serve_health(settings.health_port, counters=counters, health=health)
    stop = asyncio.Event()
    _stop_on_signals(stop)
    try:
        await _run(delivery, stop)
    finally:
        if server is not None:
            await asyncio.to_thread(server.close)


async def _run(delivery: Delivery, stop: asyncio.Event) -> None:
    """Run until it ends; after the order to stop it has a deadline."""
    running = asyncio.ensure_future(delivery.run(stop))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    done, _ = await asyncio.wait({running}, timeout=_STOP_S)
    if not done:
        log.critical("the sink does not stop", extra={"seconds": _STOP_S})
        logging.shutdown()
        os._exit(_HUNG_EXIT_CODE)  # nothing of the batch in hand was committed
    running.result()


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
