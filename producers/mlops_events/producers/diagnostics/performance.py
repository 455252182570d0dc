"""Runs a target under cProfile and reports where its time went."""

import asyncio
import cProfile
import inspect
import os
import pstats
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, time_ns
from types import CodeType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from mlops_events.producers.diagnostics.performance_compare import Change, FunctionTime, compare
from mlops_events.producers.diagnostics.performance_target import Call, TargetError, find, label
from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.events import Profile

__all__ = [
    "SORTS",
    "Outcome",
    "PerformanceAnalyzer",
    "PerformanceReport",
    "ReportError",
    "Sort",
    "profiles",
    "read_report",
]

Sort: TypeAlias = Literal["cumulative", "own", "calls", "name"]
Outcome: TypeAlias = Literal["returned", "raised", "exited", "interrupted"]

SORTS: Final[tuple[Sort, ...]] = ("cumulative", "own", "calls", "name")

_KEYS: Final[Mapping[Sort, Callable[[FunctionTime], Any]]] = {
    "cumulative": lambda row: (-row.cumulative_s, row.function),
    "own": lambda row: (-row.own_s, row.function),
    "calls": lambda row: (-row.calls, row.function),
    "name": lambda row: row.function,
}
_KEPT: Final = 2_000
_RESULT_CHARS: Final = 500
_Place: TypeAlias = tuple[str, int, str]


class ReportError(MlopsEventsError):
    """A file holds no report; the message says what it holds."""


class PerformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a target went, and how the target ended.

    `result` is what it returned, as text; `error` the exception that ended it; `exit_code` what it
    gave to sys.exit. `rows` are the functions in the order of `sort`, at most 2,000 of the
    `functions` that were called. `changes` are those from another report.
    """

    target: str
    version: str
    ts: int
    outcome: Outcome
    result: str
    error: str
    exit_code: int | None
    duration_s: float
    calls: int
    functions: int
    sort: Sort
    rows: tuple[FunctionTime, ...]
    changes: tuple[Change, ...] | None = None

    def since(self, before: "PerformanceReport") -> "PerformanceReport":
        """Return the report with its changes from an older one."""
        own = self.sort == "own"
        changes = compare(before.rows, self.rows, own=own)
        if before.functions > len(before.rows) or self.functions > len(self.rows):
            # what is not in one of them may only have been too small to be kept
            changes = [c for c in changes if c.verdict in ("slower", "faster")]
        return msgspec.structs.replace(self, changes=tuple(changes))


class PerformanceAnalyzer:
    """Profiles functions and scripts; asynchronous ones run in an event loop of their own.

    cProfile sees the thread that calls `run` and no other thread or process, and makes calls slower:
    compare its times with each other, not with a clock.

        analyzer = PerformanceAnalyzer(version="1.3.0")
        report = analyzer.run(train, steps=10)
        print(report.rows[0].function, analyzer.result)

    Args:
        sort: the order of the rows.
        version: of the program, so that reports can be told apart.
    """

    def __init__(self, *, sort: Sort = "cumulative", version: str = "") -> None:
        if sort not in SORTS:
            raise ValueError(f"no order {sort!r}; there are: {', '.join(SORTS)}")
        self._sort: Sort = sort
        self._version = version
        self._profiler = cProfile.Profile()
        self._duration_s = 0.0
        self.result: Any = None
        """What the target returned."""
        self.error: BaseException | None = None
        """What the target raised; it is not raised again."""

    def run(
        self, target: str | Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> PerformanceReport:
        """Run a target to its end, or to its exception, sys.exit or Ctrl-C, and report.

        Args:
            target: `module:function`, the path of a script, or something that can be called.
            args: what it is called with.
            kwargs: more of it.

        Raises:
            TargetError: there is no such target, it does not take the arguments, or another
                profiler is at work.
        """
        self._profile_function(find(target, args, kwargs))
        return self._generate_report(label(target))

    @property
    def stats(self) -> pstats.Stats:
        """What was measured last, as pstats has it."""
        self._profiler.create_stats()
        return pstats.Stats(self._profiler)

    def _profile_function(self, call: Call) -> None:
        """Call it; keep what was measured, what it returned and what it raised."""
        self.result, self.error = None, None
        self._profiler = profiler = cProfile.Profile()
        began = perf_counter()
        try:
            self.result = _measured(profiler, call)
            if inspect.isawaitable(self.result):
                awaited = _await(self.result)
                self.result = None
                self.result = _measured(profiler, lambda: asyncio.run(awaited))
        except TargetError:
            raise
        except BaseException as error:  # also SystemExit and Ctrl-C: it is the target's end
            self.error = error
        self._duration_s = perf_counter() - began

    def _generate_report(self, target: str) -> PerformanceReport:
        """Return what was measured last."""
        stats: dict[_Place, Any] = self.stats.stats  # type: ignore[attr-defined]
        rows = sorted(_rows(stats, self._names()), key=_KEYS["cumulative"])
        error = self.error
        return PerformanceReport(
            target=target,
            version=self._version,
            ts=time_ns(),
            outcome=_outcome(error),
            result=_shown(self.result),
            error="" if error is None or isinstance(error, SystemExit) else _told(error),
            exit_code=_exit_code(error) if isinstance(error, SystemExit) else None,
            duration_s=self._duration_s,
            calls=sum(row.calls for row in rows),
            functions=len(rows),
            sort=self._sort,
            rows=tuple(sorted(rows[:_KEPT], key=_KEYS[self._sort])),
        )

    def _names(self) -> dict[_Place, str]:
        """Return the names of functions with the classes that they are in."""
        codes = [entry.code for entry in self._profiler.getstats()]
        return {
            (code.co_filename, code.co_firstlineno, code.co_name): code.co_qualname
            for code in codes
            if isinstance(code, CodeType)
        }


def read_report(path: Path) -> PerformanceReport:
    """Read a report that was saved as JSON.

    Raises:
        ReportError: it cannot be read, or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=PerformanceReport)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ReportError(
            f"{path} holds no report: {error}; write one with run-analysis --save"
        ) from error


