"""The root of mlops-pipeline's commands: running one, and what is wrong with how it was called."""

from collections.abc import Sequence
from typing import cast

import typer

__all__ = ["app", "run"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code.

    Raises:
        MlopsEventsError: it cannot be done.
        KeyboardInterrupt: somebody had enough.
    """
    try:
        code = app(list(arguments), prog_name="mlops-pipeline", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "mlops-pipeline"
        typer.echo(f"{error.format_message().rstrip('.')}; see '{command} --help'", err=True)
        return 2
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    return code if isinstance(code, int) else 0


@app.callback()
def about() -> None:
    """Run the pipeline from Kafka's topics to the sinks, and look into it.

    Exit codes: 0 done, 1 not done, 2 wrong usage or settings. Settings are read from
    MLOPS_EVENTS_*; options win over them.
    """
