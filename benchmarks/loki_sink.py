"""What the loki sink pushes in a second, beside the same bodies pushed as they are.

python benchmarks/loki_sink.py [--lines 50000] [--rounds 5]

A line is a message with two fields, frames of 20, batches of 5,000. The floor posts the finished,
compressed bodies. What users have today is python-logging-loki's handler: a request for each line.
Measured by this process's own time; a server in another process takes everything.
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logging_loki
import requests

from mlops_events.schemas import FrameEncoder, Origin, decode_frame
from mlops_events.schemas.events import Log
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, FrameRecord
from mlops_events.sinks.loki import LokiSink
from mlops_events.sinks.loki_settings import LokiSettings

FRAME = 20
BATCH = 250  # frames
TODAY = 300  # lines through the handler
SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def batches(lines: int) -> list[Batch]:
    """Return batches as the delivery hands them over."""
    encoders = [
        FrameEncoder(
            emitter=bytes([uid]) * 16,
            kind="log",
            origin=Origin(run="llama-7b-42", role="miner", uid=uid, version="1.2.3", node="n1"),
        )
        for uid in range(16)
    ]
    now = time.time_ns()
    records = []
    for seq in range(lines // FRAME):
        encoder = encoders[seq % len(encoders)]
        events = [
            Log(
                ts=now + (seq * FRAME + k) * 1000,
                level="info",
                message="step finished",
                fields={"loss": 0.37, "peer": k},
                step=seq,
            )
            for k in range(FRAME)
        ]
        value = encoder.encode(
            [ENCODER.encode(event) for event in events],
            seq=seq,
            closed_ns=now,
            accepted=(seq + 1) * FRAME,
            dropped=0,
        )
        frame = decode_frame(value)
        records.append(FrameRecord(frame=frame, topic="t", partition=0, offset=seq))
    return [Batch(records[at : at + BATCH]) for at in range(0, len(records), BATCH)]


def timed(work: Callable[[], None]) -> float:
    """Return the seconds of this process's own time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip() if server.stdout is not None else ""
    url = f"http://127.0.0.1:{port}"
    try:
        result = measure(url, options.lines, options.rounds)
    finally:
        server.kill()
        server.wait()
    folder = Path(__file__).parent / "results"
    (folder / "loki_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


def measure(url: str, lines: int, rounds: int) -> dict[str, Any]:
    """Take the contenders in turns and return the best of each, in lines a second."""
    work = batches(lines)
    bodies = recorded_bodies(url, work)
    session = requests.Session()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}

    async def push() -> None:
        sink = LokiSink(LokiSettings(url=url))
        await sink.open()
        for batch in work:
            if await sink.write(batch):
                raise SystemExit("lines were refused")
        await sink.close()

    def floor() -> None:
        for body in bodies:
            session.post(f"{url}/loki/api/v1/push", data=body, headers=headers, timeout=10)

    handler = logging_loki.LokiHandler(url=f"{url}/loki/api/v1/push", tags={}, version="1")
    logger = logging.getLogger("today")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False

    def today() -> None:
        for k in range(TODAY):
            logger.info("step finished", extra={"tags": {"peer": str(k)}})

    least = {"sink": float("inf"), "floor": float("inf"), "handler": float("inf")}
    for _ in range(rounds):
        least["sink"] = min(least["sink"], timed(lambda: asyncio.run(push())) / lines)
        least["floor"] = min(least["floor"], timed(floor) / lines)
        least["handler"] = min(least["handler"], timed(today) / TODAY)
    handler.close()
    return {
        "lines_per_second": {name: round(1 / seconds) for name, seconds in least.items()},
        "of_floor": round(least["floor"] / least["sink"], 3),
        "of_handler": round(least["handler"] / least["sink"], 1),
        "python": sys.version.split()[0],
    }


def recorded_bodies(url: str, work: list[Batch]) -> list[bytes]:
    """Return the bodies that the sink pushes, in JSON compressed as the sink does."""
    from mlops_events.sinks.loki_entries import Renderer
    from mlops_events.sinks.loki_push import Client

    client = Client(url, ready_path="/ready")
    render = Renderer(clean=client.clean, uid_label="uid")
    bodies = []
    for batch in work:
        entries = [entry for record in batch.records for entry in render.entries(record)]
        bodies.append(client._body(entries))  # noqa: SLF001 - the floor sends the same bytes
    return bodies


if __name__ == "__main__":
    sys.exit(main())
