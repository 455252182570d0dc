"""What the influxdb sink writes in a second, beside the same bytes posted as they are, and Points.

python benchmarks/influxdb_sink.py [--events 50000] [--rounds 3]

One event is a row of 8 floats, frames of 20, batches of 5,000, against a real InfluxDB 1.x on this
machine that tests/services/servers.sh builds and starts. The floor posts bodies that were joined
beforehand through the same client. The peer is what programs do without the sink: a Point for each
event, written by influxdb-client synchronously in batches of 5,000. With gzip, then without. Taken in
turns; the best of each, by the time of the process, so per core.
"""

import argparse
import asyncio
import gc
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write.point import Point
from influxdb_client.client.write_api import SYNCHRONOUS

from mlops_events.schemas import FrameEncoder, Origin, decode_frame
from mlops_events.schemas.frame import Row, Series
from mlops_events.schemas.secret import Secret
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import Batch, FrameRecord
from mlops_events.sinks.influxdb import InfluxDBSettings, InfluxDBSink
from mlops_events.sinks.influxdb_lines import Renderer
from mlops_events.sinks.influxdb_push import Client
from mlops_events.sinks.influxdb_types import FieldTypes

SERVERS = Path(__file__).parents[1] / "tests" / "services" / "servers.sh"
TOKEN = "admin:adminpw"  # noqa: S105 - of a server that is made for this run
EMITTERS = 16
FRAME = 20
BATCH = 250  # frames
FIELDS = tuple(f"field_{k}" for k in range(8))
START = 1_700_000_000_000_000_123


def frames(events: int) -> list[bytes]:
    """Return frames as they come from the streams."""
    chance = random.Random(7)
    origins = [Origin(run="llama-7b-42", role="miner", uid=uid) for uid in range(EMITTERS)]
    encoders = [
        FrameEncoder(emitter=chance.randbytes(16), kind="observation", origin=origin)
        for origin in origins
    ]
    made = []
    for seq in range(events // (EMITTERS * FRAME)):
        for encoder in encoders:
            rows = [
                Row(0, START + (seq * FRAME + k) * 10**8, seq, [chance.random() for _ in FIELDS])
                for k in range(FRAME)
            ]
            made.append(
                encoder.encode(
                    [ENCODER.encode(row) for row in rows],
                    seq=seq,
                    closed_ns=seq,
                    accepted=(seq + 1) * FRAME,
                    dropped=0,
                    series=[Series(0, "training", list(FIELDS), {"device": "cuda:0"})],
                )
            )
    return made


def batches(values: Sequence[bytes]) -> Iterator[Batch]:
    """Yield batches as deliver cuts them; decoding is deliver's, and not measured."""
    for at in range(0, len(values), BATCH):
        yield Batch(
            [
                FrameRecord(frame=decode_frame(value), topic="t", partition=0, offset=at)
                for value in values[at : at + BATCH]
            ]
        )


def refuse(*refusal: object) -> None:
    """No event of this benchmark may be refused."""
    raise AssertionError(refusal)


def bodies(values: Sequence[bytes]) -> list[bytes]:
    """Return what the sink posts."""
    renderer = Renderer(FieldTypes(), tags=("device", "gpu"), share=1.0, refuse=refuse)
    return [
        "\n".join(line[0] for record in batch.records for line in renderer.lines(record)).encode()
        for batch in batches(values)
    ]


async def write(settings: InfluxDBSettings, values: Sequence[bytes]) -> float:
    """Write all through the sink; return the seconds of `write`."""
    sink = InfluxDBSink(settings)
    await sink.open()
    spent = 0.0
    for batch in batches(values):
        start = time.process_time()
        refused = await sink.write(batch)
        spent += time.process_time() - start
        if refused:
            refuse(refused)
    await sink.close()
    return spent


def post(settings: InfluxDBSettings, made: Sequence[bytes]) -> float:
    """Post finished bodies through the same client; return the seconds."""
    client = Client(settings)
    start = time.process_time()
    for body in made:
        client.write(body)
    spent = time.process_time() - start
    client.close()
    return spent


def points(settings: InfluxDBSettings, values: Sequence[bytes]) -> float:
    """Write a Point for each event with influxdb-client; return the seconds."""
    make: Any = InfluxDBClient
    kind: Any = Point
    client = make(settings.url, TOKEN, org="-", enable_gzip=settings.gzip)
    api = client.write_api(write_options=SYNCHRONOUS)
    spent = 0.0
    for batch in batches(values):
        events: list[tuple[Origin, Any]] = [(one.origin, one.event) for one in batch]
        start = time.process_time()
        record = []
        for origin, event in events:
            point = kind(event.name).time(event.ts)
            point.tag("run", origin.run).tag("role", origin.role).tag("uid", str(origin.uid))
            point.tag("device", event.tags["device"]).field("step", float(event.step))
            for name, value in event.fields.items():
                point.field(name, value)
            record.append(point)
        api.write("bench", "-", record)
        spent += time.process_time() - start
    client.close()
    return spent


def servers_sh(*arguments: object) -> None:
    """Run servers.sh."""
    subprocess.run(["bash", SERVERS, *map(str, arguments)], check=True)  # noqa: S607


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measure(url: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return events a second, with and without gzip."""
    values = frames(arguments.events)
    made = bodies(values)
    events = len(values) * FRAME
    result: dict[str, dict[str, float]] = {}
    for name, gzip in (("gzip", True), ("plain", False)):
        settings = InfluxDBSettings(url=url, token=Secret(TOKEN), bucket="bench", gzip=gzip)
        sink_s = floor_s = points_s = float("inf")
        for _ in range(arguments.rounds):
            floor_s = min(floor_s, post(settings, made))
            sink_s = min(sink_s, asyncio.run(write(settings, values)))
            points_s = min(points_s, points(settings, values))
        result[name] = {
            "sink_per_s": round(events / sink_s),
            "floor_per_s": round(events / floor_s),
            "points_per_s": round(events / points_s),
            "floor_over_sink": round(sink_s / floor_s, 2),
            "sink_over_points": round(points_s / sink_s, 2),
        }
    return result


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as the sink's process does
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        servers_sh("start", "influxdb", folder, port)
        try:
            url = f"http://127.0.0.1:{port}"
            make: Any = InfluxDBClient
            client = make(url, TOKEN, org="-")
            client.api_client.request(
                "POST",
                f"{url}/query",
                query_params=[("q", "CREATE DATABASE bench")],
                headers={"Authorization": f"Token {TOKEN}"},
            )
            client.close()
            measured = measure(url, arguments)
        finally:
            servers_sh("stop", folder)
    result = {
        **measured,
        "events": arguments.events,
        "python": sys.version.split()[0],
        "influxdb_client": version("influxdb-client"),
    }
    results = Path(__file__).parent / "results"
    (results / "influxdb_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, found in measured.items():
        print(f"{name}: floor {found['floor_per_s']:9,.0f} events/s, the same bytes posted")
        print(f"{name}: sink  {found['sink_per_s']:9,.0f} events/s")
        print(f"{name}: Point {found['points_per_s']:9,.0f} events/s; the sink does "
              f"{found['sink_over_points']} times as many")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
