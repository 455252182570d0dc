"""How the processes of the operator's commands log: one line an event, its values behind it."""

import logging
from typing import TextIO

__all__ = ["log_to"]

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_NOISY = ("aiokafka", "faust", "mode")
_AGAIN_S = 30.0


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        values = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if not values:
            return line
        first, newline, rest = line.partition("\n")
        return f"{first} {' '.join(f'{k}={v!r}' for k, v in values.items())}{newline}{rest}"


class _Once:
    """Lets a line of a library through again only after a while; they repeat it at each try."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_NOISY):
            return True
        key = (record.name, str(record.msg))
        if record.created - self._last.get(key, 0.0) < _AGAIN_S:
            return False
        self._last[key] = record.created
        return True


def log_to(stream: TextIO, *, level: str = "INFO") -> None:
    """Log to a stream; of libraries that repeat themselves while a broker is away, only warnings.

    Each of those comes at most twice a minute, whatever values are in it.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_Once())
    logging.basicConfig(level=level, handlers=[handler])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
