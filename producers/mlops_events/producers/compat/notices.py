"""Says each thing once in a process."""

import logging
import os
from typing import Final

__all__ = ["say_moved", "say_once"]

_log = logging.getLogger(__name__)
_said: set[str] = set()

_MOVED: Final = (
    "%s set on this node, and not used here: the %s sink service reads them now; "
    "a node needs MLOPS_EVENTS_KAFKA_BROKERS only"
)


def say_once(message: str, *values: object) -> None:
    """Log a warning unless the same was said before."""
    text = message % values
    if text not in _said:
        _said.add(text)
        _log.warning(message, *values)


def say_moved(prefix: str, sink: str) -> None:
    """Say, where variables of the environment begin like this, that the sink's service reads them."""
    found = sorted(name for name in os.environ if name.startswith(prefix) and os.environ[name])
    if found:
        say_once(_MOVED, f"{', '.join(found)} {'is' if len(found) == 1 else 'are'}", sink)
