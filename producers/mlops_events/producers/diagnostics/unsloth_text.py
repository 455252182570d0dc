"""Draws what is installed for unsloth, and how fast a model generates, for people in a terminal."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mlops_events.producers.diagnostics.inference import Backend, InferenceBenchmark
from mlops_events.producers.diagnostics.unsloth import UnslothInstallation
from mlops_events.producers.diagnostics.unsloth_rules import SHOWN, Finding

__all__ = ["benchmark_view", "installation_view", "summary_view"]

_COLOURS = {"missing": "bold red", "wrong": "bold red", "note": "cyan"}
_GIB = 1 << 30


def installation_view(found: UnslothInstallation, *, backend: Backend) -> RenderableType:
    """Return the versions, then each finding that matters to a backend, with what to do."""
    grid = _grid()
    for name, value in _versions(found):
        grid.add_row(" ", name, value)
    told = [one for one in found.findings if backend == "unsloth" or one.level == "wrong"]
    return Group(
        Text("Installed", style="bold"), grid, *(line for one in told for line in _finding(one))
    )


def benchmark_view(found: InferenceBenchmark) -> RenderableType:
    """Return what was measured."""
    grid = _grid()
    for name, value in (
        ("model", found.model),
        ("with", f"{found.backend}, {found.dtype}"),
        ("on", found.device),
        ("loaded in", _seconds(found.load_s)),
        (
            "measured",
            f"{found.new_tokens} new tokens after {found.prompt_tokens} of a prompt, "
            f"{len(found.runs)} times after {found.warmup} to warm up",
        ),
        (
            "tokens/s",
            f"{found.tokens_per_second:.1f} (median; {found.slowest:.1f} to {found.fastest:.1f})",
        ),
        ("first token", "-" if found.first_token_s is None else _seconds(found.first_token_s)),
        ("peak memory", _peak(found)),
    ):
        grid.add_row(" ", name, Text(value))
    return Group(Text("Benchmark", style="bold"), grid)


def summary_view(
    installation: UnslothInstallation,
    benchmark: InferenceBenchmark | None,
    *,
    backend: Backend,
    wanted: bool,
) -> RenderableType:
    """Return what it comes to."""
    parts = [] if backend == "transformers" else [_readiness(installation)]
    if benchmark is not None:
        parts.append(
            Text(
                f"{benchmark.tokens_per_second:.1f} tokens/s with {benchmark.backend} "
                f"on {benchmark.device}"
            )
        )
    elif wanted:
        parts.append(Text("no benchmark"))
    return Text.assemble(("Summary: ", "bold"), Text("; ").join(parts))


def _readiness(installation: UnslothInstallation) -> Text:
    if installation.ready:
        return Text("unsloth is ready", style="green")
    parts = []
    if installation.missing:
        parts.append(f"missing: {', '.join(installation.missing)}")
    if installation.wrong:
        parts.append(f"does not fit: {', '.join(installation.wrong)}")
    return Text(f"unsloth is not ready ({'; '.join(parts)})", style="bold red")


def _versions(found: UnslothInstallation) -> Iterator[tuple[str, Text]]:
    facts = found.facts
    yield "python", Text(facts.python)
    for name in SHOWN:
        version = facts.versions.get(name)
        text = Text(version or "not installed", style="" if version else "dim")
        if name == "torch" and version and facts.torch_cuda:
            text.append(f" for CUDA {facts.torch_cuda}")
        yield name, text
    yield "driver", Text(facts.driver or "none", style="" if facts.driver else "dim")
    for gpu in facts.gpus:
        text = Text(gpu.name or "unknown")
        if gpu.compute_capability:
            text.append(f", compute capability {gpu.compute_capability}")
        if gpu.memory_total:
            text.append(f", {gpu.memory_total / _GIB:.0f} GiB")
        yield f"GPU {gpu.gpu}", text


def _finding(one: Finding) -> Iterator[RenderableType]:
    yield Text.assemble((one.level, _COLOURS[one.level]), " ", (one.about, "bold"), ": ", one.found)
    grid = _grid()
    if one.expected:
        grid.add_row(" ", "expected", Text(one.expected))
        grid.add_row(" ", "says", Text(one.source))
    grid.add_row(" ", "to do", Text(one.advice))
    yield grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    return grid


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _peak(found: InferenceBenchmark) -> str:
    if found.peak_memory is None:
        return "not known"
    where = "allocated on the GPU" if found.memory_of == "GPU" else "resident, of this process"
    return f"{found.peak_memory / _GIB:.2f} GiB ({where})"
