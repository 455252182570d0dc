"""What the collectors say of the machine and of the GPU, for metrics that ask for it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from mlops_events.producers.compat.notices import say_once

__all__ = ["gpu_fields", "system_fields"]

_COLLECTORS: Final = "mlops_events.producers.collectors"


def system_fields() -> dict[str, Any]:
    """Return figures of the machine, each name with `sys_` before it; none without a collector."""
    return {f"sys_{name}": value for name, value in _sample("system").items()}


def gpu_fields() -> dict[str, Any]:
    """Return figures of this process's GPU, each name with `gpu_` before it; none without a collector."""
    found = _sample("gpu")
    return {name if name.startswith("gpu_") else f"gpu_{name}": v for name, v in found.items()}


def _sample(what: str) -> Mapping[str, Any]:
    try:
        collect: Callable[[], Mapping[str, Any]] = getattr(
            import_module(f"{_COLLECTORS}.{what}"), f"{what}_sample"
        )
        return collect()
    except (ImportError, AttributeError):
        say_once("with_%s_metrics: this version collects none; the other fields are sent", what)
    except Exception as error:  # drivers may raise anything
        say_once("with_%s_metrics: %s: %s", what, type(error).__name__, error)
    return {}
