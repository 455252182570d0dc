"""Looks at what is installed for unsloth, without importing it, torch or any of the others."""

import platform
import re

import msgspec

from mlops_events.producers.diagnostics.inference import InferenceBenchmark
from mlops_events.producers.diagnostics.installed import (
    requirements_of,
    torch_cuda,
    version_of,
)
from mlops_events.producers.diagnostics.unsloth_rules import (
    SHOWN,
    Facts,
    Finding,
    GPUFact,
    judge,
)
from mlops_events.producers.nvml import NVML, NVMLUnavailableError

__all__ = ["UnslothInstallation", "check_unsloth_installation", "unused_gpu"]

_NAME = re.compile(r"[^A-Za-z0-9._-]")


class UnslothInstallation(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed for unsloth, and what is missing or does not fit together."""

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """What is needed and not there."""
        return tuple(one.about for one in self.findings if one.level == "missing")

    @property
    def wrong(self) -> tuple[str, ...]:
        """What is there and does not fit."""
        found = (one.about for one in self.findings if one.level == "wrong")
        return tuple(dict.fromkeys(found))

    @property
    def ready(self) -> bool:
        """Whether nothing speaks against running a model with unsloth."""
        return not self.missing and not self.wrong


def check_unsloth_installation() -> UnslothInstallation:
    """Return versions and GPUs of this machine, and how they suit unsloth.

    Packages are asked for by their metadata and GPUs through NVML, so it takes milliseconds, makes no
    CUDA context and works where an installation is broken.
    """
    versions = {name: version_of(name) for name in SHOWN}
    versions["triton"] = versions["triton"] or version_of("triton-windows")
    driver, gpus, no_gpu = _gpus()
    facts = Facts(
        python=platform.python_version(),
        system=platform.system(),
        versions=versions,
        requirements={name: _requirements(name) for name in SHOWN if versions[name]},
        torch_cuda=torch_cuda(),
        driver=driver,
        gpus=gpus,
        no_gpu=no_gpu,
    )
    return UnslothInstallation(facts=facts, findings=tuple(judge(facts)))


def unused_gpu(installation: UnslothInstallation, benchmark: InferenceBenchmark) -> str:
    """Return what is wrong if a model ran on the CPU though there is a GPU, else ""."""
    gpus = installation.facts.gpus
    if not gpus or benchmark.memory_of == "GPU":
        return ""
    return (
        f"the model ran on {benchmark.device} though there is a GPU ({gpus[0].name}): torch cannot "
        "use it; look at CUDA_VISIBLE_DEVICES, and at what torch.cuda.init() says"
    )


def _requirements(package: str) -> tuple[str, ...]:
    """Return what a package requires of the others that are looked at, extras apart."""
    return tuple(
        text
        for text in requirements_of(package)
        if _NAME.split(text, maxsplit=1)[0].lower().replace("-", "_") in (*SHOWN, "python")
        and "extra ==" not in text
    )


def _gpus() -> tuple[str | None, tuple[GPUFact, ...], str]:
    """Return the driver, the GPUs, and why there are none."""
    try:
        nvml = NVML()
    except NVMLUnavailableError as error:
        return None, (), str(error)
    try:
        found = tuple(
            GPUFact(
                gpu=gpu.place,
                name=gpu.name,
                compute_capability=gpu.compute_capability,
                memory_total=gpu.memory_total,
            )
            for gpu in nvml.read()
            if gpu.parent is None and not gpu.lost
        )
        return nvml.system.driver, found, "" if found else "NVML tells of none"
    finally:
        nvml.close()
