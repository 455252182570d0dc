"""Fixtures for tests of what runs on a node.

nvml           the real pynvml on a stand-in for NVIDIA's library (services/nvml/nvml.c):
               nvml.play("count=2 error.power=3"), nvml.calls("power")
old_nvml       the same, as a driver of 2018
nvml_folder    the folder with the stand-in, for LD_LIBRARY_PATH of a program of its own, which
               reads what to play from NVML_STANDIN
no_nvml_folder the same, with a library that cannot be loaded
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "services" / "nvml" / "nvml.c"
FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
LIBRARY = "libnvidia-ml.so.1"


class StandIn:
    """A stand-in for NVIDIA's library that is loaded in this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.standin_calls.restype = ctypes.c_longlong
        self._library = library

    def play(self, words: str) -> None:
        """Answer like this from now on; see nvml.c."""
        self._library.standin_play(words.encode())

    def calls(self, name: str) -> int:
        """Return how often this was called since `play`."""
        return int(self._library.standin_calls(name.encode()))


@pytest.fixture(scope="session")
def nvml_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile the stand-in, once: as a driver of today, an old one, and one that is broken."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        report = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        report("no C compiler for the stand-in of NVML; install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    for name, flags in (("today", ()), ("old", ("-DOLD_DRIVER",))):
        (folder / name).mkdir()
        subprocess.run(
            [compiler, *FLAGS, *flags, "-o", str(folder / name / LIBRARY), str(SOURCE)],
            check=True,
            timeout=120,
        )
    (folder / "none").mkdir()
    (folder / "none" / LIBRARY).write_text("no library")
    return {name: folder / name for name in ("today", "old", "none")}


@pytest.fixture
def nvml(nvml_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Have pynvml use the stand-in; one healthy GPU to begin with."""
    return _load(nvml_folders["today"], monkeypatch)


@pytest.fixture
def old_nvml(nvml_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Have pynvml use the stand-in of an old driver."""
    return _load(nvml_folders["old"], monkeypatch)


@pytest.fixture
def nvml_folder(nvml_folders: dict[str, Path]) -> Path:
    """Return the folder of the stand-in, for programs that a test starts."""
    return nvml_folders["today"]


@pytest.fixture
def no_nvml_folder(nvml_folders: dict[str, Path]) -> Path:
    """Return a folder that hides any NVML that this machine may have."""
    return nvml_folders["none"]


def _load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    # pynvml would keep the library for ever and remember its functions: both go with the test
    import pynvml

    library = ctypes.CDLL(str(folder / LIBRARY))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    found = StandIn(library)
    found.play("")
    return found
