"""The command mlops-pipeline: its entry, and what it makes of errors."""

import sys
from collections.abc import Sequence

from mlops_events.schemas.errors import ConfigError, MlopsEventsError

__all__ = ["main"]

_INTERRUPTED = 130
_EXTRAS = {
    "typer": "service",
    "rich": "service",
    "prometheus_client": "service",
    "faust": "streams",
    "mode": "streams",
    "numpy": "local",
}
"""The extra that brings a module."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 not done, 2 wrong usage or settings.

    Args:
        arguments: those of the command line if None.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Typer is an extra, so it is imported only now.
        from mlops_events.control import commands

        return commands.run(given or ["--help"])
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        extra = "local" if given[:1] == ["up"] else _EXTRAS[module]  # it needs them all
        _say(f'{module} is not installed; run: pip install "mlops-events[{extra}]"')
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except MlopsEventsError as error:
        _say(str(error))
        return 2 if isinstance(error, ConfigError) else 1


def _say(text: str) -> None:
    print(f"mlops-pipeline: {text}", file=sys.stderr)
