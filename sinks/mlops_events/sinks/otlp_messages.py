"""Turns events into OTLP's messages: Stats into metrics, logs into log records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from mlops_events.schemas.events import Log, Origin, Stats
from mlops_events.sinks.base import Envelope
from mlops_events.sinks.otlp_names import MetricName, metric_name

__all__ = ["logs_request", "metrics_request"]

E = TypeVar("E", Log, Stats)

_SCOPE: Final = "mlops_events"
_DEPTH: Final = 20
_INT64: Final = range(-(2**63), 2**63)

# https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber
_SEVERITIES: Final = {
    "trace": 1,
    "debug": 5,
    "info": 9,
    "notice": 10,
    "success": 10,
    "warning": 13,
    "warn": 13,
    "error": 17,
    "critical": 21,
    "fatal": 21,
}


def logs_request(
    logs: Sequence[tuple[Envelope, Log]], *, replay: str = ""
) -> ExportLogsServiceRequest:
    """Return the request that exports logs, those of an emitter below one resource."""
    request = ExportLogsServiceRequest()
    for some in _by_emitter(logs):
        records = [_log_record(envelope, event, replay) for envelope, event in some]
        scope = ScopeLogs(scope=InstrumentationScope(name=_SCOPE), log_records=records)
        request.resource_logs.append(
            ResourceLogs(resource=_resource(some[0][0]), scope_logs=[scope])
        )
    return request


def metrics_request(
    stats: Sequence[tuple[Envelope, Stats]], *, now_ns: int, replay: str = ""
) -> ExportMetricsServiceRequest:
    """Return the request that exports Stats: a Summary for each series, a point for each window.

    A Summary's quantiles 0, 0.5 and 1 are minimum, median and maximum; its sum is mean times count.

    Args:
        stats: final ones.
        now_ns: the time of windows over fields, which have none.
        replay: the id of the replay that they come from.
    """
    request = ExportMetricsServiceRequest()
    shared = _Shared()
    for some in _by_emitter(stats):
        series: dict[MetricName, list[Stats]] = {}
        for _, one in some:
            series.setdefault(metric_name(one.kind, one.name, one.field), []).append(one)
        metrics = [
            Metric(
                name=name.name,
                unit=name.unit,
                summary=Summary(
                    data_points=[_point(one, name, now_ns, replay, shared) for one in windows]
                ),
            )
            for name, windows in series.items()
        ]
        fleet = [one for _, one in some if one.nodes is not None]
        if fleet:
            metrics += _node_counts(fleet, now_ns)
        scope = ScopeMetrics(scope=InstrumentationScope(name=_SCOPE), metrics=metrics)
        request.resource_metrics.append(
            ResourceMetrics(resource=_resource(some[0][0]), scope_metrics=[scope])
        )
    return request


def _by_emitter(events: Iterable[tuple[Envelope, E]]) -> list[list[tuple[Envelope, E]]]:
    groups: dict[tuple[bytes, tuple[tuple[str, str], ...]], list[tuple[Envelope, E]]] = {}
    for envelope, event in events:
        key = (envelope.id.emitter, tuple(envelope.tags.items()))
        groups.setdefault(key, []).append((envelope, event))
    return list(groups.values())


def _resource(envelope: Envelope) -> Resource:
    """Return who emitted, by the conventions where they have a name."""
    origin: Origin = envelope.origin
    who = [origin.run, origin.role, origin.uid, origin.rank]
    values: dict[str, Any] = {
        "service.name": origin.tags.get("service") or origin.project or "mlops-events",
        "service.version": envelope.tags.get("version") or origin.version,
        "service.instance.id": "/".join(str(part) for part in who if part not in (None, "")),
        "host.name": origin.node,
        "deployment.environment.name": origin.environment,
        "mlops.run": origin.run,
        "mlops.role": origin.role,
        "mlops.uid": None if origin.uid is None else str(origin.uid),
        "mlops.rank": origin.rank,
        "mlops.hotkey": origin.hotkey,
        "mlops.group": origin.group,
        "mlops.job_type": origin.job_type,
        "mlops.netuid": origin.netuid,
        **{f"mlops.tag.{key}": value for key, value in origin.tags.items()},
        **{f"mlops.tag.{k}": v for k, v in envelope.tags.items() if k != "version"},
    }
    return Resource(
        attributes=_attributes({k: v for k, v in values.items() if v not in (None, "")})
    )


def _log_record(envelope: Envelope, event: Log, replay: str) -> LogRecord:
    extra = {
        "mlops.event.id": str(envelope.id),
        "mlops.logger": event.logger,
        "mlops.step": event.step,
        "mlops.replay": replay,
    }
    level = event.level.lower()
    return LogRecord(
        time_unix_nano=max(0, event.ts),
        severity_number=_SEVERITIES.get(level, 0),  # type: ignore[arg-type]  # an enum of ints
        severity_text=event.level,
        body=_value(event.message),
        attributes=[
            *_attributes({k: v for k, v in extra.items() if v not in (None, "")}),
            *_attributes(event.fields),
        ],
        trace_id=_hex(event.trace_id, 16),
        span_id=_hex(event.span_id, 8),
    )


class _Shared:
    """Makes attributes once for all points that have the same: half of what a point costs."""

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[str, Any], ...], list[KeyValue]] = {}

    def __call__(self, values: Mapping[str, Any]) -> list[KeyValue]:
        key = tuple(values.items())
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _attributes(values)
        return found


def _point(
    stats: Stats, name: MetricName, now_ns: int, replay: str, shared: _Shared
) -> SummaryDataPoint:
    values = {
        0.0: stats.min,
        0.5: stats.median if stats.nodes is None else stats.median_of_medians,
        1.0: stats.max,
    }
    return SummaryDataPoint(
        attributes=shared({**_window(stats, replay), **dict(name.attributes)}),
        start_time_unix_nano=max(0, stats.start) if stats.by == "time" else now_ns,
        time_unix_nano=_end(stats, now_ns),
        count=stats.count,
        sum=0.0 if stats.mean is None else stats.mean * stats.count * name.scale,
        quantile_values=[
            SummaryDataPoint.ValueAtQuantile(quantile=quantile, value=value * name.scale)
            for quantile, value in values.items()
            if value is not None
        ],
    )


def _window(stats: Stats, replay: str) -> dict[str, Any]:
    """Return what tells this window's point from another's."""
    values: dict[str, Any] = {"mlops.event": stats.name, "mlops.window.size": stats.size}
    if stats.by != "time":
        values |= {"mlops.window.by": stats.by, "mlops.window.start": stats.start}
    if stats.nonfinite:
        values["mlops.nonfinite"] = stats.nonfinite
    if stats.nodes is not None:
        values["mlops.fleet"] = True
    if replay:
        values["mlops.replay"] = replay
    return values


def _node_counts(fleet: Sequence[Stats], now_ns: int) -> list[Metric]:
    """Return how many nodes the windows of a fleet are made of, and how many are missing."""

    def gauge(name: str, counts: Sequence[int]) -> Metric:
        points = [
            NumberDataPoint(
                attributes=_attributes({**_window(one, ""), "mlops.field": one.field}),
                time_unix_nano=_end(one, now_ns),
                as_int=count,
            )
            for one, count in zip(fleet, counts, strict=True)
        ]
        return Metric(name=name, unit="{node}", gauge=Gauge(data_points=points))

    return [
        gauge("mlops.fleet.nodes", [one.nodes or 0 for one in fleet]),
        gauge("mlops.fleet.nodes_missing", [one.nodes_missing or 0 for one in fleet]),
    ]


def _end(stats: Stats, now_ns: int) -> int:
    return max(0, stats.start + stats.size) if stats.by == "time" else now_ns


def _hex(text: str, length: int) -> bytes:
    """Return an id's bytes; none unless it is one of OpenTelemetry's."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return found if len(found) == length else b""


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=_text(key), value=_value(value)) for key, value in values.items()]


def _value(value: Any, depth: int = 0) -> AnyValue:
    """Return any value of an event; what OTLP has no form for becomes text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        known = value in _INT64
        return AnyValue(int_value=value) if known else AnyValue(double_value=float(value))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=_text(value))
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if value is None:
        return AnyValue()
    if depth < _DEPTH and isinstance(value, list | tuple):
        members = [_value(member, depth + 1) for member in value]
        return AnyValue(array_value=ArrayValue(values=members))
    if depth < _DEPTH and isinstance(value, dict):
        pairs = [KeyValue(key=_text(str(k)), value=_value(v, depth + 1)) for k, v in value.items()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    return AnyValue(string_value=_text(str(value)))


def _text(text: str) -> str:
    """Return a text that protobuf takes: without halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text
