"""Fixtures of the diagnostics' tests.

packages          what a machine that is ready for unsloth has: versions and requirements by name
site              a folder that this process looks for packages in before all others
install_packages  install_packages(packages) writes what pip writes about them into `site`, with
                  modules that raise when they are imported
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Packages = dict[str, tuple[str, tuple[str, ...]]]

PACKAGES: Packages = {
    "unsloth": ("2026.10.9", ("torch<2.15,>=2.4.0", "bitsandbytes>=0.45.5")),
    "unsloth_zoo": ("2026.10.6", ()),
    "torch": ("2.14.1", ('triton~=3.8.0; platform_system == "Linux"',)),
    "triton": ("3.8.0", ()),
    "bitsandbytes": ("0.50.2", ()),
    "xformers": ("0.0.35", ()),
    "transformers": ("5.17.0", ()),
}


def install(folder: Path, packages: Packages) -> None:
    """Write what pip writes about packages, and a module that may not be imported."""
    for name, (version, requirements) in packages.items():
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", "Requires-Python: >=3.10"]
        lines += [f"Requires-Dist: {text}" for text in requirements]
        (about / "METADATA").write_text("Metadata-Version: 2.4\n" + "\n".join(lines) + "\n\n")
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('it was imported')")
    if "torch" in packages:
        (folder / "torch" / "version.py").write_text(
            "from typing import Optional\n__version__ = '2.14.1+cu130'\n"
            "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are imported from before all others."""
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


@pytest.fixture
def packages() -> Packages:
    """What a machine has that is ready."""
    return dict(PACKAGES)


@pytest.fixture
def install_packages(site: Path) -> Callable[[Packages], None]:
    """Write what pip writes."""

    def install_packages(packages: Packages) -> None:
        install(site, packages)

    return install_packages
