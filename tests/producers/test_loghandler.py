"""Python's logging, structlog and loguru through the LogHandler."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import loguru
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from mlops_events.producers import Emitter, LogHandler, attach, log_context
from mlops_events.producers.floods import Floods
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas.events import Log


class Wired:
    """A logger whose records go through a LogHandler into memory."""

    def __init__(self, **options: Any) -> None:
        self.transport = MemoryTransport()
        self.emitter = Emitter(run="r", transport=self.transport, announce=False)
        self.handler = LogHandler(self.emitter, **options)
        self.logger = logging.getLogger(f"host.{id(self)}")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.addHandler(self.handler)

    def logs(self) -> list[Log]:
        """Return what has arrived."""
        assert self.emitter.flush(20)
        return [event for event in self.transport.events() if isinstance(event, Log)]


@pytest.fixture
def wire() -> Iterator[Callable[..., Wired]]:
    """Return a function that wires a logger; the emitters are closed at the end."""
    made: list[Wired] = []

    def start(**options: Any) -> Wired:
        made.append(Wired(**options))
        return made[-1]

    yield start
    for wired in made:
        wired.logger.removeHandler(wired.handler)
        wired.emitter.close(5)


def test_a_record_becomes_a_log_event(wire: Any) -> None:
    """Time, level, message, logger and what came with `extra`."""
    wired = wire()
    wired.logger.warning("peer %s is slow", 7, extra={"peer": 7, "seconds": 1.5})

    (log,) = wired.logs()
    assert (log.level, log.message, log.logger) == ("warning", "peer 7 is slow", wired.logger.name)
    assert log.fields == {"peer": 7, "seconds": 1.5}
    assert log.ts > 1_700_000_000_000_000_000


def test_an_exception_comes_under_opentelemetrys_names(wire: Any) -> None:
    """Type, message and stack trace are fields."""
    wired = wire()
    try:
        raise ValueError("too cold")
    except ValueError:
        wired.logger.exception("step failed")

    (log,) = wired.logs()
    assert log.level == "error"
    assert log.fields["exception.type"] == "builtins.ValueError"
    assert log.fields["exception.message"] == "too cold"
    assert "raise ValueError" in log.fields["exception.stacktrace"]


def test_fields_of_the_context_come_with_every_line(wire: Any) -> None:
    """They nest, end with their block, and what a line says itself wins."""
    wired = wire()
    with log_context(request="a", attempt=1):
        wired.logger.info("one")
        with log_context(attempt=2):
            wired.logger.info("two", extra={"request": "b"})
    wired.logger.info("three")

    assert [log.fields for log in wired.logs()] == [
        {"request": "a", "attempt": 1},
        {"request": "b", "attempt": 2},
        {},
    ]


async def test_contexts_of_asyncio_tasks_do_not_mix(wire: Any) -> None:
    """Each task has its own."""
    wired = wire()

    async def work(name: str) -> None:
        with log_context(task=name):
            await asyncio.sleep(0)
            wired.logger.info(name)

    await asyncio.gather(work("a"), work("b"))

    logs = await asyncio.to_thread(wired.logs)
    assert [(log.message, log.fields) for log in logs] == [
        ("a", {"task": "a"}),
        ("b", {"task": "b"}),
    ]


def test_the_active_span_comes_with_the_line(wire: Any) -> None:
    """Trace id and span id in hex, none outside of a span."""
    wired = wire()
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("step") as span:
        wired.logger.info("inside")
    wired.logger.info("outside")

    inside, outside = wired.logs()
    context = span.get_span_context()
    assert inside.trace_id == f"{context.trace_id:032x}"
    assert inside.span_id == f"{context.span_id:016x}"
    assert (outside.trace_id, outside.span_id) == ("", "")


def test_own_records_are_ignored(wire: Any) -> None:
    """A failing broker would otherwise feed itself."""
    wired = wire()
    for name in ("mlops_events.producers.worker", "aiokafka.conn", "kafka"):
        wired.handler.handle(logging.makeLogRecord({"name": name, "msg": "no broker"}))

    assert wired.logs() == []


def test_known_noise_is_left_out_by_pattern(wire: Any) -> None:
    """And counted."""
    wired = wire(ignore=[r"^heartbeat", "pong"])
    for message in ("heartbeat 1", "ping pong", "loss 0.5"):
        wired.logger.info(message)

    assert [log.message for log in wired.logs()] == ["loss 0.5"]
    assert wired.handler.left_out == {"ignored": 2}


def test_a_flood_from_one_line_is_cut_and_told(wire: Any) -> None:
    """Other lines pass meanwhile, and every record is sent or counted."""
    wired = wire(burst=10)
    for number in range(500):
        wired.logger.info("again %s", number)
    wired.logger.info("another line")

    logs = wired.logs()
    left_out = wired.handler.left_out["flood"]
    assert len(logs) - 1 + left_out == 500
    assert left_out > 400
    assert logs[-1].message == "another line"


def test_floods_are_counted_by_the_second() -> None:
    """What was left out is told with the next record that passes."""
    now = [0.0]
    floods = Floods(2, clock=lambda: now[0])

    assert [floods.pass_("a.py", 1) for _ in range(5)] == [0, 0, None, None, None]
    assert floods.pass_("a.py", 2) == 0
    now[0] = 1.0
    assert [floods.pass_("a.py", 1) for _ in range(3)] == [3, 0, None]
    assert [Floods(0, clock=lambda: 0.0).pass_("a.py", 1) for _ in range(1000)] == [0] * 1000


def test_a_value_that_logs_while_it_is_read_does_not_loop(wire: Any) -> None:
    """A handler must never call itself."""
    wired = wire()

    class Chatty:
        def __str__(self) -> str:
            wired.logger.info("I am asked")
            return "chatty"

    wired.logger.info("who: %s", Chatty())

    assert "who: chatty" in [log.message for log in wired.logs()]


def test_a_record_that_cannot_be_formatted_is_counted_and_raises_nothing(
    wire: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments are a bug of the caller, not a reason to stop training or to print."""
    wired = wire()
    wired.logger.info("%d", "no number")

    assert wired.logs() == []
    assert wired.handler.left_out == {"malformed": 1}
    assert capsys.readouterr() == ("", "")


