"""The root of mlops-emit's commands, and what is wrong with how one was called."""

from typing import cast

import typer

__all__ = ["Abort", "UsageError", "app", "explain"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
Abort = typer.Abort

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
)


def explain(error: typer.BadParameter) -> str:
    """Return in one line what is wrong on the command line and where to read more."""
    command = error.ctx.command_path if error.ctx is not None else "mlops-emit"
    return f"{error.format_message().rstrip('.')}; see '{command} --help'"


@app.callback()
def about() -> None:
    """Send events from a shell, simulate nodes that do, and look at this node's GPUs.

    Exit codes: 0 the broker has it, 1 it has not, 2 wrong usage. Settings are read from
    MLOPS_EVENTS_* as in a program; options win over them.
    """
