"""Which GPUs a process may use, by what CUDA_VISIBLE_DEVICES says."""

from collections.abc import Mapping, Sequence

from mlops_events.producers.nvml import GPU

__all__ = ["own", "visible"]


def visible(gpus: Sequence[GPU], environ: Mapping[str, str]) -> list[GPU]:
    """Return the GPUs that CUDA shows to a process, in its order.

    Where nothing is said these are all, and of one that is cut its instances. As CUDA does it, the list ends before the first entry that names none. Numbers are NVML's, which
    are CUDA's where all GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return [gpu for gpu in gpus if not gpu.mig]
    found: list[GPU] = []
    for entry in text.split(","):
        gpu = next((gpu for gpu in gpus if _named(gpu, entry.strip())), None)
        if gpu is None:
            break
        found.append(gpu)
    return found


def own(gpus: Sequence[GPU], environ: Mapping[str, str]) -> GPU | None:
    """Return the GPU that a process of a distributed program takes: that of its LOCAL_RANK."""
    seen = visible(gpus, environ)
    rank = environ.get("LOCAL_RANK", "")
    place = int(rank) if rank.isdigit() else 0
    if place < len(seen):
        return seen[place]
    return seen[0] if seen else None


def _named(gpu: GPU, entry: str) -> bool:
    if entry.isdigit():
        return gpu.parent is None and gpu.index == int(entry)
    return bool(entry) and gpu.uuid is not None and gpu.uuid.startswith(entry)
