"""What the otlp sink exports in a second, beside the same bodies posted as they are.

python benchmarks/otlp_sink.py [--events 50000] [--rounds 5]

Half are log lines in frames of 20, half are final Stats in frames of 20; batches of 5,000. The floor
posts the finished, compressed bodies; `serialize` also makes them of finished protobuf messages,
which any exporter has to. Measured by this process's own time; a server in another process takes
everything.
"""

import argparse
import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from mlops_events.schemas import FrameEncoder, Origin, decode_frame
from mlops_events.schemas.events import Log, Stats
from mlops_events.schemas.frame import StatsFrame
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, FrameRecord, StatsRecord
from mlops_events.sinks.otlp import OTLPSettings, OTLPSink
from mlops_events.sinks.otlp_messages import logs_request, metrics_request

FRAME = 20
BATCH = 250  # frames
NODES = 16
SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def origin(uid: int) -> Origin:
    """Return who emits."""
    return Origin(run="llama-7b-42", role="miner", uid=uid, version="1.2.3", node=f"n{uid}")


def log_record(seq: int, encoder: FrameEncoder, now: int) -> FrameRecord:
    """Return a frame of lines with two fields."""
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
    return FrameRecord(frame=decode_frame(value), topic="t", partition=0, offset=seq)


def stats_record(seq: int, now: int) -> StatsRecord:
    """Return the windows of a node's fields."""
    stats = [
        Stats(
            kind="observation", name="training", field=f"field{k}",
            start=now + seq * 10_000_000_000, size=10_000_000_000, revision=10, final=True,
            count=10, mean=0.5, min=0.1, max=0.9, median=0.4, closed_by="watermark",
        )
        for k in range(FRAME)
    ]  # fmt: skip
    uid = seq % NODES
    frame = StatsFrame(emitter=bytes([uid]) * 16, origin=origin(uid), tags={}, stats=stats)
    return StatsRecord(frame=frame, topic="t", partition=0, offset=seq)


def batches(events: int) -> list[Batch]:
    """Return batches as the delivery hands them over, of lines and of Stats in turn."""
    now = time.time_ns()
    encoders = [
        FrameEncoder(emitter=bytes([uid]) * 16, kind="log", origin=origin(uid))
        for uid in range(NODES)
    ]
    found = []
    for at in range(0, events // FRAME, BATCH):
        seqs = range(at, at + BATCH)
        if at // BATCH % 2:
            found.append(Batch([stats_record(seq, now) for seq in seqs]))
        else:
            found.append(Batch([log_record(seq, encoders[seq % NODES], now) for seq in seqs]))
    return found


def messages(work: list[Batch]) -> list[tuple[str, Any]]:
    """Return the messages that the sink makes, and where they go."""
    found: list[tuple[str, Any]] = []
    for batch in work:
        logs: list[Any] = [(one, one.event) for one in batch if isinstance(one.event, Log)]
        stats: list[Any] = [(one, one.event) for one in batch if isinstance(one.event, Stats)]
        if logs:
            found.append(("v1/logs", logs_request(logs)))
        if stats:
            found.append(("v1/metrics", metrics_request(stats, now_ns=0)))
    return found


def timed(work: Callable[[], None]) -> float:
    """Return the seconds of this process's own time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(url: str, events: int, rounds: int) -> dict[str, Any]:
    """Take the contenders in turns and return the best of each, in events a second."""
    work = batches(events)
    ready = messages(work)
    bodies = [(path, gzip.compress(m.SerializeToString(), compresslevel=1)) for path, m in ready]
    session = requests.Session()
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}

    async def export() -> None:
        sink = OTLPSink(OTLPSettings(endpoint=url))
        await sink.open()
        for batch in work:
            if await sink.write(batch):
                raise SystemExit("events were refused")
        await sink.close()

    def post(path: str, body: bytes) -> None:
        session.post(f"{url}/{path}", data=body, headers=headers, timeout=10)

    def floor() -> None:
        for path, body in bodies:
            post(path, body)

    def serialize() -> None:
        for path, message in ready:
            post(path, gzip.compress(message.SerializeToString(), compresslevel=1))

    least = dict.fromkeys(("sink", "floor", "serialize"), float("inf"))
    for _ in range(rounds):
        least["sink"] = min(least["sink"], timed(lambda: asyncio.run(export())))
        least["floor"] = min(least["floor"], timed(floor))
        least["serialize"] = min(least["serialize"], timed(serialize))
    return {
        "events_per_second": {name: round(events / seconds) for name, seconds in least.items()},
        "of_floor": round(least["floor"] / least["sink"], 3),
        "of_serialize": round(least["serialize"] / least["sink"], 3),
        "python": sys.version.split()[0],
    }


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip() if server.stdout is not None else ""
    try:
        result = measure(f"http://127.0.0.1:{port}", options.events, options.rounds)
    finally:
        server.kill()
        server.wait()
    folder = Path(__file__).parent / "results"
    (folder / "otlp_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
