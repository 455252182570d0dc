"""Judges whether what is installed for unsloth fits together: facts in, findings out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

__all__ = ["SHOWN", "Facts", "Finding", "GPUFact", "judge"]

Level: TypeAlias = Literal["note", "missing", "wrong"]

SHOWN: Final = (
    *("unsloth", "unsloth_zoo", "torch", "triton", "bitsandbytes", "xformers", "transformers"),
)
"""The packages that are looked at."""

_NEEDED: Final = {
    "unsloth": 'pip install "mlops-events[unsloth]" (6 GB)',
    "torch": "pip install torch",
    "triton": "it comes with torch for CUDA on Linux; on Windows: pip install triton-windows",
    "bitsandbytes": "pip install bitsandbytes; models in 4 bits need it",
    "transformers": "pip install transformers",
}

_UNSLOTH_DOCS: Final = "unsloth.ai/docs, Unsloth requirements"
_UNSLOTH_PROJECT: Final = "github.com/unslothai/unsloth, pyproject.toml"
_BLACKWELL: Final = "github.com/unslothai/unsloth, blackwell/README.md"
_BITSANDBYTES: Final = "huggingface.co/docs/bitsandbytes, installation"
_NVIDIA: Final = "docs.nvidia.com/deploy/cuda-compatibility"


class VersionRule(msgspec.Struct, frozen=True):
    """Which versions of a package will do, and who says so."""

    package: str
    versions: str
    source: str


_VERSIONS: Final = (
    VersionRule("bitsandbytes", ">=0.45.5,!=0.46.0,!=0.48.0", _UNSLOTH_PROJECT),
    VersionRule("triton", ">=3.0.0", _UNSLOTH_PROJECT),
    VersionRule("torch", ">=2.4", _BITSANDBYTES),
)
_BLACKWELL_VERSIONS: Final = (VersionRule("triton", ">=3.3.1", _BLACKWELL),)

_DRIVERS: Final = {11: 450, 12: 525, 13: 580}
"""The oldest major version of the driver for programs of a major version of CUDA."""

_LEAST_CAPABILITY: Final = (7, 0)
_BFLOAT16_CAPABILITY: Final = (8, 0)
_BLACKWELL_CAPABILITY: Final = (10, 0)
_BLACKWELL_CUDA: Final = (12, 8)


class GPUFact(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, as far as unsloth is concerned; memory in bytes."""

    gpu: str
    name: str | None
    compute_capability: str | None
    memory_total: int | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on this machine.

    `versions` has all packages of `SHOWN`, None for one that is not there. `requirements` is what
    each says that it requires. `torch_cuda` is what torch was built for, `no_gpu` why no GPU was
    found.
    """

    python: str
    system: str
    versions: dict[str, str | None]
    requirements: dict[str, tuple[str, ...]]
    torch_cuda: str | None
    driver: str | None
    gpus: tuple[GPUFact, ...]
    no_gpu: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that unsloth needs and that is missing or wrong; a note is neither.

    `expected` is "" where it goes without saying, `source` is who says so.
    """

    level: Level
    about: str
    found: str
    expected: str
    source: str
    advice: str


def judge(facts: Facts) -> list[Finding]:
    """Return what is missing, what is wrong, and what is worth a note, in this order."""
    found = [*_packages(facts), *_gpus(facts), *_requirements(facts), *_cuda(facts)]
    return sorted(found, key=lambda one: ("missing", "wrong", "note").index(one.level))


def _packages(facts: Facts) -> Iterator[Finding]:
    for package, advice in _NEEDED.items():
        if facts.versions.get(package) is None and not (
            package == "triton" and facts.system == "Darwin"
        ):
            yield Finding(
                level="missing",
                about=package,
                found="not installed",
                expected="",
                source=_UNSLOTH_DOCS,
                advice=advice,
            )
    if facts.versions.get("xformers") is None:
        yield Finding(
            level="note",
            about="xformers",
            found="not installed",
            expected="",
            source=_UNSLOTH_DOCS,
            advice="nothing as long as it is fast enough; else pip install xformers",
        )


