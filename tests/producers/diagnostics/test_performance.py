"""`PerformanceAnalyzer`: what it runs, what it measures, how a target ends."""

import asyncio
import cProfile
import pstats
import sys
from pathlib import Path
from typing import Any

import pytest

from mlops_events.producers.diagnostics.performance import (
    PerformanceAnalyzer,
    PerformanceReport,
    ReportError,
    profiles,
    read_report,
)
from mlops_events.producers.diagnostics.performance_target import TargetError, find


def busy(steps: int, *, lr: float = 0.1) -> float:
    """Do some work."""
    return sum(_step(n) for n in range(steps)) * lr


def _step(n: int) -> int:
    return sum(range(n))


async def waiting(times: int) -> int:
    """Give way to the event loop."""
    for _ in range(times):
        await asyncio.sleep(0)
    return times


class Trainer:
    """A class with methods of the same name."""

    def step(self) -> int:
        """Work."""
        return Other().step()


class Other:
    """Another one."""

    def step(self) -> int:
        """Work."""
        return 1


class Unshowable:
    """Something that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def _calls(report: PerformanceReport, end: str) -> int:
    return next(row.calls for row in report.rows if row.function.endswith(end))


class TestRunning:
    """What is run."""

    def test_a_function_is_called_with_its_arguments(self) -> None:
        """Its result is kept as it is, and told as text."""
        analyzer = PerformanceAnalyzer()
        report = analyzer.run(busy, 10, lr=2.0)

        assert analyzer.result == 240.0
        assert (report.outcome, report.result, report.error) == ("returned", "240.0", "")
        assert _calls(report, ":_step") == 10

    def test_an_asynchronous_function_runs_to_its_end(self) -> None:
        """In an event loop that is measured, too."""
        analyzer = PerformanceAnalyzer()
        report = analyzer.run(waiting, 5)

        assert analyzer.result == 5
        assert _calls(report, ":waiting") >= 5

    def test_what_it_raises_is_kept_beside_the_report(self) -> None:
        """And is not raised again."""
        analyzer = PerformanceAnalyzer()
        report = analyzer.run(lambda: dict[str, float]()["lr"])

        assert isinstance(analyzer.error, KeyError)
        assert (report.outcome, report.error) == ("raised", "KeyError: 'lr'")

    @pytest.mark.parametrize(("code", "told"), [(3, 3), (None, 0), ("no data", 1)])
    def test_sys_exit_ends_the_target_only(self, code: Any, told: int) -> None:
        """The code is what a shell would see."""
        report = PerformanceAnalyzer().run(sys.exit, code)

        assert (report.outcome, report.exit_code) == ("exited", told)

    def test_an_interrupt_leaves_the_report_so_far(self) -> None:
        """As Ctrl-C does."""

        def interrupted() -> None:
            busy(3)
            raise KeyboardInterrupt

        report = PerformanceAnalyzer().run(interrupted)

        assert report.outcome == "interrupted"
        assert _calls(report, ":_step") == 3

    def test_a_result_that_cannot_be_shown_does_no_harm(self) -> None:
        """Its type is told."""
        assert PerformanceAnalyzer().run(Unshowable).result == "<Unshowable>"

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 lets the newer one win")
    def test_another_profiler_is_told(self) -> None:
        """Python has one at a time."""
        profiler = cProfile.Profile()
        profiler.enable()
        try:
            with pytest.raises(TargetError, match="another profiler is at work"):
                PerformanceAnalyzer().run(busy, 1)
        finally:
            profiler.disable()


class TestReport:
    """What is measured."""

    def test_rows_are_sorted_by_cumulative_time(self) -> None:
        """What contains all comes first."""
        report = PerformanceAnalyzer().run(busy, 2_000)

        assert report.rows[0].function.endswith("test_performance.py:busy")
        times = [row.cumulative_s for row in report.rows]
        assert times == sorted(times, reverse=True)

    def test_rows_are_sorted_by_another_key(self) -> None:
        """Such as how often a function was called."""
        report = PerformanceAnalyzer(sort="calls").run(busy, 100)

        calls = [row.calls for row in report.rows]
        assert calls == sorted(calls, reverse=True)

    def test_methods_are_told_with_their_class(self) -> None:
        """So that two of one name are told apart."""
        report = PerformanceAnalyzer().run(Trainer().step)

        assert _calls(report, ":Trainer.step") == 1
        assert _calls(report, ":Other.step") == 1

    def test_nothing_of_the_analyzer_is_in_it(self) -> None:
        """Only what the target called."""
        report = PerformanceAnalyzer().run(busy, 0)

        assert {row.function.rpartition(":")[2] for row in report.rows} <= {
            "busy",
            "busy.<locals>.<genexpr>",
            "built-in method builtins.sum",
        }

    def test_pstats_reads_what_was_measured(self, tmp_path: Path) -> None:
        """As of cProfile itself."""
        analyzer = PerformanceAnalyzer()
        analyzer.run(busy, 10)
        analyzer.stats.dump_stats(tmp_path / "busy.pstats")

        found: Any = pstats.Stats(str(tmp_path / "busy.pstats"))
        assert any(name == "_step" for _, _, name in found.stats)

    def test_a_file_that_is_no_report_is_told(self, tmp_path: Path) -> None:
        """With what is wrong in it."""
        (tmp_path / "x.json").write_text('{"target": 1}')

        with pytest.raises(ReportError, match=r"holds no report.*run-analysis --save"):
            read_report(tmp_path / "x.json")
        with pytest.raises(ReportError, match="cannot be read"):
            read_report(tmp_path / "none.json")

    def test_its_first_rows_become_profiles(self) -> None:
        """The total before them; a target that raised has failed."""
        analyzer = PerformanceAnalyzer()
        events = profiles(analyzer.run(busy, 10), top=2)

        assert [e.name.rpartition(":")[2] for e in events] == [
            "run-analysis",
            "busy",
            "built-in method builtins.sum",
        ]
        assert not events[0].failed
        assert events[1].tags == {**(events[1].tags or {}), "calls": "1", "source": "cprofile"}
        assert profiles(analyzer.run(lambda: 1 / 0), top=1)[0].failed


class TestFinding:
    """What a target may be, and what is said of one that is none."""

    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have a module `training_program` to import."""
        (tmp_path / "training_program.py").write_text(
            "CONFIG = {}\n"
            "def main(steps): return steps\n"
            "def arguments():\n    import sys\n    return sys.argv\n"
            "class Trainer:\n    @staticmethod\n    def fit(): return 'fitted'\n"
        )
        (tmp_path / "broken_program.py").write_text("raise ValueError('no data')")
        (tmp_path / "needing_program.py").write_text("import no_such_package")
        (tmp_path / "syntax.py").write_text("def x(:")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)

    def test_a_method_is_found(self) -> None:
        """By the name of its class."""
        assert find("training_program:Trainer.fit")() == "fitted"

    def test_a_function_without_parameters_reads_the_command_line(self) -> None:
        """What it is given is not passed."""
        assert find("training_program:arguments", ["x"])() == sys.argv

    @pytest.mark.parametrize(
        ("target", "told"),
        [
            ("training_program:mian", "did you mean main"),
            ("training_program:zzz", "can be called: Trainer, arguments, main"),
            ("training_program:CONFIG", "is of type dict, not a function"),
            ("training_program:Trainer.fti", "'Trainer' has no 'fti'; did you mean fit"),
            ("training_program:main", r"takes \(steps\), and was given \(\)"),
            ("training_program", "is no function and no script; give module:function"),
            ("no_such:main", "there is no module 'no_such' in"),
            ("broken_program:main", "cannot be imported: ValueError: no data"),
            ("needing_program:main", "needs 'no_such_package', which is not installed"),
            ("none.py", "there is no script 'none.py'"),
            ("syntax.py", "is no Python script"),
            (":main", "is no function and no script"),
        ],
    )
    def test_a_wrong_target_is_told(self, target: str, told: str) -> None:
        """What was found, and what is expected."""
        with pytest.raises(TargetError, match=told):
            find(target)
