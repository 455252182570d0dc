"""What a series is called in OpenTelemetry, by its semantic conventions where they have a name."""

from typing import Final, NamedTuple

from mlops_events.schemas.catalog import lookup

__all__ = ["MetricName", "metric_name"]


class MetricName(NamedTuple):
    """A metric's name and UCUM unit; values are multiplied by `scale`, `attributes` go with it."""

    name: str
    unit: str = ""
    scale: float = 1.0
    attributes: tuple[tuple[str, str], ...] = ()


_GPU: Final = (("hw.type", "gpu"),)
_USED: Final = (("system.memory.state", "used"),)
_PERCENT: Final = 0.01

# https://opentelemetry.io/docs/specs/semconv/system/system-metrics/ and .../hardware-metrics/
_CONVENTIONS: Final[dict[str, MetricName]] = {
    "cpu_percent": MetricName("system.cpu.utilization", "1", _PERCENT),
    "memory_percent": MetricName("system.memory.utilization", "1", _PERCENT, _USED),
    "memory_used": MetricName("system.memory.usage", "By", 1.0, _USED),
    "memory_total": MetricName("system.memory.limit", "By"),
    "process_memory": MetricName("process.memory.usage", "By"),
    "disk_percent": MetricName("system.filesystem.utilization", "1", _PERCENT),
    "disk_used": MetricName(
        "system.filesystem.usage", "By", 1.0, (("system.filesystem.state", "used"),)
    ),
    "disk_free": MetricName(
        "system.filesystem.usage", "By", 1.0, (("system.filesystem.state", "free"),)
    ),
    "disk_read": MetricName("system.disk.io", "By", 1.0, (("disk.io.direction", "read"),)),
    "disk_written": MetricName("system.disk.io", "By", 1.0, (("disk.io.direction", "write"),)),
    "network_received": MetricName(
        "system.network.io", "By", 1.0, (("network.io.direction", "receive"),)
    ),
    "network_sent": MetricName(
        "system.network.io", "By", 1.0, (("network.io.direction", "transmit"),)
    ),
    "gpu_utilization": MetricName("hw.gpu.utilization", "1", _PERCENT),
    "gpu_memory_utilization": MetricName("hw.gpu.memory.utilization", "1", _PERCENT),
    "gpu_memory_used": MetricName("hw.gpu.memory.usage", "By"),
    "gpu_memory_total": MetricName("hw.gpu.memory.limit", "By"),
    "gpu_temperature": MetricName("hw.temperature", "Cel", 1.0, _GPU),
    "gpu_power": MetricName("hw.power", "W", 1.0, _GPU),
}


def metric_name(kind: str, name: str, field: str) -> MetricName:
    """Return what a series is called: by the conventions, else `<event>.<field>` with its unit.

    Args:
        kind: of the events; durations of sections are `section.<name>.duration`, in seconds.
        name: of the events.
        field: of the samples.
    """
    if kind == "profile":
        return MetricName(f"section.{name}.{field}", "s")
    known = lookup(field)
    if known is None:
        return MetricName(f"{name}.{field}")
    return _CONVENTIONS.get(known.name) or MetricName(f"{name}.{field}", known.unit)
