"""The command that profiles a function or a script."""

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    Emit,
    Role,
    RunId,
    Tags,
    Timeout,
    Uid,
    Version,
    complain,
    examples,
    publisher_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.commands.standard_output import output_to_stderr
from mlops_events.producers.diagnostics.performance import (
    SORTS,
    PerformanceAnalyzer,
    PerformanceReport,
    Sort,
    profiles,
    read_report,
)
from mlops_events.producers.diagnostics.performance_target import as_program
from mlops_events.schemas.settings import variable

__all__ = ["run_analysis"]

_INTERRUPTED = 130
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog=examples(
        "mlops-emit run-analysis train.py --steps 10",
        "mlops-emit run-analysis train:main steps=10 lr=1e-4",
        "mlops-emit run-analysis --sort own --top 10 --version 1.3.0 --save 1.3.0.json train.py",
        "mlops-emit run-analysis --compare 1.2.0.json train.py",
    ),
)
def run_analysis(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="module:function, or the path of a script.")
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Its own: a script's, or VALUE and NAME=VALUE."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help=f"The order: {', '.join(SORTS)}.")
    ] = "cumulative",
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows are shown.")] = 20,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Say what changed since this saved report.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")
    ] = None,
    pstats: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what pstats and snakeviz read.")
    ] = None,
    as_json: AsJson = False,
    emit: Emit = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
) -> int:
    """Profile a function or a script, and show where its time goes.

    Options stand before TARGET; what is behind it belongs to the target. Its standard output goes to
    standard error, so that the report alone is on standard output. An asynchronous function is run in
    an event loop. Only the target's main thread is seen.

    Exit codes: the target's own by sys.exit; 0 it returned, 1 it raised or was not published, 2 wrong
    usage, 130 Ctrl-C (with the report so far).
    """
    order: Sort | None = next((name for name in SORTS if name == sort), None)
    if order is None:
        raise arguments.ArgumentError(f"no order {sort!r}; there are: {', '.join(SORTS)}")
    before = None if compare is None else read_report(compare)
    for path in (save, pstats):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise arguments.ArgumentError(
                f"{path} cannot be written: give a file in a folder there is"
            )
    publisher = publisher_of(
        emit,
        run=run,
        role=role,
        uid=uid,
        version=version,
        tag=tag,
        brokers=brokers,
        timeout=timeout,
    )
    analyzer = PerformanceAnalyzer(
        sort=order, version=version or os.environ.get(variable("", "version"), "")
    )
    with as_program(target, args or ()), output_to_stderr():
        values, keywords = _arguments(target, args or ())
        report = analyzer.run(target, *values, **keywords)
    if before is not None:
        report = report.since(before)
    if analyzer.error is not None:
        _show_error(analyzer.error)
    _show(report, before, top=top, as_json=as_json)
    if save is not None:
        save.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if pstats is not None:
        analyzer.stats.dump_stats(pstats)
    code = _code(report)
    if publisher is not None:
        with publisher:
            published = complain(publisher.publish(profiles(report, top=top)))
            code = code or published
    return code


def _arguments(target: str, args: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return a function's arguments as values; a script reads its own."""
    if ":" not in target or Path(target).exists():
        return [], {}
    keywords = [text for text in args if _KEYWORD.match(text)]
    plain = [text for text in args if not _KEYWORD.match(text)]
    return [arguments.fields([f"argument={text}"])["argument"] for text in plain], arguments.fields(
        keywords
    )


def _show_error(error: BaseException) -> None:
    """Say on standard error what the target would have said when it ended by itself."""
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            typer.echo(str(error.code), err=True)
    elif not isinstance(error, KeyboardInterrupt):
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "diagnostics/performance" not in frame.filename.replace(os.sep, "/")
        ]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
        lines += traceback.format_exception_only(error)
        typer.echo("".join(lines), err=True, nl=False)


def _show(
    report: PerformanceReport, before: PerformanceReport | None, *, top: int, as_json: bool
) -> None:
    if as_json:
        shown = msgspec.structs.replace(report, rows=report.rows[:top])
        typer.echo(msgspec.json.encode(shown))
        return
    from rich.console import Console

    from mlops_events.producers.diagnostics.performance_text import changes_view, report_view

    console = Console()
    console.print(report_view(report, top=top, width=console.width))
    if before is not None:
        console.print(changes_view(before, report, top=top, width=console.width))


def _code(report: PerformanceReport) -> int:
    if report.outcome == "interrupted":
        return _INTERRUPTED
    if report.outcome == "raised":
        return 1
    return report.exit_code or 0
