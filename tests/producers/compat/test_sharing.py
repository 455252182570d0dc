"""The shims of one node share an emitter, and with it the run."""

import os
from typing import Any

import pytest

from mlops_events.producers.compat import MetricsLogger, initialize_wandb, setup_loki_logger
from mlops_events.producers.testing import MemoryTransport


def test_all_calls_of_a_node_share_one_emitter(sent: MemoryTransport) -> None:
    """Each adds what it knows to the origin, and the run starts and ends once."""
    run = initialize_wandb("M", 12, {"lr": 0.1}, "sweep", "mining", project="p")
    metrics = MetricsLogger(prefix="M", uid="12", role="miner", config={"layers": 2})
    log = setup_loki_logger("miner", "12", "1.4.0", "finney", console=False)
    log.info("starting")
    metrics.log("a", {}, {"x": 1})
    run.log({"loss": 0.5})
    metrics.close()
    run.finish()

    assert len({frame.emitter for frame in sent.frames()}) == 1
    origin = sent.frames()[0].origin
    assert (origin.role, origin.uid, origin.version) == ("miner", 12, "1.4.0")
    assert (origin.environment, origin.group, origin.job_type) == ("finney", "sweep", "mining")
    assert origin.project == "p"
    start, end = sent.runs()
    assert (start.state, start.name, start.config) == ("start", "M12", {"lr": 0.1, "layers": 2})
    assert (end.state, end.status) == ("end", "finished")


def test_another_uid_is_another_emitter(sent: MemoryTransport) -> None:
    """In the same run of the process."""
    for uid in (1, 2):
        MetricsLogger(uid=uid, role="miner").log("a", {}, {"x": uid})
    for uid in (1, 2):
        assert MetricsLogger(uid=uid, role="miner").flush(20)

    frames = sent.frames("observation")
    assert {frame.origin.uid for frame in frames} == {1, 2}
    assert len({frame.emitter for frame in frames}) == 2
    assert len({frame.origin.run for frame in frames}) == 1


def test_what_is_told_after_the_first_event_is_named(
    sent: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """The origin stays, the configuration grows."""
    metrics = MetricsLogger(uid=1, role="miner")
    metrics.log("a", {}, {"x": 1})
    setup_loki_logger("miner", 1, "2.0.0", console=False)
    initialize_wandb("M", 1, {"lr": 0.1}, "miner", "")
    assert metrics.flush(20)

    assert "version=2.0.0" in caplog.text
    assert {frame.origin.version for frame in sent.frames()} == {""}
    assert [run.config for run in sent.runs()] == [{}, {"lr": 0.1}]


def test_lines_after_the_end_are_sent(sent: MemoryTransport) -> None:
    """By another emitter, which starts no run."""
    log = setup_loki_logger("miner", 5, console=False)
    run = initialize_wandb("M", 5, {}, "miner", "")
    run.finish(exit_code=1)
    log.info("good bye")
    assert MetricsLogger(uid=5, role="miner").flush(20)

    assert [(one.state, one.status) for one in sent.runs()] == [("start", None), ("end", "crashed")]
    assert [one.message for one in sent.logs()] == ["good bye"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [({"MLOPS_EVENTS_ROLE": "aggregator"}, "aggregator"), ({}, "validator")],
)
def test_a_call_that_says_no_role_takes_the_environments_or_guesses(
    sent: MemoryTransport, monkeypatch: pytest.MonkeyPatch, names: dict[str, str], expected: str
) -> None:
    """By the letter that names of runs begin with."""
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    run: Any = initialize_wandb("V", 1, None, "nightly", "")
    run.log({"x": 1})
    run.finish()

    assert sent.frames()[0].origin.role == expected


def test_without_a_broker_every_call_does_nothing(
    sent: MemoryTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so."""
    monkeypatch.delenv("MLOPS_EVENTS_KAFKA_BROKERS")
    run = initialize_wandb("M", 1, {}, "miner", "")
    metrics = MetricsLogger(uid=1, role="miner")
    metrics.log("a", {}, {"x": 1})
    run.log({"x": 1})
    run.finish()

    assert sent.attempts == []
    assert len([line for line in caplog.messages if "no Kafka brokers" in line]) == 1


def test_a_forked_child_neither_starts_nor_ends_the_run(sent: MemoryTransport) -> None:
    """It is its parent's, also where the child is the first to emit."""
    shared_first = MetricsLogger(uid=1, role="miner")
    child = os.fork()
    if child == 0:
        shared_first.log("a", {}, {"x": 1})
        flushed = shared_first.flush(20)
        os._exit(0 if flushed and not sent.runs() and len(sent.observations()) == 1 else 1)
    _, status = os.waitpid(child, 0)
    shared_first.log("a", {}, {"x": 2})
    assert shared_first.flush(20)

    assert os.waitstatus_to_exitcode(status) == 0
    assert [run.state for run in sent.runs()] == ["start"]
