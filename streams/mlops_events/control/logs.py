"""How the processes of the operator's commands log: one line an event, its values behind it."""

import logging
from typing import TextIO

__all__ = ["log_to"]

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_NOISY = ("aiokafka", "faust", "mode")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        values = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if not values:
            return line
        first, newline, rest = line.partition("\n")
        return f"{first} {' '.join(f'{k}={v!r}' for k, v in values.items())}{newline}{rest}"


def log_to(stream: TextIO, *, level: str = "INFO") -> None:
    """Log to a stream; libraries that repeat themselves while a broker is away, warnings only."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
