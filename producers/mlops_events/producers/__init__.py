"""What a training program embeds."""

from typing import TYPE_CHECKING, Any

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.stats import EmitterStats

if TYPE_CHECKING:
    from mlops_events.producers.context import log_context
    from mlops_events.producers.loghandler import LogHandler, attach

__all__ = ["Emitter", "EmitterSettings", "EmitterStats", "LogHandler", "attach", "log_context"]

_LATER = {"LogHandler": "loghandler", "attach": "loghandler", "log_context": "context"}


def __getattr__(name: str) -> Any:
    """Import what needs logging only when it is asked for."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
