"""The fleet service's life in a process: signals, health, exit code."""

import asyncio
import logging
import signal
from typing import Final

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.health import Health, serve_health
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.streams.fleetservice import FleetService
from mlops_events.streams.fleetsettings import FleetStatsSettings
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.watchdog import Watchdog

__all__ = ["run_fleet"]

log = logging.getLogger(__name__)

HANG_S: Final = 60.0


async def run_fleet(
    settings: FleetStatsSettings, *, stream: StreamSettings, kafka: KafkaSettings
) -> int:
    """Run the service until it is told to stop, and return the process's exit code.

    SIGTERM and SIGINT stop it cleanly: what waits to be published is published, 0 is returned.
    Whatever goes wrong ends it with 1, to be started again.

    Raises:
        ConfigError: settings and topics do not fit.
    """
    code = 0
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = FleetService(settings, stream=stream, kafka=kafka)
    watchdog = Watchdog(HANG_S)
    health = serve_health(
        settings.health_port,
        counters=service.counters,
        health=Health(
            alive=lambda: "the event loop hangs" if watchdog.behind_s > HANG_S / 2 else None,
            ready=lambda: None if service.ready else "reading back",
        ),
    )
    beating = asyncio.create_task(watchdog.run())
    try:
        await _unless_stopped_early(service, stop)
    except ConfigError:
        raise
    except Exception:  # the edge: whatever it is, it is said, and the process starts anew
        log.critical("the fleet service cannot go on", exc_info=True)
        code = 1
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        if health is not None:
            health.close()
    return code


async def _unless_stopped_early(service: FleetService, stop: asyncio.Event) -> None:
    """Run the service; before it is ready, a stop ends it at once."""
    running = asyncio.create_task(service.run(stop))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not service.ready:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return
        await running
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
