"""MetricsLogger: points become observations."""

import argparse
from datetime import UTC, datetime
from typing import Any

import pytest

from mlops_events.producers.compat import MetricsLogger
from mlops_events.producers.testing import MemoryTransport

WHEN = 1_767_225_600


def logger(**options: Any) -> MetricsLogger:
    """A miner's logger, as programs make it."""
    given = {"prefix": "M", "uid": "12", "role": "miner", "group": "miner", "job_type": "mining"}
    return MetricsLogger(**{**given, **options})


def test_a_point_becomes_an_observation(sent: MemoryTransport) -> None:
    """With its tags, its fields, and the step that is among them."""
    metrics = logger()
    metrics.log(
        measurement="training_step",
        tags={"window": 7, "global_step": "41"},
        fields={"loss": 0.5, "losses": [1.0, 2.0], "global_step": 42},
    )
    metrics.log("sync", {"global_step": "41"}, {"lag": 1})
    assert metrics.flush(20)

    first, second = sent.observations()
    assert (first.name, first.step) == ("Mtraining_step", 42)
    assert first.tags == {"window": 7, "global_step": "41"}
    assert first.fields == {"loss": 0.5, "losses": [1.0, 2.0], "global_step": 42}
    assert second.step == 41


def test_arguments_about_servers_are_taken_and_not_used(sent: MemoryTransport) -> None:
    """The origin is made of the others."""
    metrics = MetricsLogger(
        "influx.example",
        8086,
        database="d",
        token="t",
        org="o",
        max_workers=3,
        uid=3,
        role="validator",
        version="1.2.0",
    )
    metrics.log("a", {}, {"x": 1})
    assert metrics.flush(20)

    origin = sent.frames("observation")[0].origin
    assert (origin.uid, origin.role, origin.version) == (3, "validator", "1.2.0")
    assert "influx.example" not in repr(sent.records)


@pytest.mark.parametrize(
    "config",
    [
        {"lr": 1e-4, "net": {"layers": 2}, "_secret": 1, "model": object(), "betas": [0.9, 0.95]},
        argparse.Namespace(
            lr=1e-4, net=argparse.Namespace(layers=2), model=print, none=None, betas=(0.9, 0.95)
        ),
    ],
)
def test_scalars_of_the_config_are_the_runs_config(sent: MemoryTransport, config: Any) -> None:
    """Whatever kind of object holds them."""
    metrics = logger(config=config)
    metrics.log("a", {}, {"x": 1})
    assert metrics.flush(20)

    (start,) = sent.runs()
    assert start.config == {"lr": 1e-4, "net": {"layers": 2}, "betas": [0.9, 0.95]}
    assert (start.group, start.job_type) == ("miner", "mining")


@pytest.mark.parametrize(
    "timestamp",
    [
        WHEN * 10**9,
        WHEN,
        float(WHEN),
        WHEN * 1000,
        WHEN * 10**6,
        datetime.fromtimestamp(WHEN, UTC),
        datetime.fromtimestamp(WHEN, UTC).replace(tzinfo=None),
        datetime.fromtimestamp(WHEN, UTC).isoformat(),
    ],
)
def test_a_timestamp_may_have_any_usual_form(sent: MemoryTransport, timestamp: Any) -> None:
    """Nanoseconds, seconds, a datetime, a text."""
    metrics = logger()
    metrics.log("a", {}, {"x": 1}, timestamp=timestamp)
    assert metrics.flush(20)

    assert sent.observations()[0].ts == WHEN * 10**9


def test_a_share_of_the_calls_is_taken(sent: MemoryTransport) -> None:
    """Evenly, for each measurement, and told as a tag."""
    metrics = logger()
    for i in range(20):
        metrics.log("a", {}, {"i": i}, sample_rate=0.1)
        metrics.log("b", {}, {"i": i})
    assert metrics.flush(20)

    taken = [o for o in sent.observations() if o.name == "Ma"]
    assert [o.fields["i"] for o in taken] == [0, 10]
    assert taken[0].tags == {"sample_rate": "0.1"}
    assert len(sent.observations()) == 22


def test_a_call_that_makes_no_sense_raises_nothing(
    sent: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once."""
    metrics = logger()
    for _ in range(2):
        metrics.log("a", {}, 5)  # type: ignore[arg-type]
        metrics.log("a", {}, {"x": 1}, sample_rate=7)
        metrics.log("b", {}, {"x": 1}, timestamp=object())
    assert metrics.flush(20)

    assert [o.name for o in sent.observations()] == ["Mb", "Mb"]
    assert len(caplog.messages) == 3


def test_figures_of_the_machine_that_nothing_collects_are_told_once(
    sent: MemoryTransport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other fields are sent."""
    monkeypatch.setattr("mlops_events.producers.compat.samples._COLLECTORS", "no.such.package")
    metrics = logger()
    for _ in range(2):
        metrics.log("a", {}, {"x": 1}, with_system_metrics=True, with_gpu_metrics=True)
    assert metrics.flush(20)

    assert [o.fields for o in sent.observations()] == [{"x": 1}, {"x": 1}]
    assert len([m for m in caplog.messages if "with_system_metrics" in m]) == 1
    assert len([m for m in caplog.messages if "with_gpu_metrics" in m]) == 1


def test_figures_of_the_machine_are_added(sent: MemoryTransport, until: Any) -> None:
    """The first call starts to collect them, later ones have them."""
    metrics = logger()

    def figures() -> Any:
        metrics.log("a", {}, {"x": 1}, with_system_metrics=True)
        assert metrics.flush(20)
        return [o.fields for o in sent.observations() if "sys_memory_used" in o.fields]

    found = until.sync(figures)
    assert found[-1]["x"] == 1
    assert found[-1]["sys_memory_used"] > 0


def test_a_variable_of_influxdb_on_a_node_is_told_once(
    sent: MemoryTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its value is not."""
    monkeypatch.setenv("INFLUXDB_TOKEN", "hunter2")
    logger()
    logger(uid=13)

    (line,) = caplog.messages
    assert line.startswith("INFLUXDB_TOKEN is set on this node")
    assert "hunter2" not in caplog.text
