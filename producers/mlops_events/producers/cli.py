"""The command mlops-emit: its entry, and what it makes of errors."""

import logging
import sys
from collections.abc import Sequence

from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["main"]

_INTERRUPTED = 130

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 not done, 2 wrong usage.

    Args:
        arguments: those of the command line if None.
    """
    try:
        # Typer is an extra, so it is imported only now.
        from mlops_events.producers import commands
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mlops_events"):
            raise
        _say(f'{error.name} is not installed; run: pip install "mlops-events[cli]"')
        return 2
    logging.basicConfig(format="mlops-emit: %(message)s", level=logging.WARNING)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return commands.app(given or ["--help"], prog_name="mlops-emit", standalone_mode=False) or 0
    except (KeyboardInterrupt, commands.Abort):
        return _INTERRUPTED
    except commands.UsageError as error:
        _say(commands.explain(error))
        return 2
    except MlopsEventsError as error:  # a setting, or a value on the command line
        _say(str(error))
        return 2
    except OSError as error:
        _say(str(error))
        return 1
    except Exception as error:
        log.debug("unexpected error", exc_info=True)
        _say(f"unexpected {type(error).__name__}: {error}; please report it")
        return 1


def _say(message: str) -> None:
    """Print a message as one line on standard error."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    print("mlops-emit:", line.replace(":; ", ": "), file=sys.stderr)
