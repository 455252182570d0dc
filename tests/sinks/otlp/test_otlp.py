"""The otlp sink against a collector that follows OTLP's specification."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mlops_events.schemas.events import EventId, Log, Origin, Stats, StatsKey
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch, Rejected, Sink, SinkBroken, SinkUnavailable
from mlops_events.sinks.otlp import OTLPSettings, OTLPSink
from mlops_events.sinks.testing import SinkContract, frame_record, stats_record

TS = 1_700_000_000_000_000_000
WINDOW = Stats(
    kind="observation",
    name="training",
    field="loss",
    start=TS,
    size=10_000_000_000,
    revision=4,
    final=True,
    count=3,
    mean=0.5,
    min=-0.5,
    max=1.5,
    median=0.25,
    nonfinite=1,
    closed_by="watermark",
)


class TestContract(SinkContract):
    """The otlp sink passes the tests of every sink; its destination has what came twice twice."""

    repeats = True

    @pytest.fixture(autouse=True)
    def _server(self, collector: Any, plain: Any) -> None:
        self.collector = collector
        self.plain = plain

    def make_sink(self) -> Sink:
        return OTLPSink(OTLPSettings(endpoint=self.collector.url))

    async def stored(self) -> Sequence[EventId | StatsKey]:
        logs = [
            self.plain(record.attributes)["mlops.event.id"] for _, record in self.collector.logs
        ]
        found: list[EventId | StatsKey] = []
        for name in logs:
            emitter, kind, seq, index = name.split("/")
            found.append(EventId(bytes.fromhex(emitter), kind, int(seq), int(index)))
        for _, metric in self.collector.metrics:
            event, _, field = metric.name.rpartition(".")
            found += [
                StatsKey(
                    bytes(range(16)), "observation", event, field, "time",
                    point.start_time_unix_nano,
                    point.time_unix_nano - point.start_time_unix_nano,
                )
                for point in metric.summary.data_points
            ]  # fmt: skip
        return found


async def write(collector: Any, batch: Batch, **settings: Any) -> list[Rejected]:
    """Write a batch with a sink of its own."""
    sink = OTLPSink(OTLPSettings(**{"endpoint": collector.url, **settings}), now=lambda: TS / 1e9)
    await sink.open()
    try:
        return list(await sink.write(batch))
    finally:
        await sink.close()


def logs(*events: Log, **where: Any) -> Batch:
    """Return a batch of log lines."""
    return Batch([frame_record(events, kind="log", **where)])


async def test_a_log_is_a_record_with_its_trace(collector: Any, plain: Any) -> None:
    """Severity, body, attributes and the ids of the active span arrive."""
    event = Log(
        ts=TS, level="warning", message="slow", logger="train", step=7, trace_id="ab" * 16,
        span_id="cd" * 8, fields={"loss": math.inf, "deep": {"a": [1, "b", None, True]}, "n": 2**64 - 1},
    )  # fmt: skip
    await write(collector, logs(event, origin=Origin(run="llama", role="miner", uid=7, node="a")))

    ((who, record),) = collector.logs
    assert who["service.instance.id"] == "llama/miner/7"
    assert (who["host.name"], who["mlops.uid"], who["service.name"]) == ("a", "7", "mlops-events")
    assert (record.time_unix_nano, record.severity_number, record.severity_text) == (
        TS, 13, "warning",
    )  # fmt: skip
    assert record.body.string_value == "slow"
    assert (record.trace_id, record.span_id) == (b"\xab" * 16, b"\xcd" * 8)
    values = plain(record.attributes)
    assert values["deep"] == {"a": [1, "b", None, True]}
    assert (values["loss"], values["n"], values["mlops.step"]) == (math.inf, float(2**64 - 1), 7)
    assert values["mlops.event.id"].endswith("/log/0/0")


async def test_a_window_is_a_point_of_a_summary(collector: Any, plain: Any) -> None:
    """Count, sum, and min, median and max as quantiles, over the window's time."""
    await write(collector, Batch([stats_record([WINDOW])]))

    ((who, metric),) = collector.metrics
    (point,) = metric.summary.data_points
    assert (metric.name, metric.unit) == ("training.loss", "1")
    assert (point.start_time_unix_nano, point.time_unix_nano) == (TS, TS + 10**10)
    assert (point.count, point.sum) == (3, 1.5)
    quantiles = {one.quantile: one.value for one in point.quantile_values}
    assert quantiles == {0.0: -0.5, 0.5: 0.25, 1.0: 1.5}
    assert plain(point.attributes)["mlops.nonfinite"] == 1
    assert who["mlops.rank"] == 0


async def test_known_metrics_have_the_names_of_the_conventions(collector: Any) -> None:
    """A GPU's use is hw.gpu.utilization, as a ratio, whatever the trainer calls it."""
    window = msgspec.structs.replace(
        WINDOW, name="system", field="gpu_util", min=40.0, median=50.0, max=60.0, mean=50.0
    )
    await write(collector, Batch([stats_record([window])]))

    ((_, metric),) = collector.metrics
    (point,) = metric.summary.data_points
    assert (metric.name, metric.unit) == ("hw.gpu.utilization", "1")
    assert [round(one.value, 9) for one in point.quantile_values] == [0.4, 0.5, 0.6]
    assert point.sum == pytest.approx(1.5)


