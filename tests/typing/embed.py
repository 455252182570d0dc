"""A training program that embeds an emitter."""

import asyncio
from contextlib import AbstractContextManager
from typing import assert_type

from mlops_events.producers import Emitter, EmitterSettings, EmitterStats
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas import Log, Observation, Origin, Profile, Run

__all__ = ["everything", "tested", "train", "train_async"]


def train(losses: list[float]) -> EmitterStats:
    """The ten lines of the README."""
    with Emitter(run="llama-7b-42", role="miner", uid=12, version="1.4.0") as events:
        for step, loss in enumerate(losses):
            with events.section("forward", step=step):
                events.observe("training", {"loss": loss}, step=step, tags={"phase": "train"})
        events.log("info", "checkpoint written", path="model.pt", size=12)
    return assert_type(events.stats(), EmitterStats)


async def train_async() -> None:
    """The same inside an event loop."""
    async with Emitter(run="llama-7b-42", role="validator", uid="5F3s") as events:
        events.observe("validation", {"loss": 0.5, "samples": [1.0, 2.0], "note": None})
        assert_type(await asyncio.to_thread(events.flush, 5.0), bool)


def everything(settings: EmitterSettings) -> None:
    """Every argument and every method."""
    events = Emitter(
        run="llama-7b-42",
        project="llama",
        name="the second try",
        role="trainer",
        uid=0,
        hotkey="5F3s",
        rank=0,
        world_size=8,
        node="gpu-3",
        version="1.4.0",
        environment="production",
        group="sweep-7",
        job_type="train",
        netuid=3,
        tags={"team": "a"},
        config={"lr": 1e-4, "layers": 32},
        settings=settings,
        required=True,
        announce=False,
    )
    events.profile("backward", 12_000_000, step=3, tags={"phase": "train"}, failed=True)
    events.observe("training", {"loss": 0.5}, step=3, ts=1_767_225_600_000_000_000)
    events.log("error", "no peers", step=3, logger="net", peers=0)
    assert_type(events.section("forward"), AbstractContextManager[None])
    assert_type(events.enabled, bool)
    assert_type(events.id, bytes)
    assert_type(events.origin, Origin)
    assert_type(events.flush(timeout=5.0), bool)
    assert_type(events.close(timeout=5.0, crashed=True), bool)
    assert_type(events.stats().dropped, int)
    assert_type(events.stats().bad_fields, dict[str, int])


def tested() -> None:
    """A test of a program that embeds an emitter."""
    transport = MemoryTransport(delay_s=0.0)
    with Emitter(run="test", transport=transport) as events:
        train([0.5])
        transport.fail(2)
        transport.hang()
        transport.recover()
        events.flush()
    assert_type(transport.runs(), list[Run])
    assert_type(transport.observations(), list[Observation])
    assert_type(transport.profiles(), list[Profile])
    assert_type(transport.logs(), list[Log])
