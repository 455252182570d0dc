"""What the sqlite sink writes in a second, beside the same rows by `executemany` alone.

python benchmarks/sqlite_sink.py [--events 100000] [--rounds 5]

One event is a row of 12 floats and a series tag, frames of 20, batches of 5,000. The floor writes
the finished rows into the same table with the same index and settings. Taken in turns; the best of
each, by the time of the process.
"""

import argparse
import asyncio
import gc
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlops_events.schemas import FrameEncoder, Origin, decode_frame
from mlops_events.schemas.frame import Row, Series
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, FrameRecord
from mlops_events.sinks.sqlite import SQLiteSettings, SQLiteSink
from mlops_events.sinks.sqlite_schema import connect_writer

TARGET = 100_000
EMITTERS = 16
FRAME = 20
BATCH = 250  # frames
SERIES = [
    Series(k, name, [f"{name}_{f}" for f in range(12)], {"phase": "train"})
    for k, name in enumerate(("training", "system"))
]


def frames(events: int) -> list[bytes]:
    """Return frames as they come from the streams."""
    chance = random.Random(7)
    encoders = [
        FrameEncoder(
            emitter=chance.randbytes(16),
            kind="observation",
            origin=Origin(run="llama-7b-42", role="miner", uid=uid, version="1.2.3"),
        )
        for uid in range(EMITTERS)
    ]
    made = []
    for seq in range(events // (EMITTERS * FRAME)):
        for encoder in encoders:
            rows = [
                Row(k % 2, (seq * FRAME + k) * 10**8, seq, [chance.random() for _ in range(12)])
                for k in range(FRAME)
            ]
            made.append(
                encoder.encode(
                    [ENCODER.encode(row) for row in rows],
                    seq=seq,
                    closed_ns=seq,
                    accepted=(seq + 1) * FRAME,
                    dropped=0,
                    series=SERIES,
                )
            )
    return made


def batches(values: list[bytes]) -> Iterator[Batch]:
    """Yield batches as deliver cuts them; decoding is deliver's, and not measured."""
    for at in range(0, len(values), BATCH):
        yield Batch(
            [
                FrameRecord(frame=decode_frame(value), topic="t", partition=0, offset=at)
                for value in values[at : at + BATCH]
            ]
        )


async def write(path: Path, values: list[bytes]) -> float:
    """Write all through the sink; return the seconds of `write`."""
    sink = SQLiteSink(SQLiteSettings(path=path))
    await sink.open()
    spent = 0.0
    for batch in batches(values):
        start = time.process_time()
        await sink.write(batch)
        spent += time.process_time() - start
    await sink.close()
    return spent


def insert(path: Path, rows: list[tuple[Any, ...]]) -> float:
    """Write the finished rows; return the seconds."""
    db = connect_writer(path)
    size, start = BATCH * FRAME, time.process_time()
    for at in range(0, len(rows), size):
        db.execute("BEGIN")
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", rows[at : at + size])
        db.execute("COMMIT")
    spent = time.process_time() - start
    db.close()
    return spent


def fresh(measure: Callable[[Path], float]) -> float:
    """Measure with a file that is not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder) / "events.db")


def main() -> int:
    """Measure, print and write the figures; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as the sink's process does
    values = frames(arguments.events)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.db"
        asyncio.run(write(path, values))
        with sqlite3.connect(path) as db:
            rows = db.execute("SELECT * FROM event ORDER BY id").fetchall()
        db.close()
        file_bytes = path.stat().st_size
    sink_s = floor_s = float("inf")
    for _ in range(arguments.rounds):
        floor_s = min(floor_s, fresh(lambda path: insert(path, rows)))
        sink_s = min(sink_s, fresh(lambda path: asyncio.run(write(path, values))))
    result = {
        "events": len(rows),
        "sink_per_s": round(len(rows) / sink_s),
        "floor_per_s": round(len(rows) / floor_s),
        "ratio": round(floor_s / sink_s, 2),
        "bytes_per_event": round(file_bytes / len(rows)),
        "target_per_s": TARGET,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
    }
    results = Path(__file__).parent / "results"
    (results / "sqlite_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"executemany alone {result['floor_per_s']:9,} events/s")
    print(f"sqlite sink       {result['sink_per_s']:9,} events/s, target {TARGET:,}")
    print(f"ratio {result['ratio']}; {result['bytes_per_event']} bytes an event")
    return 1 if sink_s > len(rows) / TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
