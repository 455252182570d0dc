"""Which run an origin has, and the files that keep ids."""

from pathlib import Path
from typing import Any

import pytest

from mlops_events.schemas.events import Origin
from mlops_events.sinks.wandb_names import IdFiles, name_run
from mlops_events.sinks.wandb_settings import WandbSettings

MINER = Origin(run="llama-7b", role="miner", uid=7, rank=2, node="a")


def name(origin: Origin, *, replay: str = "", **settings: Any) -> Any:
    """Return an origin's run."""
    return name_run(origin, WandbSettings(**settings), replay=replay)


def test_an_id_can_be_read_and_is_the_same_for_all_ranks_and_restarts() -> None:
    """It is made from run, role and uid alone."""
    other = Origin(run="llama-7b", role="miner", uid=7, rank=0, node="b", version="2")

    assert name(MINER).id.startswith("llama-7b-miner-7-")
    assert name(other).id == name(MINER).id


@pytest.mark.parametrize(
    "origin",
    [
        Origin(run="llama", role="7b-miner", uid=7),
        Origin(run="llama-7b", role="miner", uid=8),
        Origin(run="llama/7b", role="miner", uid=7),
        Origin(run="llama-7b-miner", uid=7),
    ],
)
def test_no_two_nodes_have_one_id(origin: Origin) -> None:
    """However their words are cut."""
    assert name(origin).id != name(MINER).id


def test_ids_keep_to_what_wandb_allows() -> None:
    """No separators of paths, and not too long."""
    odd = name(Origin(run="a/b\\c#d?e%f:g" + "\u6f22" * 300, role="r", uid="x" * 300))

    assert len(odd.id) <= 64
    assert not set(odd.id) & set("/\\#?%: ")
    assert len(name(MINER, replay="x" * 300).id) <= 128


def test_a_replay_has_a_run_of_its_own() -> None:
    """Beside the live one, named after it."""
    assert name(MINER, replay="r/1").id == f"{name(MINER).id}-replay-r_1"


def test_the_project_is_the_origins_or_the_settings() -> None:
    """Whoever names one."""
    there = Origin(run="r", project="theirs")

    assert name(there, project="ours").project == "theirs"
    assert name(MINER, project="ours").project == "ours"


def test_files_of_programs_that_logged_themselves_are_used(tmp_path: Path) -> None:
    """A run goes on under the id that its own program once gave it."""
    (tmp_path / "wandb_run_id_M7.txt").write_text("abc123\n")
    files = IdFiles(str(tmp_path))
    miner = files.read(name(MINER, id_prefix="{initial}"))

    assert miner.id == "abc123"
    assert files.known(miner)


def test_an_id_is_kept_in_a_file(tmp_path: Path) -> None:
    """Whoever starts next finds it."""
    files, miner = IdFiles(str(tmp_path / "ids")), name(MINER)
    known = files.known(miner)
    files.keep(miner)

    assert not known
    assert (tmp_path / "ids" / "wandb_run_id_llama-7b_miner_7.txt").read_text() == miner.id
    assert files.read(miner) == miner


def test_without_a_folder_there_are_no_files() -> None:
    """Ids are made then."""
    files, miner = IdFiles(""), name(MINER)
    files.keep(miner)

    assert files.read(miner) == miner
    assert not files.known(miner)
