"""The file that a replay keeps its progress in."""

from pathlib import Path

import pytest

from mlops_events.control.replay_fold import Source
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.control.replay_state import ReplayState, StateFile, default_path, shown_command
from mlops_events.schemas.errors import ConfigError
from mlops_events.streams.dedupe import SeqRuns

REQUEST = ReplayRequest(
    kinds=("run",), sink="sqlite", since_ns=1, until_ns=2, slack_ns=3, margin_ns=4
)
COMMAND = {"kind": "run", "sink": "sqlite", "since": "-2h", "until": "now", "dry-run": ""}


def state(*, done: bool = False) -> ReplayState:
    """Return the state of a replay that has read something."""
    runs = SeqRuns()
    runs.add(7)
    source = Source(
        kind="run", topic="t", partition=3, start=0, next=5, end=9, seen={b"e" * 16: runs}
    )
    return ReplayState(
        command=COMMAND, number=2, request=REQUEST, by=["time:10s"], sources=[source], done=done
    )


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it, in a folder that is made."""
    file = StateFile(tmp_path / "below" / "a.state")
    assert file.read() is None
    file.write(state())

    assert file.read() == state()
    file.close()


def test_one_process_has_a_replay(tmp_path: Path) -> None:
    """A second one is told so, until the first one is gone."""
    first = StateFile(tmp_path / "a.state")
    with pytest.raises(ConfigError, match="this replay runs already"):
        StateFile(tmp_path / "a.state")
    first.close()
    StateFile(tmp_path / "a.state").close()


def test_what_is_no_state_is_left_alone(tmp_path: Path) -> None:
    """A file that is something else is neither read nor overwritten."""
    path = tmp_path / "letter.txt"
    path.write_text("dear reader")
    file = StateFile(path)
    with pytest.raises(ConfigError, match="holds no state of a replay"):
        file.read()
    file.close()

    assert path.read_text() == "dear reader"


def test_unfinished_replays_are_found(tmp_path: Path) -> None:
    """A command line that was mistyped can be looked up; finished ones are done with."""
    for name, done in (("a", False), ("b", True)):
        other = StateFile(tmp_path / f"{name}.state")
        other.write(state(done=done))
        other.close()
    (tmp_path / "c.state").write_bytes(b"torn")
    file = StateFile(tmp_path / "d.state")
    found = [shown_command(other.command) for other in file.others()]
    file.close()

    assert found == ["run --sink sqlite --since -2h --until now --dry-run"]


def test_each_command_line_has_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below the folder that the system names for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = default_path(COMMAND)

    assert path.parent == tmp_path / "mlops-events" / "replays"
    assert path == default_path(dict(reversed(COMMAND.items())))
    assert path != default_path({**COMMAND, "since": "-3h"})
