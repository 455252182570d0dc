"""What it costs to collect figures of the machine and its GPUs ten times a second.

python benchmarks/collectors.py [--seconds 60] [--gpus 1]

The processor time of a whole program that emits the series `system` and `gpu`, beside one that emits
the same number of events of its own. GPUs are the tests' stand-in for NVML, compiled for this: its
answers cost about a microsecond, so a real driver's come on top. With `--seconds 600` the memory
level means something.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
STAND_IN = ROOT / "tests" / "services" / "nvml" / "nvml.c"
RESULT = ROOT / "benchmarks" / "results" / "collectors.json"
EVERY_S = 0.1
WARM_S = 5.0
SHARE_LIMIT = 0.01
GROWTH_LIMIT = 1.05


class Nowhere:
    """A transport that keeps nothing."""

    async def open(self) -> None:
        """Begin."""

    async def send(self, record: object) -> None:
        """Forget it."""

    async def close(self, timeout_s: float) -> None:
        """End."""


def measure(seconds: float, *, collect: bool, gpus: int) -> dict[str, float]:
    """Emit for so long, and return what it took in this process."""
    from mlops_events.producers import Emitter, EmitterSettings
    from mlops_events.producers.collectors.series import Collectors

    # settings allow one sample a second at most, so the collectors are made here
    events = Emitter(run="benchmark", settings=EmitterSettings(), transport=Nowhere())
    collectors = Collectors(events, every_s=EVERY_S, system=collect, gpu=collect)
    collectors.start()
    fields = {f"field_{k}": float(k) for k in range(16)}
    process = psutil.Process()

    def run(until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(EVERY_S, left))
            if not collect:
                for _ in range(1 + gpus):
                    events.observe("floor", fields)

    run(time.monotonic() + WARM_S)
    cpu, memory = time.process_time(), process.memory_info().rss
    start = time.monotonic()
    run(start + seconds)
    cpu = time.process_time() - cpu
    end = process.memory_info().rss
    collectors.stop()
    events.close()
    return {
        "share": cpu / seconds,
        "rss_begin": memory,
        "rss_end": end,
        "events": events.stats().kinds["observation"].emitted,
    }


def child(seconds: float, *, collect: bool, gpus: int, folder: Path) -> dict[str, Any]:
    """Measure in a fresh interpreter, which finds the stand-in for NVML."""
    done = subprocess.run(
        [
            *(sys.executable, __file__, "--seconds", str(seconds), "--gpus", str(gpus)),
            *("--child", "collect" if collect else "floor"),
        ],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "NVML_STANDIN": f"count={gpus} mig=0",
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + 120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Measure both, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--child", choices=["collect", "floor"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        found = measure(given.seconds, collect=given.child == "collect", gpus=given.gpus)
        print(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(
            [
                os.environ.get("CC", "gcc"),
                "-O1",
                "-shared",
                "-fPIC",
                "-o",
                str(library),
                str(STAND_IN),
            ],
            check=True,
        )
        collected, floor = (
            child(given.seconds, collect=collect, gpus=given.gpus, folder=Path(folder))
            for collect in (True, False)
        )
    growth = collected["rss_end"] / collected["rss_begin"]
    result = {
        "seconds": given.seconds,
        "gpus": given.gpus,
        "events": collected["events"],
        "share_of_a_core": collected["share"],
        "floor_share_of_a_core": floor["share"],
        "rss_mib": collected["rss_end"] / (1 << 20),
        "rss_growth": growth,
    }
    print(
        f"{given.gpus} GPUs, {1 / EVERY_S:.0f} samples a second for {given.seconds:g} s: "
        f"{collected['share']:.2%} of a core (limit {SHARE_LIMIT:.0%}); as many plain events take "
        f"{floor['share']:.2%}; memory {result['rss_mib']:.1f} MiB, {growth:.3f} of the beginning"
    )
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if collected["share"] <= SHARE_LIMIT and growth <= GROWTH_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
