"""The log of a service: what comes through, and what is repeated too often."""

import io
import logging
from collections.abc import Iterator

import pytest

from mlops_events.control.logs import log_to


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return a place to log to; the levels of the libraries are as before afterwards."""
    root = logging.getLogger()
    level = root.level
    yield io.StringIO()
    root.setLevel(level)
    for name in ("aiokafka", "faust", "mode"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def say_much() -> None:
    for n in range(50):
        logging.getLogger("aiokafka.conn").error("no connection to %s", n)
        logging.getLogger("aiokafka.cluster").warning("no metadata")
        logging.getLogger("aiokafka.conn").info("trying")
        logging.getLogger("mlops_events.x").warning("sink away", extra={"tries": n})


def test_what_a_library_repeats_comes_once(logged: io.StringIO) -> None:
    """Whatever values are in it; what is ours always comes, with its values behind it."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        log_to(logged)
        say_much()
    finally:
        root.handlers = handlers
    lines = [line.partition(" ")[2].partition(" ")[2] for line in logged.getvalue().splitlines()]

    assert [line for line in lines if "aiokafka" in line] == [
        "ERROR aiokafka.conn: no connection to 0",
        "WARNING aiokafka.cluster: no metadata",
    ]
    ours = [line for line in lines if "aiokafka" not in line]
    assert ours == [f"WARNING mlops_events.x: sink away tries={n}" for n in range(50)]
