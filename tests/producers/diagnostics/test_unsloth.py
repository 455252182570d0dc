"""What is found of unsloth on this machine; folders of metadata stand for gigabytes of packages."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from mlops_events.producers.diagnostics import (
    EnvironmentInfo,
    InferenceBenchmark,
    check_unsloth_installation,
)
from mlops_events.producers.diagnostics.installed import torch_cuda, version_of
from mlops_events.producers.diagnostics.unsloth import unused_gpu

Packages = dict[str, tuple[str, tuple[str, ...]]]
Install = Callable[[Packages], None]


def test_a_machine_that_has_all_is_ready(
    packages: Packages, install_packages: Install, nvml: Any
) -> None:
    """Versions come from metadata, GPUs from NVML; nothing is imported."""
    install_packages(packages)
    nvml.play("count=2")
    found = check_unsloth_installation()

    assert found.ready, found.findings
    assert found.facts.versions == {name: version for name, (version, _) in packages.items()}
    assert (found.facts.torch_cuda, found.facts.driver) == ("13.0", "580.65.06")
    assert [(gpu.gpu, gpu.compute_capability) for gpu in found.facts.gpus] == [
        ("0", "9.0"),
        ("1", "9.0"),
    ]
    assert "torch" not in sys.modules


def test_what_does_not_fit_is_named_once(
    packages: Packages, install_packages: Install, nvml: Any
) -> None:
    """However many say so."""
    del nvml
    both = {"unsloth_zoo": ("2026.10.6", ("torch<2.15",)), "torch": ("2.15.0", ())}
    install_packages({**packages, **both})
    found = check_unsloth_installation()

    assert not found.ready
    assert (found.missing, found.wrong) == ((), ("torch",))
    assert len(found.findings) == 2


def test_a_gpu_that_is_lost_is_none(
    packages: Packages, install_packages: Install, nvml: Any
) -> None:
    """It runs nothing."""
    install_packages(packages)
    nvml.play("count=1 error.gpu=15")
    found = check_unsloth_installation()

    assert found.missing == ("GPU",)


def test_instances_of_a_gpu_are_not_counted(
    packages: Packages, install_packages: Install, nvml: Any
) -> None:
    """The GPU that is cut into them is."""
    install_packages(packages)
    nvml.play("count=1 mig=2")

    assert [gpu.gpu for gpu in check_unsloth_installation().facts.gpus] == ["0"]


def test_a_torch_for_cpus_tells_no_cuda(
    site: Path, packages: Packages, install_packages: Install
) -> None:
    """Nor does one whose files are not there."""
    install_packages({"torch": packages["torch"]})
    version = site / "torch" / "version.py"
    version.write_text("cuda: Optional[str] = None\nhip = '6.2'\n")
    without = torch_cuda()
    version.unlink()

    assert (without, torch_cuda()) == (None, None)


def test_a_package_that_is_not_there_has_no_version() -> None:
    """And that is no error."""
    assert version_of("mlops-events-no-such-package") is None


def test_the_environment_of_an_observation_has_torchs_versions(
    packages: Packages, install_packages: Install
) -> None:
    """Which is not imported for them."""
    install_packages(packages)
    found = EnvironmentInfo.of_this_process()

    assert (found.torch, found.cuda) == ("2.14.1", "13.0")
    assert found.tags()["cuda"] == "13.0"
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("count", "memory_of", "told"), [(1, "process", True), (1, "GPU", False), (0, "process", False)]
)
def test_a_gpu_that_torch_cannot_use_is_told(
    nvml: Any, count: int, memory_of: Literal["GPU", "process"], told: bool
) -> None:
    """The model ran, but on the CPU."""
    nvml.play(f"count={count}")
    benchmark = InferenceBenchmark(
        backend="unsloth",
        model="tiny",
        device="cpu",
        dtype="float32",
        prompt_tokens=1,
        new_tokens=1,
        warmup=0,
        runs=(),
        tokens_per_second=1.0,
        slowest=1.0,
        fastest=1.0,
        first_token_s=None,
        load_s=1.0,
        peak_memory=None,
        memory_of=memory_of,
    )

    assert ("torch cannot use it" in unused_gpu(check_unsloth_installation(), benchmark)) is told


def test_requirements_of_extras_and_of_others_are_left_out(
    packages: Packages, install_packages: Install
) -> None:
    """unsloth has hundreds of them."""
    texts = ("torch>=2.4", "rich>=13", "Unsloth-Zoo>=1", "xformers>=9; extra == 'cu130'")
    install_packages({**packages, "unsloth": ("2026.10.9", texts)})
    found = check_unsloth_installation().facts.requirements["unsloth"]

    assert found == ("torch>=2.4", "Unsloth-Zoo>=1", "python >=3.10")
