"""What `Emitter.observe` costs its caller, beside the floor: both dicts built and an empty call.

python benchmarks/observe.py [--rounds 300]

An event is 12 floats, 2 tags and a step. Batches of 500 calls of each are taken in turns, and what
they left in the buffer is taken away between them, as the worker would. The least time of a batch
counts: on a busy machine the others measure the neighbours. The median is printed beside it.
"full" is a full buffer, "off" an emitter that is off. "flood" emits as fast as it can beside the
worker, which then competes for the interpreter: no caller does that, but it shows the sum of both.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.testing import MemoryTransport

LIMIT = 2.5
DECLARED_LIMIT = 1.1
CALLS = 500

Observe = Callable[..., None]


def floor(
    name: str,
    fields: Mapping[str, Any],
    *,
    step: int | None = None,
    ts: int | None = None,
    tags: Mapping[str, Any] | None = None,
) -> None:
    """Take what `observe` takes, and do nothing."""


def batch_ns(observe: Observe, calls: int) -> float:
    """Return the nanoseconds of one call, of so many."""
    x = 0.37
    start = time.perf_counter_ns()
    for step in range(calls):
        observe(
            "training",
            {
                "loss": x,
                "lr": x,
                "grad_norm": x,
                "tokens_per_second": x,
                "cpu": x,
                "memory": x,
                "gpu": x,
                "peers": x,
                "sync": x,
                "compression": x,
                "perplexity": x,
                "samples": x,
            },
            step=step,
            tags={"phase": "train", "split": "a"},
        )
    return (time.perf_counter_ns() - start) / calls


class Idle(MemoryTransport):
    """Never connects, so that the worker is quiet while batches are timed."""

    async def open(self) -> None:
        import asyncio

        await asyncio.Event().wait()


def emitter(**settings: Any) -> Emitter:
    """Return an emitter whose worker does not disturb."""
    events = Emitter(
        settings=EmitterSettings(linger_s=60, max_linger_s=60, **settings),
        transport=Idle(),
        announce=False,
    )
    batch_ns(events.observe, 10)
    time.sleep(0.2)
    return events


def declared_ns(events: Emitter, calls: int) -> float:
    """Return the nanoseconds of one call of a declared series, of so many."""
    x = 0.37
    fields = [f"field_{k}" for k in range(12)]
    series = events.series("declared", *fields, tags={"phase": "train", "split": "a"})
    start = time.perf_counter_ns()
    for step in range(calls):
        series(x, x, x, x, x, x, x, x, x, x, x, x, step=step)
    return (time.perf_counter_ns() - start) / calls


def main() -> int:
    """Measure, print and write the figures; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    normal, full = emitter(), emitter(buffer_bytes=1 << 20)
    while not full.stats().dropped:
        batch_ns(full.observe, CALLS)
        time.sleep(0.01)
    off = Emitter(settings=EmitterSettings(disabled=True))
    buffer = normal._lanes["observation"].buffer  # noqa: SLF001 - plays the worker
    contenders: dict[str, Observe] = {
        "floor": floor,
        "observe": normal.observe,
        "full": full.observe,
        "off": off.observe,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, observe in contenders.items():
            gc.collect(0)
            times[name].append(batch_ns(observe, CALLS))
            buffer.take(CALLS)
            buffer.settle(0)
        times.setdefault("declared", []).append(declared_ns(normal, CALLS))
        buffer.take(CALLS)
        buffer.settle(0)
    flooded = Emitter(settings=EmitterSettings(), transport=MemoryTransport(), announce=False)
    flood = batch_ns(flooded.observe, 50_000)
    for events in (normal, full, flooded):
        events.close(0)
    least = {name: min(values) for name, values in times.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "least_ns": {name: round(value) for name, value in least.items()},
        "median_ns": {name: round(value) for name, value in median.items()},
        "flood_ns": round(flood),
        "ratio": round(least["observe"] / least["floor"], 2),
        "median_ratio": round(median["observe"] / median["floor"], 2),
        "limit": LIMIT,
        "declared_ratio": round(least["declared"] / least["floor"], 2),
        "declared_limit": DECLARED_LIMIT,
        "python": sys.version.split()[0],
    }
    folder = Path(__file__).parent / "results"
    (folder / "observe.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, value in least.items():
        ratio = value / least["floor"]
        print(f"{name:8} {value:6.0f} ns {ratio:5.2f}   median {median[name]:6.0f} ns")
    print(f"flood    {flood:6.0f} ns")
    print(f"observe / floor {result['ratio']}, target {LIMIT}")
    print(f"a declared series / floor {result['declared_ratio']}, target {DECLARED_LIMIT}")
    missed = least["observe"] / least["floor"] > LIMIT
    return 1 if missed or least["declared"] / least["floor"] > DECLARED_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
