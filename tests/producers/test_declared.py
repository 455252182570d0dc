"""Series for hot loops, timers and shares."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.thinning import Thinning


@pytest.fixture
def transport() -> MemoryTransport:
    """Where events go."""
    return MemoryTransport()


@pytest.fixture
def events(transport: MemoryTransport) -> Iterator[Emitter]:
    """An emitter into memory."""
    with Emitter(run="r", transport=transport, announce=False) as emitter:
        yield emitter


def observed(events: Emitter, transport: MemoryTransport) -> list[Any]:
    """What arrived, as name, fields, step and tags."""
    assert events.flush(20)
    return [(o.name, o.fields, o.step, o.tags) for o in transport.observations()]


def test_a_series_emits_what_observe_would(events: Emitter, transport: MemoryTransport) -> None:
    """Name, fields, step and tags are the same."""
    loss = events.series("training", "loss", "lr", tags={"phase": "train"})
    loss(0.5, 1e-4, step=1)
    loss(math.inf, 2**70, step=2)
    events.observe("training", {"loss": 0.5, "lr": 1e-4}, step=3, tags={"phase": "train"})

    tags = {"phase": "train"}
    assert observed(events, transport) == [
        ("training", {"loss": 0.5, "lr": 1e-4}, 1, tags),
        ("training", {"loss": math.inf, "lr": 2.0**70}, 2, tags),
        ("training", {"loss": 0.5, "lr": 1e-4}, 3, tags),
    ]


def test_values_that_are_odd_cost_themselves_only(
    events: Emitter, transport: MemoryTransport
) -> None:
    """One that cannot be encoded is counted by name, a wrong number of values as malformed."""
    loss = events.series("training", "loss", "lr")
    loss(object(), 1e-4)
    loss(0.5)
    loss(0.5, 1.0, 2.0)
    loss(0.5, 1.0, step="3")  # type: ignore[arg-type]

    assert observed(events, transport) == [
        ("training", {"lr": 1e-4}, None, {}),
        ("training", {"loss": 0.5, "lr": 1.0}, None, {}),
    ]
    assert events.stats().bad_fields == {"loss": 1, "step": 1}
    assert events.stats().kinds["observation"].dropped == {"malformed": 2}


def test_the_same_series_is_declared_once(events: Emitter) -> None:
    """A loop that declares it each time grows nothing."""
    made = {id(events.series("training", "loss")) for _ in range(100)}

    assert len(made) == 1


def test_beyond_the_table_a_series_still_emits(events: Emitter, transport: MemoryTransport) -> None:
    """With names in every event, as observe does then."""
    for number in range(1100):
        events.series(f"s{number}", "value")(number)

    values = observed(events, transport)
    assert [fields for _, fields, _, _ in values] == [{"value": n} for n in range(1100)]


@pytest.mark.parametrize("arguments", [("training",), ("training", 1), (7, "loss")])
def test_a_series_needs_a_name_and_fields(events: Emitter, arguments: Any) -> None:
    """A mistake is told where it is made, before training starts."""
    with pytest.raises(ValueError, match="a name and fields"):
        events.series(*arguments)


def test_a_share_of_the_calls_says_so(events: Emitter, transport: MemoryTransport) -> None:
    """Evenly, and with the tag that lets counts be scaled."""
    loss = events.series("training", "loss", sample_rate=0.1)
    for step in range(100):
        loss(0.5, step=step)

    values = observed(events, transport)
    assert [step for _, _, step, _ in values] == list(range(0, 100, 10))
    assert {tags["sample_rate"] for _, _, _, tags in values} == {"0.1"}


@pytest.mark.parametrize(("rate", "taken"), [(0, 0), (1, 1000), (0.5, 500), (0.001, 1), (0.3, 300)])
def test_thinning_takes_its_share(rate: float, taken: int) -> None:
    """And the first of each run of calls, so that nothing rare is never seen."""
    thinning = Thinning(rate)

    assert sum(thinning.take() for _ in range(1000)) == taken


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_share_is_from_0_to_1(events: Emitter, rate: float) -> None:
    """Anything else is a mistake."""
    with pytest.raises(ValueError, match="expected a share from 0 to 1"):
        events.series("training", "loss", sample_rate=rate)
    with pytest.raises(ValueError, match="expected a share from 0 to 1"):
        events.timed(sample_rate=rate)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_series_goes_on_in_a_forked_child(tmp_path: Any) -> None:
    """Under the child's own id."""
    transport = MemoryTransport()
    events = Emitter(run="r", transport=transport, announce=False)
    loss = events.series("training", "loss")
    loss(1.0)
    assert events.flush(20)
    child = os.fork()
    if child == 0:
        loss(2.0)
        ok = events.flush(20) and events.stats().sent == 1
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loss(3.0)
    assert events.close()

    assert [o.fields for o in transport.observations()] == [{"loss": 1.0}, {"loss": 3.0}]


async def test_timed_measures_functions_of_every_kind(
    events: Emitter, transport: MemoryTransport
) -> None:
    """Results and exceptions pass; a section that raises is marked."""

    @events.timed()
    def plain(x: int) -> int:
        """Say something."""
        if x < 0:
            raise ValueError("negative")
        return x + 1

    @events.timed("waiting", tags={"gpu": 0})
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "done"

    @events.timed("generator")
    def generator() -> Iterator[int]:
        yield 1
        yield 2

    @events.timed("async generator")
    async def async_generator() -> AsyncIterator[int]:
        yield 1

    assert plain(1) == 2
    assert (plain.__name__, plain.__doc__) == ("plain", "Say something.")
    with pytest.raises(ValueError, match="negative"):
        plain(-1)
    assert await coroutine() == "done"
    assert list(generator()) == [1, 2]
    assert [x async for x in async_generator()] == [1]
    assert await asyncio.to_thread(events.flush, 20)

    found = [(p.name.rpartition(".")[2], p.failed, p.tags) for p in transport.profiles()]
    assert found == [
        ("plain", False, None),
        ("plain", True, None),
        ("waiting", False, {"gpu": 0}),
        ("generator", False, None),
        ("async generator", False, None),
    ]
    assert all(profile.duration_ns >= 0 for profile in transport.profiles())


def test_timed_can_take_a_share(events: Emitter, transport: MemoryTransport) -> None:
    """The function runs each time, a tenth is profiled."""
    ran = []

    @events.timed("step", sample_rate=0.1)
    def step(number: int) -> None:
        ran.append(number)

    for number in range(50):
        step(number)
    assert events.flush(20)

    assert ran == list(range(50))
    assert [p.tags for p in transport.profiles()] == [{"sample_rate": "0.1"}] * 5


def test_an_emitter_that_is_off_has_them_too() -> None:
    """They cost next to nothing and change nothing."""
    events = Emitter(settings=EmitterSettings(disabled=True))

    def function() -> int:
        return 7

    assert events.timed()(function) is function
    events.series("training", "loss")(0.5, step=1)
    assert events.stats().emitted == 0
