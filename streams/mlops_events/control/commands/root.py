"""The root of mlops-pipeline's commands: running one, and what is wrong with how it was called."""

from collections.abc import Sequence
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

__all__ = ["Commands", "app", "run"]

# The base of typer's errors about the command line. Typer has taken Click in, so where that class
# is found depends on its version.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

_ORDER: Final = (
    *("up", "tail", "config", "topics"),
    *("stream", "fleet", "sink", "sinks"),
    *("replay", "dead-letters"),
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
    cls=Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


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
