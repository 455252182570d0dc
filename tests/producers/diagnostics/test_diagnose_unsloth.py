"""`mlops-emit diagnose-unsloth` as a shell sees it, on machines that lack one thing or another."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "mlops_events.producers", "diagnose-unsloth")
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def diagnose(nvml_folder: Path, site: Path) -> Callable[..., Done]:
    """A function that runs the command; packages are those of `site`."""

    def diagnose(*args: str, folder: Path = nvml_folder, **env: str) -> Done:
        return subprocess.run(
            [*PROGRAM, *args],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(folder),
                "NVML_STANDIN": "count=1 name=NVIDIA_H200",
                "PYTHONPATH": str(site),
                **env,
            },
            cwd=site,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return diagnose


def test_without_a_gpu_it_says_what_is_missing(diagnose: Any, no_nvml_folder: Path) -> None:
    """Exit code 2; one line on standard error says where to begin."""
    done = diagnose(folder=no_nvml_folder)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "mlops-emit: missing: unsloth, " in done.stderr
    assert 'pip install "mlops-events[unsloth]"' in done.stderr
    assert "missing GPU: no NVIDIA driver is installed" in done.stdout
    assert 'pip install "mlops-events[unsloth]"' in done.stdout
    assert "Summary: unsloth is not ready (missing: unsloth, " in done.stdout


def test_json_has_facts_and_findings(diagnose: Any, no_nvml_folder: Path) -> None:
    """For programs, and nothing else on standard output."""
    done = diagnose("--json", folder=no_nvml_folder)
    found = json.loads(done.stdout)

    assert done.returncode == 2
    assert (found["ready"], found["benchmark"]) == (False, None)
    assert found["installation"]["facts"]["versions"]["unsloth"] is None
    assert found["error"].startswith("missing: unsloth, ")
    assert {one["level"] for one in found["installation"]["findings"]} <= {"missing", "note"}


@pytest.mark.parametrize("columns", ["80", "40"])
def test_it_fits_into_the_terminal(
    diagnose: Any, install_packages: Any, packages: Any, columns: str
) -> None:
    """With all there is to show: versions, a GPU, what is missing and what does not fit."""
    del packages["xformers"]
    install_packages({**packages, "torch": ("2.15.0", ())})
    done = diagnose("--no-benchmark", COLUMNS=columns)

    assert done.returncode == 1
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    text = " ".join(done.stdout.split())
    assert "torch 2.15.0 for CUDA 13.0" in text
    assert "GPU 0 NVIDIA H200, compute capability 9.0, 80 GiB" in text
    assert "wrong torch: 2.15.0" in text
    assert "unsloth 2026.10.9, its metadata" in text
    assert "Summary: unsloth is not ready (does not fit: torch)" in text


def test_a_machine_that_has_all_is_ready(
    diagnose: Any, install_packages: Any, packages: Any
) -> None:
    """Exit code 0."""
    install_packages(packages)
    done = diagnose("--no-benchmark")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Summary: unsloth is ready\n")


def test_an_installation_that_is_broken_is_told_in_one_line(
    diagnose: Any, install_packages: Any, packages: Any
) -> None:
    """It looks complete, and raises when it is imported; the exit code is 1."""
    install_packages(packages)
    done = diagnose()
    loading, error = done.stderr.splitlines()

    assert done.returncode == 1
    assert loading.startswith("loading unsloth/mistral-7b-v0.1-bnb-4bit with unsloth")
    assert "cannot be loaded with unsloth: RuntimeError: it was imported" in error
    assert "Summary: unsloth is ready; no benchmark" in done.stdout


def test_with_transformers_only_what_that_needs_counts(
    diagnose: Any, install_packages: Any, packages: Any, no_nvml_folder: Path
) -> None:
    """Neither a GPU nor unsloth."""
    bare = diagnose("--backend", "transformers", folder=no_nvml_folder)
    install_packages({name: packages[name] for name in ("torch", "transformers")})
    args = ("--backend", "transformers", "--model", "./none")
    done = diagnose(*args, folder=no_nvml_folder)

    assert bare.returncode == 2
    assert "mlops-emit: missing: torch, transformers; " in bare.stderr
    assert done.returncode == 1
    assert "there is no folder ./none" in done.stderr
    assert "unsloth is not ready" not in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--backend", "llama"), "no backend 'llama'; there are: unsloth, transformers"),
        (("--runs", "0"), "Invalid value for '--runs'"),
        (("--emit",), "no brokers; give --brokers HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line(diagnose: Any, args: tuple[str, ...], message: str) -> None:
    """And exit code 2, with nothing on standard output."""
    done = diagnose(*args)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
