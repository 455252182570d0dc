"""Whether versions, driver and GPU suit unsloth: facts in, findings out."""

import msgspec
import pytest

from mlops_events.producers.diagnostics.unsloth_rules import (
    SHOWN,
    Facts,
    Finding,
    GPUFact,
    judge,
)

H200 = GPUFact(gpu="0", name="NVIDIA H200", compute_capability="9.0", memory_total=141 << 30)
GOOD = Facts(
    python="3.12.4",
    system="Linux",
    versions={
        "unsloth": "2026.10.9",
        "unsloth_zoo": "2026.10.6",
        "torch": "2.14.1",
        "triton": "3.8.0",
        "bitsandbytes": "0.50.2",
        "xformers": "0.0.35",
        "transformers": "5.17.0",
    },
    requirements={
        "unsloth": ("torch<2.15,>=2.4.0", "transformers<=5.17.0", "python <3.15,>=3.9"),
        "torch": ('triton~=3.8.0; platform_system == "Linux"',),
    },
    torch_cuda="13.0",
    driver="580.65.06",
    gpus=(H200,),
)


def changed(**changes: object) -> list[Finding]:
    """What is found where one thing is not as it should be."""
    return judge(msgspec.structs.replace(GOOD, **changes))


def test_nothing_is_found_where_all_fits() -> None:
    """No false alarm."""
    assert judge(GOOD) == []


@pytest.mark.parametrize("package", [name for name in SHOWN if name != "unsloth_zoo"])
def test_a_package_that_is_not_there_is_named(package: str) -> None:
    """With how to get it; only xformers can be done without."""
    found = changed(versions={**GOOD.versions, package: None})

    assert [(one.about, one.found) for one in found] == [(package, "not installed")]
    assert found[0].level == ("note" if package == "xformers" else "missing")
    assert found[0].advice


def test_a_mac_has_no_triton() -> None:
    """And cannot be told to install it."""
    found = changed(system="Darwin", versions={**GOOD.versions, "triton": None})

    assert found == []


@pytest.mark.parametrize(
    ("package", "version", "expected", "source"),
    [
        ("torch", "2.15.0", "<2.15,>=2.4.0", "unsloth 2026.10.9, its metadata"),
        ("transformers", "5.24.0", "<=5.17.0", "unsloth 2026.10.9, its metadata"),
        ("triton", "3.9.1", "~=3.8.0", "torch 2.14.1, its metadata"),
        ("bitsandbytes", "0.48.0", "!=0.46.0,!=0.48.0,>=0.45.5", "github.com/unslothai/unsloth"),
        ("bitsandbytes", "0.44.1", "!=0.46.0,!=0.48.0,>=0.45.5", "github.com/unslothai/unsloth"),
    ],
)
def test_a_version_that_does_not_fit_is_told_with_who_says_so(
    package: str, version: str, expected: str, source: str
) -> None:
    """By what the packages themselves require, and by what their projects write."""
    found = changed(versions={**GOOD.versions, package: version})

    assert [(one.level, one.about, one.found) for one in found] == [("wrong", package, version)]
    assert set(found[0].expected.split(",")) == set(expected.split(","))
    assert found[0].source.startswith(source)


def test_versions_with_a_build_and_before_a_release_are_understood() -> None:
    """As the wheels of pytorch.org have them; what is no version is passed over."""
    for version in ("2.14.1+cu130", "2.14.0.dev20260901", "git"):
        assert changed(versions={**GOOD.versions, "torch": version}) == []


def test_requirements_of_other_systems_and_extras_do_not_count() -> None:
    """Nor those that cannot be read."""
    found = changed(
        requirements={
            "unsloth": (
                'torch<2; sys_platform == "none"',
                'torch<2; extra == "old"',
                "torch @ nonsense !!",
            )
        }
    )

    assert found == []


def test_an_old_python_is_told() -> None:
    """It is a requirement like the others."""
    found = changed(python="3.15.0")

    assert [(one.about, one.found) for one in found] == [("python", "3.15.0")]


def test_without_a_gpu_the_reason_is_told() -> None:
    """As NVML has it."""
    found = changed(gpus=(), driver=None, no_gpu="no NVIDIA driver is installed")

    assert [(one.level, one.about, one.found) for one in found] == [
        ("missing", "GPU", "no NVIDIA driver is installed")
    ]


@pytest.mark.parametrize(
    ("capability", "levels"), [("6.1", ["wrong"]), ("7.5", ["note"]), ("8.0", []), (None, [])]
)
def test_old_gpus_are_told(capability: str | None, levels: list[str]) -> None:
    """7.0 is the least, and 8.0 has bfloat16."""
    gpu = msgspec.structs.replace(H200, compute_capability=capability)

    assert [one.level for one in changed(gpus=(gpu,))] == levels


@pytest.mark.parametrize(
    ("cuda", "driver", "good"),
    [
        ("13.0", "580.65.06", True),
        ("13.0", "570.86.15", False),
        ("12.8", "570.86.15", True),
        ("12.8", "525.60.13", True),
        ("12.8", "470.82.01", False),
        ("11.8", "450.80.02", True),
        ("14.0", "400.1", True),
    ],
)
def test_the_driver_must_serve_torchs_cuda(cuda: str, driver: str, good: bool) -> None:
    """By NVIDIA's table; what that does not have is not judged."""
    found = changed(torch_cuda=cuda, driver=driver)

    assert [one.about for one in found] == ([] if good else ["driver"])


def test_torch_without_cuda_is_told_where_there_is_a_gpu() -> None:
    """On a CPU it is as it should be."""
    assert [(one.level, one.about) for one in changed(torch_cuda=None)] == [("wrong", "torch")]
    assert [one.about for one in changed(torch_cuda=None, gpus=())] == ["GPU"]


def test_blackwell_needs_newer_versions() -> None:
    """CUDA 12.8 and triton 3.3.1."""
    gpu = msgspec.structs.replace(H200, compute_capability="12.0")
    found = judge(
        msgspec.structs.replace(
            GOOD,
            gpus=(gpu,),
            torch_cuda="12.6",
            versions={**GOOD.versions, "triton": "3.2.0"},
            requirements={},
        )
    )

    assert sorted((one.about, one.source) for one in found) == [
        ("torch", "github.com/unslothai/unsloth, blackwell/README.md"),
        ("triton", "github.com/unslothai/unsloth, blackwell/README.md"),
    ]


def test_what_is_missing_stands_before_what_is_wrong() -> None:
    """And notes last."""
    versions = {**GOOD.versions, "unsloth": None, "xformers": None, "bitsandbytes": "0.46.0"}

    assert [one.level for one in changed(versions=versions)] == ["missing", "wrong", "note"]
