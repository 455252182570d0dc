"""The root of mlops-emit's commands, and what is wrong with how one was called."""

from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

__all__ = ["Abort", "Commands", "UsageError", "app", "explain"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
Abort = typer.Abort

_ORDER: Final = (
    *("observation", "profile", "log", "lines", "spool", "simulate"),
    *("doctor", "cuda-metrics", "memory-risk", "run-analysis", "diagnose-unsloth"),
)


class Commands(TyperGroup):
    """The commands in an order that helps to find one, each paragraph of their help on one line.

    Typer keeps the line ends of docstrings, wherever the terminal's own are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rank = {name: number for number, name in enumerate(_ORDER)}
        self.commands = dict(
            sorted(self.commands.items(), key=lambda item: rank.get(item[0], len(rank)))
        )
        _join_lines(self)


def _join_lines(command: Any) -> None:
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


app = typer.Typer(
    cls=Commands,
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
