"""A logger as programs set it up for Loki; its lines go through the pipeline here."""

import logging
from functools import partial
from typing import Any, Final

from mlops_events.producers.compat.notices import say_moved
from mlops_events.producers.compat.sharing import share
from mlops_events.producers.context import log_context
from mlops_events.producers.loghandler import attach

__all__ = ["log_with_context", "setup_loki_logger"]

_PASSED: Final = ("exc_info", "stack_info")

_wired: dict[str, logging.Logger] = {}
"""Loggers that are set up already, the latest last."""


def setup_loki_logger(
    service: str,
    uid: int | str | None = None,
    version: str = "",
    environment: str = "",
    url: object = None,
    *,
    name: str = "",
    level: int | str = logging.INFO,
    console: bool = True,
    run: str | None = None,
    **unused: Any,
) -> logging.Logger:
    """Return a logger whose lines, and those of the loggers below it, are sent.

    A second call for the same logger returns it as it is.

    Args:
        service: what runs here; the role of the node, if it is one.
        uid: the node's number or name.
        version: of the program.
        environment: such as "finney".
        url: not used; the sink's service has it.
        name: the logger's name; the service's if empty.
        level: the lowest level that is sent.
        console: print to standard error, too, through Rich where it is installed.
        run: the run's id; `MLOPS_EVENTS_RUN_ID` without it.
        unused: more that is not used.

    Raises:
        ConfigError: a setting of the environment is unusable.
    """
    del url, unused
    say_moved("LOKI_", "Loki")
    shared = share(
        run=run, uid=uid, hints=(service,), version=str(version), environment=environment
    )
    title = name or service
    logger = logging.getLogger(title)
    if title not in _wired:
        attach(shared, logger=title, level=level, console=console)
        logger.propagate = not console  # another console above would print each line again
        setattr(logger, "log_with_context", partial(log_with_context, logger))  # noqa: B010
    _wired.pop(title, None)
    _wired[title] = logger
    return logger


def log_with_context(*line: Any, **fields: Any) -> None:
    """Log a line with values beside it: `log_with_context(logger, level, message, **fields)`.

    Without a logger the one that was set up last takes it. Names of arguments work, too.
    """
    given = list(line)
    if given and isinstance(given[0], logging.Logger):
        logger = given.pop(0)
    elif isinstance(fields.get("logger"), logging.Logger):
        logger = fields.pop("logger")
    else:
        logger = next(reversed(_wired.values()), logging.getLogger())
    level = given.pop(0) if given else fields.pop("level", "info")
    message = given.pop(0) if given else fields.pop("message", "")
    passed = {key: fields.pop(key) for key in _PASSED if key in fields}
    with log_context(**fields):
        logger.log(_number(level), message, stacklevel=2, **passed)


def _number(level: object) -> int:
    if isinstance(level, int):
        return level
    return logging.getLevelNamesMapping().get(str(level).upper(), logging.INFO)