def profiles(report: PerformanceReport, *, top: int) -> list[Profile]:
    """Return a report's total and its first rows as events; the version is their origin's."""
    tags = {"target": report.target, "source": "cprofile"}
    total = Profile(
        ts=report.ts,
        name="run-analysis",
        duration_ns=_ns(report.duration_s),
        tags={**tags, "calls": str(report.calls)},
        failed=report.outcome in ("raised", "interrupted") or bool(report.exit_code),
    )
    return [
        total,
        *(
            Profile(
                ts=report.ts,
                name=row.function,
                duration_ns=_ns(row.cumulative_s),
                tags={**tags, "calls": str(row.calls), "own_ns": str(_ns(row.own_s))},
            )
            for row in report.rows[:top]
        ),
    ]


def _measured(profiler: cProfile.Profile, call: Call) -> Any:
    try:
        profiler.enable()
    except ValueError as error:
        raise TargetError(f"another profiler is at work in this process: {error}") from error
    try:
        return call()
    finally:
        profiler.disable()


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _rows(stats: Mapping[_Place, Any], names: Mapping[_Place, str]) -> list[FunctionTime]:
    seen: Counter[str] = Counter()
    rows = []
    for place in sorted(stats):
        file, line, _ = place
        primitive, calls, own, cumulative, _ = stats[place]
        if file in _OWN or "_lsprof.Profiler" in place[2]:
            continue
        where = _short(file)
        name = f"{where}:{names.get(place, place[2])}" if line else place[2].strip("<>")
        seen[name] += 1
        if seen[name] > 1:  # such as a second lambda of the same function
            name = f"{name}#{seen[name]}"
        rows.append(
            FunctionTime(
                function=name,
                place=f"{where}:{line}" if line else "",
                calls=calls,
                primitive_calls=primitive,
                own_s=own,
                cumulative_s=cumulative,
            )
        )
    return rows


def _short(file: str) -> str:
    """Return a file's path as it is on all machines: below the package, Python or this folder."""
    if file.startswith("<frozen "):
        return file[len("<frozen ") : -1]
    if not Path(file).is_absolute():
        return file.removeprefix("./")
    for root in _ROOTS:
        if root and file.startswith(root):
            return file[len(root) :]
    below = os.path.relpath(file)
    return below if not below.startswith("..") else "/".join(Path(file).parts[-2:])


_ROOTS: Final = sorted(
    {sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib")},
    key=len,
    reverse=True,
)
_OWN: Final = {__file__, sys.modules[find.__module__].__file__}


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "returned"
    if isinstance(error, SystemExit):
        return "exited"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "raised"


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # anybody's class
        text = ""
    return f"{type(error).__name__}: {text}"[:_RESULT_CHARS].removesuffix(": ")


def _shown(result: Any) -> str:
    if result is None:
        return ""
    try:
        text = repr(result)
    except Exception:  # anybody's class
        text = f"<{type(result).__name__}>"
    return text if len(text) <= _RESULT_CHARS else text[: _RESULT_CHARS - 3] + "..."


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
