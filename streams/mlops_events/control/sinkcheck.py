"""`sinks check`: whether a sink's destination takes events, and what is wrong if it does not."""

import asyncio
import os
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

import msgspec

from mlops_events.schemas.events import EventId, Log, Origin, RawKind
from mlops_events.schemas.frame import FrameEncoder, Free, decode_frame
from mlops_events.schemas.values import ENCODER
from mlops_events.sinks.base import (
    Batch,
    FrameRecord,
    ReadsBack,
    Sink,
    SinkBroken,
    SinkError,
)

__all__ = ["PROBE_RUN", "Report", "Step", "check_sink"]

PROBE_RUN: Final = "mlops-events-check"
"""The run that probes belong to, so that they can be told from data."""

_STEP_S: Final = 30.0
_BACK_S: Final = 15.0
_AGAIN_S: Final = 0.5


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried; `skipped` if the sink has no way to."""

    name: str
    ok: bool
    message: str = ""
    skipped: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found, step by step; the first that failed is the last."""

    sink: str
    ok: bool
    steps: list[Step]


async def check_sink(sink: Sink, *, write: bool) -> Report:
    """Try a sink.

    Args:
        sink: closed at the end.
        write: write a probe, an observation and a log line of the run `PROBE_RUN`, and read it back
            where the sink can.
    """
    steps: list[Step] = []
    try:
        steps.append(await _try("answers", sink.check()))
        if write and steps[-1].ok:
            steps.append(await _try("opens", sink.open()))
        if write and steps[-1].ok:
            steps += await _write(sink)
    finally:
        with suppress(SinkError, TimeoutError):
            await asyncio.wait_for(sink.close(), _STEP_S)
    return Report(sink=sink.name, ok=all(step.ok for step in steps), steps=steps)


async def _write(sink: Sink) -> list[Step]:
    records = _probe()
    batch = Batch(records)
    kinds = [record.frame.kind for record in records]
    try:
        rejected = await asyncio.wait_for(sink.write(batch), _STEP_S)
    except (SinkError, TimeoutError) as error:
        return [Step(name="takes events", ok=False, message=_why(error))]
    refused = {one.envelope.id.kind: one.message for one in rejected}
    taken = [kind for kind in kinds if kind not in refused]
    if not taken:
        reasons = "; ".join(f"{kind}: {message}" for kind, message in refused.items())
        return [Step(name="takes events", ok=False, message=reasons)]
    steps = [Step(name="takes events", ok=True, message=f"wrote a probe of {', '.join(taken)}")]
    if not isinstance(sink, ReadsBack):
        message = "this sink cannot be asked; look there for the run " + PROBE_RUN
        return [*steps, Step(name="has them", ok=True, message=message, skipped=True)]
    wanted = [e.id for e in batch if isinstance(e.id, EventId) and e.id.kind in taken]
    return [*steps, await _read_back(sink, wanted)]


async def _read_back(sink: ReadsBack, wanted: list[EventId]) -> Step:
    """Look for the probe until it is there; some destinations show what they have a little later."""
    until = time.monotonic() + _BACK_S
    while True:
        try:
            found = [await asyncio.wait_for(sink.find(one), _STEP_S) for one in wanted]
        except (SinkError, TimeoutError) as error:
            return Step(name="has them", ok=False, message=_why(error))
        if all(found):
            return Step(name="has them", ok=True, message="read the probe back")
        if time.monotonic() > until:
            message = f"the probe was taken, but is not found within {_BACK_S:g} s"
            return Step(name="has them", ok=False, message=message)
        await asyncio.sleep(_AGAIN_S)


async def _try(name: str, work: Awaitable[None]) -> Step:
    try:
        await asyncio.wait_for(work, _STEP_S)
    except (SinkError, TimeoutError) as error:
        return Step(name=name, ok=False, message=_why(error))
    return Step(name=name, ok=True)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_STEP_S:g} s"
    return f"{error}" + (
        " (it must be set up differently)" if isinstance(error, SinkBroken) else ""
    )


def _probe() -> list[FrameRecord]:
    """Return an observation and a log line that nobody has written before."""
    emitter = os.urandom(16)
    now = time.time_ns()
    origin = Origin(run=PROBE_RUN, role="check", node=os.uname().nodename, version="check")
    events: dict[RawKind, bytes] = {
        "observation": ENCODER.encode(Free(now, None, "mlops_events_check", {"value": 1.0})),
        "log": ENCODER.encode(Log(ts=now, level="info", message="mlops-events check")),
    }
    records = []
    for offset, (kind, event) in enumerate(events.items()):
        encoder = FrameEncoder(emitter=emitter, kind=kind, origin=origin)
        value = encoder.encode([event], seq=0, closed_ns=now, accepted=1, dropped=0, end=True)
        records.append(
            FrameRecord(
                frame=decode_frame(value),
                topic="check",
                partition=0,
                offset=offset,
                timestamp_ms=now // 1_000_000,
            )
        )
    return records
