"""Work in a thread of its own, again and again."""

import logging
import threading
from typing import Any

import pytest

from mlops_events.producers.collectors.timer import Timer


def nothing() -> None:
    """Do nothing."""


def test_it_works_again_and_again_until_it_is_stopped(until: Any) -> None:
    """What it needs is prepared once before, and what it used is given back once after."""
    told: list[str] = []
    timer = Timer(
        "clock",
        prepare=lambda: told.append("prepare"),
        work=lambda: told.append("work"),
        finish=lambda: told.append("finish"),
        every_s=0.001,
    )
    timer.start()
    until.sync(lambda: told.count("work") >= 3)
    timer.stop()
    until.sync(lambda: "finish" in told)

    assert told[0] == "prepare"
    assert told[-1] == "finish"
    assert set(told[1:-1]) == {"work"}


def test_work_that_raises_is_tried_again_and_told_once(
    until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for the same reason, however often."""
    calls: list[None] = []

    def work() -> None:
        calls.append(None)
        raise ValueError("the driver is asleep" if len(calls) < 5 else "the driver is gone")

    timer = Timer("gpu", prepare=nothing, work=work, finish=nothing, every_s=0.001)
    with caplog.at_level(logging.WARNING):
        timer.start()
        until.sync(lambda: len(calls) >= 8)
        timer.stop()

    assert [record.getMessage() for record in caplog.records] == [
        "nothing is collected of the gpu: the driver is asleep",
        "nothing is collected of the gpu: the driver is gone",
    ]


def test_what_cannot_be_prepared_is_told_and_not_tried(
    until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A library that is not there will not come."""
    calls: list[None] = []

    def prepare() -> None:
        raise ImportError("no psutil")

    timer = Timer(
        "system", prepare=prepare, work=lambda: calls.append(None), finish=nothing, every_s=0.001
    )
    with caplog.at_level(logging.WARNING):
        timer.start()
        until.sync(lambda: caplog.records)

    assert "nothing is collected of the system: no psutil" in caplog.text
    assert calls == []


def test_work_that_hangs_holds_up_nobody(until: Any) -> None:
    """Stopping does not wait for it."""
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        go_on.wait(60)

    timer = Timer(
        "gpu", prepare=nothing, work=work, finish=lambda: ended.append(True), every_s=0.001
    )
    timer.start()
    assert begun.wait(60)
    timer.stop()
    while_it_hangs = list(ended)
    go_on.set()
    until.sync(lambda: ended)

    assert while_it_hangs == []
