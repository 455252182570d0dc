"""What the wandb sink writes in a second, beside wandb.log alone; and what a training loop pays.

python benchmarks/wandb_sink.py [--rows 20000] [--runs 1 50]

Rows hold 12 floats. The sink writes batches of 5,000 and waits until the backend has confirmed
each; the floor logs the same rows with `run.log` and ends its run, which waits for the same. Both
run beside a stand-in for the backend, a process of its own on the same machine. The loop's cost is
that of the call alone: `run.log` beside `Emitter.observe`.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")

import wandb

from mlops_events.producers import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas import FrameEncoder, Origin, decode_frame
from mlops_events.schemas.frame import Row, Series
from mlops_events.schemas.secret import Secret
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, FrameRecord
from mlops_events.sinks.wandb import WandbSettings, WandbSink

BACKEND = Path(__file__).parents[1] / "tests" / "sinks" / "wandb" / "backend.py"
FIELDS = [f"field_{k}" for k in range(12)]
FRAME = 100
BATCH = 5_000
KEY = "0" * 40


def records(rows: int, runs: int) -> list[FrameRecord]:
    """Return the frames of so many runs, in turns, as they come from the streams."""
    chance = random.Random(7)
    found: list[FrameRecord] = []
    for seq in range(rows // (runs * FRAME)):
        for uid in range(runs):
            origin = Origin(run=f"bench-{runs}", role="miner", uid=uid, version="1.2.3")
            encoder = FrameEncoder(emitter=bytes([uid] * 16), kind="observation", origin=origin)
            events = [
                Row(0, time.time_ns(), seq * FRAME + k, [chance.random() for _ in FIELDS])
                for k in range(FRAME)
            ]
            value = encoder.encode(
                [ENCODER.encode(event) for event in events],
                seq=seq,
                closed_ns=seq,
                accepted=(seq + 1) * FRAME,
                dropped=0,
                series=[Series(0, "training", FIELDS)],
            )
            frame = decode_frame(value)
            found.append(FrameRecord(frame=frame, topic="t", partition=0, offset=len(found)))
    return found


async def through_the_sink(settings: WandbSettings, some: list[FrameRecord], runs: int) -> float:
    """Write all; return the seconds until the last batch was confirmed."""
    sink = WandbSink(settings)
    await sink.open()
    await sink.write(Batch(some[:runs]))  # all runs are opened, and wandb's process started
    start, size = time.perf_counter(), BATCH // FRAME
    for at in range(runs, len(some), size):
        if refused := await sink.write(Batch(some[at : at + size])):
            raise SystemExit(f"refused: {refused[0]}")
    spent = time.perf_counter() - start
    await sink.close()
    return spent


def alone(settings: WandbSettings, rows: list[dict[str, float]], folder: str) -> dict[str, float]:
    """Log the same rows as a training program does; return seconds of the calls and of all."""
    run: Any = wandb.init(
        project="p",
        id="alone",
        settings=wandb.Settings(
            base_url=settings.base_url,
            api_key=KEY,
            root_dir=folder,
            console="off",
            x_disable_stats=True,
            x_disable_machine_info=True,
        ),
    )
    start = time.perf_counter()
    for row in rows:
        run.log(row)
    logged = time.perf_counter() - start
    run.finish()
    return {"calls_s": logged, "all_s": time.perf_counter() - start}


def observed(rows: list[dict[str, float]]) -> float:
    """Observe the same rows; return the seconds of the calls."""
    settings = EmitterSettings(run_id="bench", buffer_bytes=1 << 30)
    with Emitter(transport=MemoryTransport(), settings=settings) as emitter:
        start = time.perf_counter()
        for step, row in enumerate(rows):
            emitter.observe("training", row, step=step)
        return time.perf_counter() - start


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 50])
    arguments = parser.parse_args()
    chance = random.Random(7)
    rows = [{f: chance.random() for f in FIELDS} for _ in range(arguments.rows)]
    backend = subprocess.Popen([sys.executable, str(BACKEND)], stdout=subprocess.PIPE, text=True)
    if backend.stdout is None:
        raise SystemExit("the backend says no port")
    result: dict[str, Any] = {"rows": arguments.rows, "wandb": wandb.__version__}
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = WandbSettings(
                base_url=f"http://127.0.0.1:{int(backend.stdout.readline())}",
                api_key=Secret(KEY),
                folder=Path(folder),
            )
            floor = alone(settings, rows, folder)
            observe_s = observed(rows)
            wandb.teardown()
            for runs in arguments.runs:
                some = records(arguments.rows, runs)
                spent = asyncio.run(through_the_sink(settings, some, runs))
                result[f"sink_per_s_{runs}_runs"] = round(FRAME * (len(some) - runs) / spent)
    finally:
        backend.kill()
        backend.wait()
    result |= {
        "wandb_log_per_s": round(len(rows) / floor["all_s"]),
        "log_call_us": round(floor["calls_s"] / len(rows) * 1e6, 1),
        "observe_call_us": round(observe_s / len(rows) * 1e6, 1),
        "python": sys.version.split()[0],
    }
    results = Path(__file__).parent / "results"
    (results / "wandb_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"run.log and finish  {result['wandb_log_per_s']:8,} rows/s")
    for runs in arguments.runs:
        print(f"sink, {runs:3} runs      {result[f'sink_per_s_{runs}_runs']:8,} rows/s, confirmed")
    print(
        f"the loop pays {result['log_call_us']} us for run.log, "
        f"{result['observe_call_us']} us for observe"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
