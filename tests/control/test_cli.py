"""The command line: what it prints, where, and with which exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlops_events.control.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test which file its `--config` named."""
    monkeypatch.setenv("MLOPS_EVENTS_CONFIG", "")


@pytest.fixture
def without() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a command where a module is not installed."""

    def run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        code = (
            f"import sys; sys.modules[{module!r}] = None\n"
            "from mlops_events.control.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "stream",
        "sink",
        "tail",
        "dead-letters list",
        "dead-letters show",
        "dead-letters redrive",
        "topics list",
        "topics create",
        "config show",
        "sinks list",
    ],
)
def test_every_command_has_help_with_examples(command: str, capsys: Capture) -> None:
    """The examples name the command itself."""
    code = main([*command.split(), "--help"])

    assert code == 0
    assert "Examples:" in (shown := capsys.readouterr().out)
    assert f"mlops-pipeline {command}" in shown.partition("Examples:")[2]


def test_without_arguments_there_is_help(capsys: Capture) -> None:
    """All commands are named."""
    code = main([])

    assert code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("up", "stream", "sink", "tail", "topics", "config"))


def test_help_names_first_what_is_needed_first(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no line of its text ends before the terminal does."""
    monkeypatch.setenv("COLUMNS", "200")
    main(["--help"])
    text, _, commands = capsys.readouterr().out.partition("Commands")
    names = [line.split()[1] for line in commands.splitlines()[1:] if line.startswith("│")]

    assert names[:4] == ["up", "tail", "config", "topics"]
    assert "Settings are read from MLOPS_EVENTS_*; options win over them." in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'; see 'mlops-pipeline --help'"),
        (["up", "--simulate", "many"], "see 'mlops-pipeline up --help'"),
        (["up", "--for", "soon"], "'soon' is no duration; write one such as 60s or 5m"),
        (["up", "--for", "0s"], "'0s' is no time to run"),
        (["tail", "--kind", "metric"], "no kind metric; kinds: run, observation, profile, log"),
        (["sink", "lokki", "--brokers", "127.0.0.1:9"], "no sink named 'lokki'"),
        (["dead-letters", "redrive"], "say which letters: KEY..., --sink, --reason"),
        (["dead-letters", "show"], "say which: either KEY or --offset"),
        (["dead-letters", "show", "--offset", "x"], "'x' is no place; write PARTITION:OFFSET"),
        (["dead-letters", "list", "--kind", "metric"], "no kind metric; kinds: run, observation"),
        (
            ["dead-letters", "list", "--since", "soon"],
            "--since 'soon' is no time; write one such as",
        ),
        (
            ["topics", "list", "--data", "/nowhere"],
            "no brokers; set MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT, or start `mlops-pipeline up`, "
            "which does not run in /nowhere",
        ),
        (["stream", "--config", "/nowhere.toml"], "settings file '/nowhere.toml'"),
    ],
)
def test_wrong_usage_is_said_in_a_line(arguments: list[str], said: str, capsys: Capture) -> None:
    """On standard error, with exit code 2."""
    code = main(arguments)

    assert code == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", ["topics", "list"], "service"),
        ("rich", ["up"], "local"),
        ("numpy", ["up"], "local"),
        ("faust", ["stream", "--brokers", "127.0.0.1:9"], "streams"),
    ],
)
def test_a_missing_extra_is_named(
    without: Callable[..., "subprocess.CompletedProcess[str]"],
    module: str,
    arguments: list[str],
    extra: str,
) -> None:
    """In one line that can be pasted."""
    done = without(module, *arguments)

    assert done.returncode == 2
    assert done.stderr == (
        f'mlops-pipeline: {module} is not installed; run: pip install "mlops-events[{extra}]"\n'
    )


def test_help_does_not_need_the_rest(
    without: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    """Faust and numpy take long to import; they are imported by what uses them."""
    assert without("faust", "--help").returncode == 0
    assert without("numpy", "--help").returncode == 0


def test_config_show_tells_where_each_setting_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Variables, files and defaults; no secret is shown."""
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_BROKERS", "b:1")
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_SASL_PASSWORD", "hunter2")
    (tmp_path / "site.toml").write_text('[stream]\nby = ["time:5s"]\n')
    code = main(["config", "show", "--json", "--config", str(tmp_path / "site.toml")])
    shown = capsys.readouterr().out
    found = {s["variable"]: (s["value"], s["source"]) for s in msgspec.json.decode(shown)}

    assert code == 0
    assert found["MLOPS_EVENTS_KAFKA_BROKERS"] == ("b:1", "environment")
    assert found["MLOPS_EVENTS_STREAM_BY"] == (["time:5s"], "file")
    assert found["MLOPS_EVENTS_SINK_MAX_EVENTS"] == (5000, "default")
    assert "hunter2" not in shown


def test_config_show_writes_values_as_one_would_set_them(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A list with commas, a switch in small letters, a dash where there is nothing."""
    monkeypatch.setenv("MLOPS_EVENTS_STREAM_SINKS", "sqlite,loki")
    main(["config", "show"])
    found = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}

    assert found["MLOPS_EVENTS_STREAM_SINKS"] == "sqlite,loki"
    assert found["MLOPS_EVENTS_KAFKA_EMBEDDED"] == "false"
    assert found["MLOPS_EVENTS_STREAM_GROUP"] == "-"
    assert found["MLOPS_EVENTS_KAFKA_SASL_PASSWORD"] == "-"
    assert found["MLOPS_EVENTS_SINK_MAX_EVENTS"] == "5000"


def test_config_check_names_everything_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """At once."""
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_PARTITIONS", "none")
    monkeypatch.setenv("MLOPS_EVENTS_STREAM_WINDOWS", "5")
    code = main(["config", "check"])
    said = capsys.readouterr().err

    assert code == 2
    assert "MLOPS_EVENTS_KAFKA_PARTITIONS" in said
    assert "MLOPS_EVENTS_STREAM_WINDOWS: nothing reads this" in said


def test_config_check_says_when_all_is_well(capsys: Capture) -> None:
    """With exit code 0."""
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == "all settings can be used\n"


def test_a_sink_that_is_not_installed_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """It may run on another machine, so it is no error."""
    monkeypatch.setenv("MLOPS_EVENTS_STREAM_SINKS", "sqlite,pigeons")
    code = main(["config", "check"])

    assert code == 0
    assert "no sink named 'pigeons' is installed here" in capsys.readouterr().err


def test_a_sinks_own_table_is_read_from_the_file(tmp_path: Path, capsys: Capture) -> None:
    """What `config check` says of a file holds for the sink that reads it."""
    file = tmp_path / "site.toml"
    file.write_text('[kafka]\nbrokers = "127.0.0.1:1"\n\n[console]\ncolor = "bogus"\n')
    checked = main(["config", "check", "--config", str(file)])
    complaint = capsys.readouterr().err
    ran = main(["sink", "console", "--config", str(file)])

    assert (checked, ran) == (2, 2)
    assert "bogus" in complaint
    assert "bogus" in capsys.readouterr().err


def test_installed_sinks_are_listed(capsys: Capture) -> None:
    """With where they come from."""
    code = main(["sinks", "list", "--json"])

    assert code == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["sqlite"] == "mlops_events.sinks.sqlite:SQLiteSink"


def test_a_broker_that_is_away_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the library has to say at each of its tries."""
    code = main(["topics", "list", "--brokers", "127.0.0.1:1"])

    assert code == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("mlops-pipeline: no Kafka answers at 127.0.0.1:1 within ")