def test_values_that_cannot_be_encoded_cost_themselves_only(wire: Any) -> None:
    """The line is sent without them."""
    wired = wire()
    wired.logger.info("odd", extra={"lock": threading.Lock(), "good": 1, "text": "\ud800"})

    (log,) = wired.logs()
    assert log.message == "odd"
    assert log.fields["good"] == 1


def test_structlog_over_the_standard_library(wire: Any) -> None:
    """As its documentation wires it: the event dict arrives as message and fields."""
    wired = wire()
    log = structlog.wrap_logger(
        wired.logger,
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    log.bind(uid=7).warning("peer is slow", seconds=1.5)

    (found,) = wired.logs()
    assert (found.level, found.message) == ("warning", "peer is slow")
    assert found.fields == {"uid": 7, "seconds": 1.5}


def test_loguru_takes_it_as_a_sink(wire: Any) -> None:
    """Its bound values are fields."""
    wired = wire()
    number = loguru.logger.add(wired.handler, format="{message}", level="INFO")
    try:
        loguru.logger.bind(uid=7).warning("peer {} is slow", 12)
    finally:
        loguru.logger.remove(number)

    (found,) = wired.logs()
    assert (found.level, found.message.strip()) == ("warning", "peer 12 is slow")
    assert found.fields["uid"] == 7


def test_attach_sets_the_level_and_may_print(wire: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One call wires a program's logger; on the console it goes to standard error."""
    wired = wire()
    logger = logging.getLogger("attached")
    logger.propagate = False
    handler = attach(wired.emitter, logger="attached", level="INFO", console=True)
    try:
        logger.info("said")
        logger.debug("not said")
    finally:
        logger.handlers.clear()

    assert handler.level == logging.INFO
    assert [log.message for log in wired.logs()] == ["said"]
    assert "said" in capsys.readouterr().err


def test_importing_the_producers_does_not_import_logging_first() -> None:
    """What needs logging comes when it is asked for."""
    import mlops_events.producers as producers

    assert producers.LogHandler is LogHandler
    assert "mlops_events.producers.loghandler" in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = producers.Nothing  # type: ignore[attr-defined]
