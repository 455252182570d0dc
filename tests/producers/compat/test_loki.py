"""The logger that programs set up for Loki."""

import logging
from collections.abc import Iterator

import pytest

from mlops_events.producers.compat import MetricsLogger, log_with_context, setup_loki_logger
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas.events import Log


@pytest.fixture
def lines(sent: MemoryTransport) -> Iterator[list[Log]]:
    """Return a list that is filled when the test asks for it, and leave no handlers behind."""
    found = _Lines(sent)
    yield found
    for name in ("miner", "miner.child"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


class _Lines(list[Log]):
    """What was sent; read it with `fetch`."""

    def __init__(self, sent: MemoryTransport) -> None:
        super().__init__()
        self._sent = sent

    def fetch(self) -> list[Log]:
        """Return what has arrived."""
        assert MetricsLogger(uid=12, role="miner").flush(20)
        return self._sent.logs()


def test_lines_are_sent_with_what_is_beside_them(lines: _Lines) -> None:
    """In every way that programs call it."""
    logger = setup_loki_logger(
        service="miner", uid="12", version="1.4.0", environment="finney", console=False
    )
    logger.warning("lost %d peers", 3)
    log_with_context(logger, "info", "window done", sync_window=7, name="n", args=1)
    log_with_context(level="error", message="no peers", peers=0)
    log_with_context("debug", "not sent", peers=0)
    logger.log_with_context("info", "by the logger", x=1)  # type: ignore[attr-defined]
    logging.getLogger("miner.child").info("below")

    found = lines.fetch()
    assert [(line.level, line.message, line.fields) for line in found] == [
        ("warning", "lost 3 peers", {}),
        ("info", "window done", {"sync_window": 7, "name": "n", "args": 1}),
        ("error", "no peers", {"peers": 0}),
        ("info", "by the logger", {"x": 1}),
        ("info", "below", {}),
    ]


def test_an_exception_can_be_logged(lines: _Lines) -> None:
    """As `exc_info` of Python's logging."""
    logger = setup_loki_logger("miner", 12, console=False)
    try:
        raise ValueError("broken")
    except ValueError:
        log_with_context(logger, "error", "failed", exc_info=True)

    (line,) = lines.fetch()
    assert line.fields["exception.message"] == "broken"


def test_setting_it_up_twice_sends_lines_once(lines: _Lines) -> None:
    """Both calls return the same logger."""
    first = setup_loki_logger("miner", 12, console=False)
    second = setup_loki_logger("miner", 12, console=False)
    second.info("once")

    assert first is second
    assert [line.message for line in lines.fetch()] == ["once"]


def test_lines_go_to_the_console_too(lines: _Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, unless that is not wanted."""
    setup_loki_logger("miner", 12).info("shown on the console")

    assert capsys.readouterr().err.count("shown on the console") == 1
    assert len(lines.fetch()) == 1
