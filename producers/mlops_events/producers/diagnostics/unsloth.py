"""Looks at what is installed for unsloth, without importing it, torch or any of the others."""

import platform

import msgspec

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

__all__ = ["UnslothInstallation", "check_unsloth_installation"]


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
        requirements={name: requirements_of(name) for name in SHOWN if versions[name]},
        torch_cuda=torch_cuda(),
        driver=driver,
        gpus=gpus,
        no_gpu=no_gpu,
    )
    return UnslothInstallation(facts=facts, findings=tuple(judge(facts)))


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
