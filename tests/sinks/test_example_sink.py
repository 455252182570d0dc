"""The example of a sink of one's own: installed like any package, it is found and passes."""

import csv
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlops_events.sinks.base import Sink, installed_sinks, load_sink
from mlops_events.sinks.testing import SinkContract, sample_batch

EXAMPLE = Path(__file__).parents[2] / "examples" / "csv_sink"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the package as pip would: its module, and its entry points beside it."""
    site = tmp_path / "site-packages"
    info = site / "mlops_events_csv_sink-0.1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(EXAMPLE / "mlops_events_csv_sink.py", site)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mlops-events-csv-sink\nVersion: 0.1.0\n"
    )
    written = (EXAMPLE / "pyproject.toml").read_text().partition('"mlops_events.sinks"]\n')[2]
    name, _, place = written.splitlines()[0].partition(" = ")
    place = place.strip('"')
    (info / "entry_points.txt").write_text(f"[mlops_events.sinks]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("mlops_events_csv_sink", None)


class TestContract(SinkContract):
    """The example passes the tests of every sink."""

    @pytest.fixture(autouse=True)
    def _place(self, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CSV_SINK_PATH", str(tmp_path / "stats.csv"))

    def make_sink(self) -> Sink:
        return load_sink("csv")


async def test_it_is_found_by_its_entry_point(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is listed beside ours, and it writes what it says."""
    path = tmp_path / "stats.csv"
    monkeypatch.setenv("CSV_SINK_PATH", str(path))
    assert {"csv", "sqlite"} <= set(installed_sinks())
    sink: Any = load_sink("csv")
    await sink.open()
    await sink.write(sample_batch())
    await sink.close()

    (row,) = csv.reader(path.read_text(encoding="utf-8").splitlines())
    assert row[:5] == ["contract", "miner", "7", "training", "loss"]
    assert row[-5:] == ["3", "0.5", "-0.5", "1.5", "0.5"]
