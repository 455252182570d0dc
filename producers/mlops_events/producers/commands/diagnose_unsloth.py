"""The command that looks at an installation of unsloth and measures how fast a model generates."""

import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from mlops_events.producers import arguments
from mlops_events.producers.commands.options import (
    AsJson,
    Brokers,
    Emit,
    Role,
    RunId,
    Tags,
    Timeout,
    Uid,
    Version,
    complain,
    examples,
    publisher_of,
)
from mlops_events.producers.commands.root import app
from mlops_events.producers.commands.standard_output import output_to_stderr
from mlops_events.producers.diagnostics.inference import (
    DEFAULT_MODEL,
    DEFAULT_PROMPT,
    Backend,
    InferenceBenchmark,
    InferenceUnavailableError,
    run_inference_benchmark,
)
from mlops_events.producers.diagnostics.unsloth import (
    UnslothInstallation,
    check_unsloth_installation,
    unused_gpu,
)
from mlops_events.producers.workload import Event
from mlops_events.schemas.events import Log, Observation

__all__ = ["diagnose_unsloth"]

_BACKENDS: tuple[Backend, ...] = ("unsloth", "transformers")
_MISSING = 2
_TRANSFORMERS_NEEDS = ("torch", "transformers")


@app.command(
    epilog=examples(
        "mlops-emit diagnose-unsloth",
        "mlops-emit diagnose-unsloth --no-benchmark --json",
        "mlops-emit diagnose-unsloth --model unsloth/Llama-3.2-1B-bnb-4bit --runs 10",
        "mlops-emit diagnose-unsloth --backend transformers --model ./tiny-model --new-tokens 32",
        "mlops-emit diagnose-unsloth --emit --run demo --role miner --uid 12",
    )
)
def diagnose_unsloth(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A name on Hugging Face, or a folder.")
    ] = DEFAULT_MODEL,
    backend: Annotated[
        str, typer.Option(metavar="B", help="unsloth, or transformers, which runs on a CPU, too.")
    ] = "unsloth",
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="What the model goes on with.")
    ] = DEFAULT_PROMPT,
    new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens that each run generates.")
    ] = 128,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs that are timed.")] = 5,
    warmup: Annotated[int, typer.Option(metavar="N", min=0, help="Runs before them.")] = 1,
    load_in_4bit: Annotated[
        bool, typer.Option("--4bit/--16bit", help="Weights that unsloth makes of a model's.")
    ] = True,
    benchmark: Annotated[
        bool, typer.Option("--benchmark/--no-benchmark", help="Run the model, or only look.")
    ] = True,
    as_json: AsJson = False,
    emit: Emit = False,
    run: RunId = None,
    role: Role = None,
    uid: Uid = None,
    version: Version = None,
    tag: Tags = None,
    brokers: Brokers = None,
    timeout: Timeout = "10s",
) -> int:
    """Look at what is installed for unsloth, and measure how many tokens a second a model generates.

    The model is fetched from Hugging Face if it is not here yet; the default is about 4 GB.

    Exit codes: 0 all fits and the model ran, 1 something does not fit, the model cannot be run or the
    result was not published, 2 something that is needed is missing, such as a GPU, or wrong usage,
    130 Ctrl-C. With --backend transformers, only what that needs counts.
    """
    chosen: Backend | None = next((name for name in _BACKENDS if name == backend), None)
    if chosen is None:
        raise arguments.ArgumentError(f"no backend {backend!r}; there are: {', '.join(_BACKENDS)}")
    publisher = publisher_of(
        emit,
        run=run,
        role=role,
        uid=uid,
        version=version,
        tag=tag,
        brokers=brokers,
        timeout=timeout,
    )
    installation = check_unsloth_installation()
    if not as_json:
        _show_installation(installation, chosen)
    code, error = _judge(installation, chosen)
    found: InferenceBenchmark | None = None
    if benchmark and code != _MISSING:
        typer.echo(f"loading {model} with {chosen}; Ctrl-C ends it", err=True)
        try:
            with output_to_stderr():  # unsloth greets
                found = run_inference_benchmark(
                    model,
                    backend=chosen,
                    prompt=prompt,
                    new_tokens=new_tokens,
                    runs=runs,
                    warmup=warmup,
                    load_in_4bit=load_in_4bit,
                )
        except InferenceUnavailableError as reason:
            code, error = 1, str(reason)
    if found is not None and chosen == "unsloth":
        error = unused_gpu(installation, found)
        code = max(code, int(bool(error)))
    if as_json:
        typer.echo(
            msgspec.json.encode(
                {
                    "ready": installation.ready,
                    "installation": installation,
                    "benchmark": found,
                    "error": error,
                }
            )
        )
    else:
        _show_result(installation, found, backend=chosen, wanted=benchmark)
    complain(error)
    if publisher is not None:
        with publisher:
            published = complain(publisher.publish(_events(installation, found)))
            code = code or published
    return code


def _judge(installation: UnslothInstallation, backend: Backend) -> tuple[int, str]:
    """Return the exit code, so far, and what keeps the model from running."""
    if backend == "transformers":
        missing = [name for name in installation.missing if name in _TRANSFORMERS_NEEDS]
    else:
        missing = list(installation.missing)
    if missing:
        advice = [one.advice for one in installation.findings if one.about == missing[0]]
        return _MISSING, f"missing: {', '.join(missing)}; to begin with: {advice[0]}"
    if backend == "unsloth" and installation.wrong:
        return 1, ""
    return 0, ""


def _show_installation(installation: UnslothInstallation, backend: Backend) -> None:
    from rich.console import Console

    from mlops_events.producers.diagnostics.unsloth_text import installation_view

    Console().print(installation_view(installation, backend=backend))


def _show_result(
    installation: UnslothInstallation,
    found: InferenceBenchmark | None,
    *,
    backend: Backend,
    wanted: bool,
) -> None:
    from rich.console import Console

    from mlops_events.producers.diagnostics.unsloth_text import benchmark_view, summary_view

    console = Console()
    if found is not None:
        console.print(benchmark_view(found))
    if wanted or backend == "unsloth":
        console.print(summary_view(installation, found, backend=backend, wanted=wanted))


def _events(installation: UnslothInstallation, found: InferenceBenchmark | None) -> Iterator[Event]:
    now = time.time_ns()
    facts = installation.facts
    yield Observation(
        ts=now,
        name="unsloth_installation",
        fields={
            "ready": installation.ready,
            "missing": ",".join(installation.missing),
            "wrong": ",".join(installation.wrong),
            "gpus": len(facts.gpus),
        },
        tags={name: version for name, version in facts.versions.items() if version},
    )
    for one in installation.findings:
        if one.level != "note":
            yield Log(
                ts=now,
                level="warning",
                message="something that unsloth needs is missing or does not fit",
                fields={
                    "about": one.about,
                    "found": one.found,
                    "expected": one.expected,
                    "advice": one.advice,
                },
            )
    if found is not None:
        yield Observation(
            ts=now,
            name="inference_benchmark",
            fields={
                "tokens_per_second": found.tokens_per_second,
                "tokens_per_second_slowest": found.slowest,
                "tokens_per_second_fastest": found.fastest,
                "new_tokens": found.new_tokens,
                "runs": len(found.runs),
                "load_s": found.load_s,
                **({} if found.first_token_s is None else {"first_token_s": found.first_token_s}),
                **({} if found.peak_memory is None else {"peak_memory": found.peak_memory}),
            },
            tags={
                "model": found.model,
                "backend": found.backend,
                "device": found.device,
                "dtype": found.dtype,
            },
        )
