"""The settings of the fleet service: the roster in its forms, and what cannot be."""

from pathlib import Path

import pytest

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import load
from mlops_events.streams.fleetsettings import FleetStatsSettings


def test_the_roster_from_the_environment() -> None:
    """Ranges, single nodes and names; a role of one run wins."""
    text = "miner=0-2,7,gpu-1;validator=0;llama/miner=5"
    found = load(FleetStatsSettings, "fleet", environ={"MLOPS_EVENTS_FLEET_ROSTER": text})

    assert found.uids("qwen", "miner") == {"0", "1", "2", "7", "gpu-1"}
    assert found.uids("llama", "miner") == {"5"}
    assert found.uids("llama", "validator") == {"0"}
    assert found.uids("llama", "evaluator") is None


def test_the_roster_from_a_file(tmp_path: Path) -> None:
    """A table of lists; numbers and texts name the same nodes."""
    path = tmp_path / "site.toml"
    path.write_text('[fleet]\nkeep_s = "3h"\n[fleet.roster]\nminer = ["0-1", 7]\nidle = []\n')
    found = load(FleetStatsSettings, "fleet", environ={}, file=path)

    assert found.uids("r", "miner") == {"0", "1", "7"}
    assert found.uids("r", "idle") == frozenset()
    assert found.keep_ns == 10_800 * 10**9


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ROSTER", "miner=3-1", "the range '3-1'; write FIRST-LAST, of at most 100000 nodes"),
        ("ROSTER", "miner=0-100000", "of at most 100000 nodes"),
        ("ROSTER", "miner", "write key=value"),
        ("KEEP_S", "5s", "keep_s (5) must not be below wait_s (15)"),
        ("MISSING_S", "20min", "seen_s (600) must not be below missing_s (1200)"),
    ],
)
def test_what_cannot_be(name: str, value: str, problem: str) -> None:
    """The message says what was found and what would do."""
    environ = {f"MLOPS_EVENTS_FLEET_{name}": value}

    with pytest.raises(ConfigError) as error:
        load(FleetStatsSettings, "fleet", environ=environ)
    assert problem in str(error.value)