async def test_a_section_is_a_duration_in_seconds(collector: Any) -> None:
    """Profiles are told from observations of the same name."""
    window = msgspec.structs.replace(WINDOW, kind="profile", name="forward", field="duration")
    await write(collector, Batch([stats_record([window])]))

    ((_, metric),) = collector.metrics
    assert (metric.name, metric.unit) == ("section.forward.duration", "s")


async def test_windows_that_are_still_open_are_not_exported(collector: Any) -> None:
    """A collector cannot take a point back."""
    window = msgspec.structs.replace(WINDOW, final=False, closed_by="")
    refused = await write(collector, Batch([stats_record([window])]))

    assert refused == []
    assert collector.metrics == []


async def test_windows_over_fields_name_field_and_start(collector: Any, plain: Any) -> None:
    """They have no time of their own: the point is of now."""
    window = msgspec.structs.replace(WINDOW, by="window", start=41, size=1)
    await write(collector, Batch([stats_record([window])]))

    ((_, metric),) = collector.metrics
    (point,) = metric.summary.data_points
    values = plain(point.attributes)
    assert (values["mlops.window.by"], values["mlops.window.start"]) == ("window", 41)
    assert point.time_unix_nano == TS


async def test_a_fleet_window_tells_its_nodes(collector: Any) -> None:
    """How many nodes reported and how many are missing are gauges of their own."""
    window = msgspec.structs.replace(
        WINDOW, median=None, nodes=3, nodes_missing=1, median_of_medians=0.75
    )
    await write(collector, Batch([stats_record([window])]))

    metrics = {metric.name: metric for _, metric in collector.metrics}
    quantiles = metrics["training.loss"].summary.data_points[0].quantile_values
    assert {one.quantile: one.value for one in quantiles}[0.5] == 0.75
    assert metrics["mlops.fleet.nodes"].gauge.data_points[0].as_int == 3
    assert metrics["mlops.fleet.nodes_missing"].gauge.data_points[0].as_int == 1


@pytest.mark.parametrize("whole_request", [False, True])
async def test_one_bad_record_of_many_costs_itself_only(
    collector: Any, whole_request: bool
) -> None:
    """Whether the collector refuses a part or all of a request."""
    collector.whole_request = whole_request
    collector.bad = lambda record: record.body.string_value == "line 77"
    events = [Log(ts=TS + k, level="info", message=f"line {k}") for k in range(200)]
    refused = await write(collector, logs(*events))

    assert [(one.reason, str(one.envelope.id).rpartition("/")[2]) for one in refused] == [
        ("refused", "77")
    ]
    assert "a bad record" in refused[0].message
    assert len({record.body.string_value for _, record in collector.logs}) == 199


@pytest.mark.parametrize("status", [202, 302, 401, 403, 404, 429, 500, 502, 503, 504])
async def test_only_200_is_success(collector: Any, scripted: Any, status: int) -> None:
    """Everything else that is no objection to the events keeps the batch."""
    collector.script = [scripted(status, {"Retry-After": "7"})]
    with pytest.raises(SinkUnavailable, match=f"answered {status}") as caught:
        await write(collector, logs(Log(ts=TS, level="info", message="x")))

    assert caught.value.retry_after == 7
    assert collector.logs == []


async def test_a_collector_that_is_away_keeps_the_batch(collector: Any) -> None:
    """No answer is no loss."""
    with pytest.raises(SinkUnavailable, match="no answer"):
        await write(
            collector, logs(Log(ts=TS, level="info", message="x")), endpoint="http://127.0.0.1:9"
        )


async def test_check_asks_both_ways(collector: Any, scripted: Any) -> None:
    """Metrics and logs may be taken by different servers."""
    await OTLPSink(OTLPSettings(endpoint=collector.url)).check()

    assert collector.posts == 2
    collector.script = [scripted(200), scripted(404)]
    with pytest.raises(SinkUnavailable, match="/v1/logs answered 404"):
        await OTLPSink(OTLPSettings(endpoint=collector.url)).check()


async def test_a_token_and_headers_are_sent(collector: Any) -> None:
    """Hosted collectors ask for them."""
    await write(
        collector, logs(Log(ts=TS, level="info", message="x")), token=Secret("t0ken"),
        headers={"x-team": "a"}, gzip=False,
    )  # fmt: skip

    assert collector.headers["Authorization"] == "Bearer t0ken"
    assert collector.headers["x-team"] == "a"
    assert "Content-Encoding" not in collector.headers


async def test_what_has_no_collector_is_refused(collector: Any) -> None:
    """With metrics only, a log becomes a dead letter instead of nothing."""
    refused = await write(
        collector, logs(Log(ts=TS, level="info", message="x")), endpoint="",
        metrics_endpoint=collector.url + "/v1/metrics",
    )  # fmt: skip

    assert [one.reason for one in refused] == ["unwanted"]


async def test_no_endpoint_is_said_with_the_variable() -> None:
    """There is no default collector."""
    with pytest.raises(SinkBroken, match="MLOPS_EVENTS_OTLP_ENDPOINT"):
        await OTLPSink(OTLPSettings()).open()
