"""Which packages are installed, at which versions and with which requirements, without importing one.

importlib.metadata takes 20 ms to import, so that is done where it is needed.
"""

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["requirements_of", "torch_cuda", "version_of"]

_CUDA = re.compile(r"""^cuda\b[^=\n]*=\s*["']([0-9.]+)["']""", re.MULTILINE)


def version_of(package: str) -> str | None:
    """Return the version of a package that is installed, else None."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, OSError, KeyError):
        return metadata.version(package) or None
    return None


def requirements_of(package: str) -> tuple[str, ...]:
    """Return what a package says that it requires, as it says it, Python included."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, OSError):
        found = metadata.distribution(package)
        told = found.metadata
        python = (f"python {told['Requires-Python']}",) if "Requires-Python" in told else ()
        return (*(found.requires or ()), *python)
    return ()


def torch_cuda() -> str | None:
    """Return the version of CUDA that torch was built for; None where it is not, or has no torch."""
    loaded: Any = getattr(sys.modules.get("torch"), "version", None)
    if loaded is not None:
        cuda = getattr(loaded, "cuda", None)
        return None if cuda is None else str(cuda)
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, OSError, ValueError):
        file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
        found = _CUDA.search(file.read_text(encoding="utf-8"))
        return found[1] if found else None
    return None