def _gpus(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        yield Finding(
            level="missing",
            about="GPU",
            found=facts.no_gpu or "none",
            expected=f"an NVIDIA GPU of compute capability {_dotted(_LEAST_CAPABILITY)} or more",
            source=_UNSLOTH_DOCS,
            advice="run it on the machine with the GPU; --backend transformers takes a CPU",
        )
    for gpu in facts.gpus:
        capability = _numbers(gpu.compute_capability)
        if capability and capability < _LEAST_CAPABILITY:
            yield Finding(
                level="wrong",
                about=f"GPU {gpu.gpu}",
                found=f"compute capability {gpu.compute_capability}",
                expected=f"{_dotted(_LEAST_CAPABILITY)} or more",
                source=_UNSLOTH_DOCS,
                advice="use a newer GPU; on this one it is slow if it works",
            )
        elif capability and capability < _BFLOAT16_CAPABILITY:
            yield Finding(
                level="note",
                about=f"GPU {gpu.gpu}",
                found=f"compute capability {gpu.compute_capability}",
                expected=f"{_dotted(_BFLOAT16_CAPABILITY)} or more for bfloat16",
                source=_UNSLOTH_DOCS,
                advice="nothing; unsloth uses float16 here",
            )


def _requirements(facts: Facts) -> Iterator[Finding]:
    """Compare versions by what the packages themselves require, and by our table."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.specifiers import SpecifierSet
        from packaging.utils import canonicalize_name
        from packaging.version import InvalidVersion, Version
    except ImportError:
        yield Finding(
            level="note",
            about="packaging",
            found="not installed",
            expected="",
            source="mlops-emit diagnose-unsloth",
            advice="pip install packaging, to have the versions compared",
        )
        return
    versions: Mapping[str, str | None] = {
        **{canonicalize_name(name): version for name, version in facts.versions.items()},
        "python": facts.python,
    }
    rules = [(rule.package, rule.versions, rule.source) for rule in _rules(facts)]
    for package, texts in facts.requirements.items():
        for text in texts:
            try:
                wanted = Requirement(text)
                if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                    continue
            except (InvalidRequirement, ValueError):
                continue
            source = f"{package} {facts.versions.get(package)}, its metadata"
            rules.append((canonicalize_name(wanted.name), str(wanted.specifier), source))
    for package, wanted_versions, source in rules:
        version = versions.get(package)
        try:
            good = version is None or SpecifierSet(wanted_versions).contains(
                Version(version), prereleases=True
            )
        except InvalidVersion:  # such as one that git made up
            continue
        if not good:
            yield Finding(
                level="wrong",
                about=package,
                found=str(version),
                expected=wanted_versions,
                source=source,
                advice=(
                    "use such a Python"
                    if package == "python"
                    else f"pip install '{package}{wanted_versions}', or upgrade unsloth"
                ),
            )


def _rules(facts: Facts) -> tuple[VersionRule, ...]:
    return _VERSIONS + (_BLACKWELL_VERSIONS if _has_blackwell(facts) else ())


def _has_blackwell(facts: Facts) -> bool:
    return any(_numbers(gpu.compute_capability) >= _BLACKWELL_CAPABILITY for gpu in facts.gpus)


def _cuda(facts: Facts) -> Iterator[Finding]:
    torch = facts.versions.get("torch")
    if torch is None:
        return
    cuda = _numbers(facts.torch_cuda)
    if not cuda:
        if facts.gpus:
            yield Finding(
                level="wrong",
                about="torch",
                found=f"{torch}, built without CUDA",
                expected="a build for CUDA",
                source=_NVIDIA,
                advice="install torch as pytorch.org says for this machine's CUDA",
            )
        return
    driver, least = _numbers(facts.driver), _DRIVERS.get(cuda[0])
    if driver and least is not None and driver[0] < least:
        yield Finding(
            level="wrong",
            about="driver",
            found=str(facts.driver),
            expected=f"{least} or newer, for torch with CUDA {facts.torch_cuda}",
            source=_NVIDIA,
            advice="update the driver, or install torch for an older CUDA",
        )
    if _has_blackwell(facts) and cuda < _BLACKWELL_CUDA:
        yield Finding(
            level="wrong",
            about="torch",
            found=f"{torch} for CUDA {facts.torch_cuda}",
            expected=f"a build for CUDA {_dotted(_BLACKWELL_CUDA)} or newer, for this GPU",
            source=_BLACKWELL,
            advice="install torch for a newer CUDA, as pytorch.org says",
        )


def _numbers(version: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or ""))[:2]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
