"""Shows on a terminal how far a replay is: a bar, or plain lines."""

import math
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mlops_events.control.replay import Moment

__all__ = ["ReplayView", "line"]

_LINE_S: Final = 5.0


class ReplayView:
    """Shows progress on a console: a bar on a terminal, else a line now and then.

    Args:
        console: where; standard error.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = -math.inf
        self._trouble = ""
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("replay", total=None, rate="")

    def __enter__(self) -> "ReplayView":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """Show how far it is."""
        if moment.trouble != self._trouble:
            self._trouble = moment.trouble
            self.say(moment.trouble or "going on")
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=moment.records,
                completed=moment.done,
                rate=f"{_rate(moment):,.0f} events/s",
            )
        elif moment.seconds - self._shown_s >= _LINE_S:
            self._shown_s = moment.seconds
            self.say(line(moment))


def line(moment: Moment) -> str:
    """Return how far a replay is, as a line."""
    share = 100 * moment.done / moment.records if moment.records else 100.0
    left = ""
    if 0 < moment.done < moment.records:
        left = f", {moment.seconds / moment.done * (moment.records - moment.done):.0f} s left"
    return (
        f"{share:.0f} %: {moment.account.read:,} events read, {moment.account.written:,} written, "
        f"{_rate(moment):,.0f} events/s{left}"
    )


def _rate(moment: Moment) -> float:
    return moment.account.read / moment.seconds if moment.seconds else 0.0
