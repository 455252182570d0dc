"""The doctor's checks of the node itself: settings, origin, packages, spool, GPUs, torch."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from mlops_events.producers.diagnostics.findings import Finding
from mlops_events.producers.diagnostics.installed import torch_cuda, version_of
from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.settings import variable
from mlops_events.schemas.sources import Setting

__all__ = ["gpus", "origin", "packages", "settings_in_force", "spool", "torch"]

_PACKAGES: Final = ("mlops-events", "aiokafka", "cramjam", "msgspec", "psutil")
_FOREIGN: Final = ("INFLUXDB_", "LOKI_", "WANDB_")
_ORIGIN: Final = ("run_id", "role", "uid", "version")
_SPARE_BYTES: Final = 256 << 20


def settings_in_force(settings: Iterable[Setting], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with the settings, and what is set for nothing."""
    found = list(settings)
    problems = [one for one in found if one.problem]
    for one in problems:
        ignored = one.source == "unknown"
        yield Finding(
            check="settings",
            status="warning" if ignored else "error",
            found=one.problem,
            cure="unset it, or spell it as in docs/configuration.md"
            if ignored
            else "mend it; until then an emitter does nothing but warn",
        )
    given = sorted({one.place for one in found if one.source == "environment"})
    if not problems:
        yield Finding(
            check="settings",
            status="ok",
            found=", ".join(given) if given else "no variable is set; all is as by default",
        )
    foreign = sorted(name for name in environ if name.startswith(_FOREIGN) and environ[name])
    if foreign:
        yield Finding(
            check="settings",
            status="warning",
            found=f"{', '.join(foreign)}: nothing on a training node reads these",
            cure="set them where the sink services run, and take them away here",
        )


def origin(settings: EmitterSettings) -> Finding:
    """Say who emits, and what of it is missing."""
    if settings.disabled:
        name = variable("", "disabled")
        return Finding(
            check="origin", status="warning", found=f"{name} is set: nothing is emitted",
            cure=f"unset {name}",
        )  # fmt: skip
    known = {name: getattr(settings, name) for name in _ORIGIN}
    missing = [name for name, value in known.items() if value in (None, "")]
    told = ", ".join(
        f"{name.removesuffix('_id')} {value}"
        for name, value in known.items()
        if name not in missing
    )
    if missing:
        words = ", ".join(name.removesuffix("_id") for name in missing)
        names = " ".join(variable("", name) for name in missing)
        return Finding(
            check="origin",
            status="warning",
            found=f"{told}; without {words}" if told else f"without {words}",
            cure=f"set {names}, unless the program gives them to Emitter",
        )
    return Finding(check="origin", status="ok", found=told)


def packages() -> Finding:
    """Say which versions are installed."""
    versions = {name: version_of(name) for name in _PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    python = f"Python {sys.version.split()[0]}"
    if missing:
        return Finding(
            check="packages",
            status="error",
            found=f"{python}; not installed: {', '.join(missing)}",
            cure="pip install mlops-events, into the environment of the training program",
        )
    return Finding(check="packages", status="ok", found=f"{python}, {told}")


def spool(settings: EmitterSettings) -> Finding:
    """Say whether frames can be kept on the disk, and how much waits there."""
    name = variable("", "spool_dir")
    if not settings.spool_dir:
        return Finding(
            check="spool",
            status="skipped",
            found="no folder is set: what the broker has not taken dies with the process",
            cure=f"set {name} to a folder on a local disk",
        )
    folder = Path(settings.spool_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
        free = shutil.disk_usage(folder).free
        waiting = [path.stat().st_size for path in folder.glob("*/*.seg")]
    except OSError as error:
        return Finding(
            check="spool",
            status="error",
            found=f"{folder} cannot be written: {error.strerror or error}",
            cure=f"make it writable for this user, or set {name} to another folder",
        )
    told = f"{folder}: {_mib(sum(waiting))} wait in {len(waiting)} files, {_mib(free)} free"
    if free < settings.spool_bytes + _SPARE_BYTES:
        return Finding(
            check="spool",
            status="warning",
            found=f"{told}, less than the {_mib(settings.spool_bytes)} that may be needed",
            cure=f"make room, or set {variable('', 'spool_bytes')} lower",
        )
    return Finding(check="spool", status="ok", found=told)


def gpus() -> Finding:
    """Say which GPUs NVML tells of."""
    from mlops_events.producers.nvml import NVML, NVMLUnavailableError

    try:
        nvml = NVML()
        found = nvml.read()
        nvml.close()
    except NVMLUnavailableError as error:
        return Finding(
            check="gpu",
            status="skipped",
            found=f"no GPU can be read: {error}",
            cure='if this node has one: install its driver, and pip install "mlops-events[gpu]"',
        )
    lost = [gpu.place for gpu in found if gpu.lost]
    if lost:
        return Finding(
            check="gpu",
            status="error",
            found=f"GPU {', '.join(lost)} has fallen off the bus",
            cure="restart the machine; look for Xid lines in the kernel's log",
        )
    names = ", ".join(f"{gpu.place} {gpu.name or 'unknown'}" for gpu in found) or "none"
    return Finding(check="gpu", status="ok", found=f"NVML finds {names}")


def torch(gpu: Finding) -> Finding:
    """Say which torch is installed, and whether it can use the GPUs."""
    version = version_of("torch")
    if version is None:
        return Finding(check="torch", status="skipped", found="torch is not installed here")
    cuda = torch_cuda()
    if cuda is None and gpu.status == "ok":
        return Finding(
            check="torch",
            status="warning",
            found=f"torch {version} was built without CUDA, though there is a GPU",
            cure="install a build of torch with CUDA",
        )
    return Finding(
        check="torch",
        status="ok",
        found=f"torch {version}, built " + (f"for CUDA {cuda}" if cuda else "without CUDA"),
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
