"""What docs/migrating.md says of the stores: the sinks render what a miner's calls became."""

import json
from typing import Any

import pytest

from mlops_events.producers.compat import MetricsLogger, initialize_wandb, setup_loki_logger
from mlops_events.producers.testing import MemoryTransport
from mlops_events.sinks import influxdb_lines, loki_entries
from mlops_events.sinks.base import FrameRecord
from mlops_events.sinks.influxdb_types import FieldTypes
from mlops_events.sinks.wandb_rows import Row, row_of, values_of


@pytest.fixture
def mined(sent: MemoryTransport) -> MemoryTransport:
    """Return what a miner sent with the calls of before."""
    config = {"project": "subnet", "lr": 0.1}
    log = setup_loki_logger("miner", "12", "1.4.0", "finney", name="miner.t", console=False)
    run = initialize_wandb("M", "12", config, "miner", "mining")
    metrics = MetricsLogger(
        prefix="M", uid="12", role="miner", config=config, group="miner", job_type="mining"
    )
    run.log({"miner/loss": 0.5}, step=7)
    metrics.log("step", {"window": 3, "global_step": 7}, {"loss": 0.5, "losses": [1.0, 2.0, 6.0]})
    log.log_with_context("info", "window done", window=3)  # type: ignore[attr-defined]
    metrics.close()
    run.finish()
    assert MetricsLogger(uid=12, role="miner").flush(20)
    log.handlers.clear()
    return sent


def records(sent: MemoryTransport, kind: Any) -> list[FrameRecord]:
    """Return the frames of a kind as a sink reads them."""
    frames = [frame for frame in sent.frames(kind) if frame.items]
    return [FrameRecord(frame=f, topic="t", partition=0, offset=i) for i, f in enumerate(frames)]


def test_points_have_their_measurement_tags_and_statistics(mined: MemoryTransport) -> None:
    """In InfluxDB's line protocol."""
    refused: list[Any] = []
    renderer = influxdb_lines.Renderer(
        FieldTypes(), tags=(), share=1.0, refuse=lambda *what: refused.append(what)
    )
    lines = [str(line) for one in records(mined, "observation") for line in renderer.lines(one)]

    (line,) = [line for line in lines if "Mstep" in line]
    for part in ("role=miner", "uid=12", "version=1.4.0", "group=miner", "job_type=mining"):
        assert part in line
    for part in ("loss=0.5", "losses_mean=3.0", "losses_min=1.0", "losses_max=6.0"):
        assert part in line
    assert "losses_median=2.0" in line
    assert refused == []


def test_lines_have_their_labels_and_fields(mined: MemoryTransport) -> None:
    """In Loki."""
    renderer = loki_entries.Renderer(clean=str, uid_label="uid")
    (entry,) = [e for one in records(mined, "log") for e in renderer.entries(one)]

    labels = dict(entry.labels)
    assert (labels["role"], labels["uid"], labels["env"]) == ("miner", "12", "finney")
    assert json.loads(entry.line) == {"message": "window done", "window": 3}


def test_metrics_have_the_keys_that_the_program_gave_them(mined: MemoryTransport) -> None:
    """At W&B, and with both prefixes as programs wrote them that put the version before."""
    rows = [
        row
        for one in records(mined, "observation")
        for envelope in one.envelopes()
        if isinstance(row := row_of(envelope), Row)
    ]
    plain, both = (values_of(rows[0], prefix=prefix, step=7) for prefix in ("none", "both"))

    assert plain["miner/loss"] == 0.5
    assert plain["global_step"] == 7
    assert {"v1.4.0/miner/loss", "latest/miner/loss", "v1.4.0/step"} <= set(both)
