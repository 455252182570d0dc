"""Programs that have settings, metrics and a health page as ours do."""

from pathlib import Path
from typing import Any, assert_type

import msgspec

from mlops_events.schemas import ConfigError
from mlops_events.schemas.catalog import Metric, is_step_like, lookup
from mlops_events.schemas.health import Counters, Health, HealthServer, serve_health
from mlops_events.schemas.settings import KafkaSettings, Secret, explain, load
from mlops_events.schemas.sources import Setting

__all__ = ["CarrierSettings", "configure", "serve", "unit_of"]


class CarrierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a service of one's own, with Kafka's below them."""

    url: str
    token: Secret = Secret()
    timeout_s: float = 10.0
    kafka: KafkaSettings = KafkaSettings()


def configure(file: Path) -> dict[str, Any]:
    """Read settings, and show where they came from if they cannot be used."""
    try:
        settings = assert_type(load(CarrierSettings, "carrier", file=file), CarrierSettings)
    except ConfigError as error:
        for setting in assert_type(explain(CarrierSettings, "carrier", file=file), list[Setting]):
            print(setting.name, setting.value, setting.source, setting.place, setting.problem)
        raise SystemExit(str(error)) from error
    assert_type(settings.token.reveal(), str)
    return {"url": settings.url, **settings.kafka.client_options()}


def unit_of(field: str) -> str | None:
    """Say in what a field is measured."""
    metric = assert_type(lookup(field), Metric | None)
    return None if metric is None or is_step_like(field) else metric.unit


def serve() -> HealthServer | None:
    """Count, and answer probes."""
    counters = Counters("carrier", region="eu")
    counters.received("log", 3)
    counters.dropped("too_old")
    health = Health(ready=lambda: None if counters.total("received") else "nothing came yet")
    return assert_type(serve_health(0, counters=counters, health=health), HealthServer | None)
