"""A W&B run whose metrics go through the pipeline."""

import argparse
from typing import Any

import pytest

from mlops_events.producers.compat import PipelineRun, initialize_wandb
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas.catalog import BARE_NAME


@pytest.fixture
def run(sent: MemoryTransport) -> PipelineRun:
    """Return a miner's run."""
    config = argparse.Namespace(project="p", lr=0.1)
    return initialize_wandb("M", "12", config, "miner", "mining")


def test_metrics_keep_their_names(run: PipelineRun, sent: MemoryTransport) -> None:
    """An event for each call, with the step that is told or that is among them."""
    run.log({"train/loss": 0.5, "nested": {"a": 1}}, step=3)
    run.log({"loss": 0.4, "global_step": 4})
    run.log({"loss": 0.3})
    run.finish()

    found = sent.observations()
    assert {one.name for one in found} == {BARE_NAME}
    assert [one.step for one in found] == [3, 4, None]
    assert found[0].fields == {"train/loss": 0.5, "nested": {"a": 1}}


def test_what_is_not_committed_waits_for_the_next_call(
    run: PipelineRun, sent: MemoryTransport
) -> None:
    """Or for the end."""
    run.log({"a": 1}, commit=False)
    run.log({"b": 2})
    run.log({"c": 3}, commit=False)
    run.finish()

    assert [one.fields for one in sent.observations()] == [{"a": 1, "b": 2}, {"c": 3}]


def test_config_and_summary_are_sent_when_they_change(
    run: PipelineRun, sent: MemoryTransport
) -> None:
    """And read as those of W&B are."""
    run.config.update({"version_history": ["1.0"]}, allow_val_change=True)
    run.log({"loss": 0.5})
    run.config.layers = 2
    run.config["heads"] = 4
    run.summary["best"] = 0.25
    run.summary.update({"steps": 9})
    run.finish()

    assert [one.config for one in sent.runs()] == [
        {"project": "p", "lr": 0.1, "version_history": ["1.0"]},
        {"layers": 2},
        {"heads": 4},
        {},
    ]
    assert [o.fields for o in sent.observations() if o.name == "summary"] == [
        {"best": 0.25},
        {"steps": 9},
    ]
    assert run.config.lr == 0.1
    assert "lr" in run.config
    assert dict(run.summary) == {"loss": 0.5, "best": 0.25, "steps": 9}


def test_what_has_no_counterpart_is_told_once(
    run: PipelineRun, sent: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """The program goes on."""
    image: Any = type("Image", (), {"__module__": "wandb.sdk.data_types.image"})()
    for _ in range(2):
        run.watch(object(), log="all")
        run.log_artifact("model.pt")
        run.define_metric("loss", summary="min")
        run.log({"sample": image, "loss": 0.5})
    run.finish()

    assert [one.fields for one in sent.observations()] == [{"loss": 0.5}] * 2
    told = [line.split(" ")[0] for line in caplog.messages]
    assert told == ["run.watch", "run.log_artifact", "run.define_metric", "wandb.Image"]
    assert not hasattr(run, "no_such_thing")


def test_a_run_says_who_it_is(run: PipelineRun, sent: MemoryTransport) -> None:
    """As programs print it."""
    run.log({"loss": 0.5}, step=7)
    run.finish()

    assert (run.name, run.project, run.url, run.step) == ("M12", "p", None, 7)
    assert run.id == sent.frames()[0].origin.run


@pytest.mark.parametrize(("code", "status"), [(None, "finished"), (0, "finished"), (1, "crashed")])
def test_finish_says_how_the_run_ended(
    run: PipelineRun, sent: MemoryTransport, code: int | None, status: str
) -> None:
    """A second call does nothing."""
    run.finish(exit_code=code)
    run.finish(exit_code=0)

    assert [one.status for one in sent.runs()] == [None, status]
