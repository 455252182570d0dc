"""Values on a GPU: never waited for, never invented.

Without a GPU a stand-in plays torch: tensors whose copies arrive when the test lets time pass, and
that raise when somebody would wait for them. The test marked `gpu` uses a real one.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlops_events.producers import Emitter
from mlops_events.producers.scalars import Capture, Captured
from mlops_events.producers.tally import Tally
from mlops_events.producers.testing import MemoryTransport


class Device:
    """A GPU of the stand-in."""

    type = "cuda"
    index = 0


DEVICE = Device()


class Host:
    """A place in pinned memory: what was copied is there once the GPU has done it."""

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu
        self._value = math.nan

    def copy_(self, tensor: "Tensor", *, non_blocking: bool) -> None:
        assert non_blocking
        self._gpu.order(lambda: setattr(self, "_value", tensor.value))

    def __float__(self) -> float:
        return self._value


class Hosts(list[Host]):
    """Pinned memory."""

    def unbind(self, dim: int) -> "Hosts":
        assert dim == 0
        return self


class Event:
    """A CUDA event: it passes when the work that was ordered before it is done."""

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu
        self._at = 0

    def record(self, stream: object) -> None:
        self._at = self._gpu.ordered

    def query(self) -> bool:
        return self._gpu.done >= self._at


class Gpu:
    """The parts of torch that are used, with a GPU that works only when it is told to."""

    float64 = "float64"

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.ordered = self.done = 0
        self.capturing = False
        self.allocated: list[int] = []
        self.cuda = self

    def zeros(self, count: int, *, dtype: str, pin_memory: bool) -> Hosts:
        assert (dtype, pin_memory) == ("float64", True)
        self.allocated.append(count)
        return Hosts(Host(self) for _ in range(count))

    def current_stream(self, device: Device) -> str:
        return "stream"

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self) -> Event:  # noqa: N802 - torch's name
        return Event(self)

    def order(self, work: Callable[[], None]) -> None:
        self.work.append(work)
        self.ordered += 1

    def run(self, count: int | None = None) -> None:
        """Do what was ordered."""
        for _ in range(len(self.work) if count is None else count):
            self.work.pop(0)()
            self.done += 1


class Tensor:
    """A tensor of the stand-in; to read it would wait for the GPU."""

    is_cuda = True
    device = DEVICE

    def __init__(self, value: float, *, count: int = 1, complex_: bool = False) -> None:
        self.value = value
        self._count = count
        self._complex = complex_

    def numel(self) -> int:
        return self._count

    def is_complex(self) -> bool:
        return self._complex

    def detach(self) -> "Tensor":
        return self

    def reshape(self, shape: tuple[()]) -> "Tensor":
        assert shape == ()
        return self

    def item(self) -> float:
        raise AssertionError("somebody waits for the GPU")

    tolist = __float__ = cpu = item  # type: ignore[assignment]


class Placement:
    """How a distributed tensor lies on its devices."""

    def __init__(self, replicated: bool) -> None:
        self._replicated = replicated

    def is_replicate(self) -> bool:
        return self._replicated


class Distributed(Tensor):
    """A DTensor."""

    def __init__(self, value: float, *, replicated: bool) -> None:
        super().__init__(value)
        self.placements = [Placement(replicated)]

    def to_local(self) -> Tensor:
        return Tensor(self.value)


@pytest.fixture
def gpu() -> Gpu:
    """A GPU that works when it is told to."""
    return Gpu()


class Bench:
    """A capture with what it counts."""

    def __init__(self, gpu: Gpu, slots: int) -> None:
        self.bad = Tally()
        self.woken = 0
        self.capture = Capture(bad=self.bad, wake=self._wake, slots=slots, torch=gpu)

    def _wake(self) -> None:
        self.woken += 1

    def take(self, step: int = 0, **fields: Any) -> Captured | None:
        """Take an observation."""
        return self.capture.take(Captured("training", fields, step, 1, None))

    def ready(self) -> list[tuple[int, dict[str, Any]]]:
        """Return what is here."""
        return [(one.step, one.fields) for one in self.capture.ready()]


@pytest.fixture
def bench(gpu: Gpu) -> Bench:
    """A capture of eight slots whose memory is there."""
    made = Bench(gpu, 8)
    made.take(loss=Tensor(0.0))
    made.capture.prepare()
    return made


def test_the_first_value_brings_the_memory_about_on_the_other_thread(gpu: Gpu) -> None:
    """Nothing is allocated where training runs; that value is counted, the next one is taken."""
    bench = Bench(gpu, 8)
    left = bench.take(loss=Tensor(0.5), lr=0.1)
    assert left is not None

    assert (left.fields, gpu.allocated, bench.woken) == ({"lr": 0.1}, [], 1)
    assert bench.bad.counts() == {"loss": 1}
    bench.capture.prepare()
    assert gpu.allocated == [8]
    assert bench.take(loss=Tensor(0.5)) is None


def test_values_come_with_their_step_when_the_gpu_is_done(gpu: Gpu, bench: Bench) -> None:
    """In the order in which they were emitted, and not before."""
    bench.take(1, loss=Tensor(0.5), lr=0.1, grad=Tensor(math.inf))
    bench.take(2, loss=Tensor(math.nan))

    assert bench.ready() == []
    gpu.run(1)
    assert bench.ready() == []
    gpu.run(1)
    assert bench.ready() == [(1, {"loss": 0.5, "lr": 0.1, "grad": math.inf})]
    gpu.run()
    ((step, fields),) = bench.ready()
    assert step == 2
    assert math.isnan(fields["loss"])


def test_what_is_written_into_a_tensor_later_changes_nothing(gpu: Gpu, bench: Bench) -> None:
    """The copy is ordered before it, on the same stream."""
    loss = Tensor(0.5)
    bench.take(1, loss=loss)
    gpu.order(lambda: setattr(loss, "value", 99.0))
    gpu.run()

    assert bench.ready() == [(1, {"loss": 0.5})]


def test_beyond_the_ring_values_are_left_out_and_counted(gpu: Gpu, bench: Bench) -> None:
    """A GPU that is far behind stops nobody; places are used again once it is done."""
    for step in range(12):
        bench.take(step, loss=Tensor(float(step)))
    assert bench.bad.counts() == {"loss": 1 + 4}

    gpu.run()
    assert len(bench.ready()) == 8
    for step in range(8):
        assert bench.take(step, loss=Tensor(1.0)) is None


def test_events_never_run_out(gpu: Gpu, bench: Bench) -> None:
    """More observations than events were made beforehand are taken all the same."""
    for step in range(5):
        assert bench.take(step, loss=Tensor(1.0)) is None
    gpu.run()

    assert len(bench.ready()) == 5


@pytest.mark.parametrize(
    "value",
    [
        Tensor(1.0, count=2),
        Tensor(1.0, complex_=True),
        Distributed(1.0, replicated=False),
    ],
    ids=["several elements", "complex", "a shard"],
)
def test_what_is_no_single_number_is_left_out_and_counted(bench: Bench, value: Tensor) -> None:
    """Nothing is guessed, and nothing else of the observation is lost."""
    before = bench.bad.counts().get("loss", 0)
    left = bench.take(loss=value, lr=0.1)
    assert left is not None

    assert left.fields == {"lr": 0.1}
    assert bench.bad.counts()["loss"] == before + 1


def test_a_replicated_tensor_is_its_local_one(gpu: Gpu, bench: Bench) -> None:
    """Every rank has the whole value."""
    bench.take(1, loss=Distributed(0.5, replicated=True))
    gpu.run()

    assert bench.ready() == [(1, {"loss": 0.5})]


def test_while_a_graph_is_captured_nothing_is_ordered(gpu: Gpu, bench: Bench) -> None:
    """It would become part of the graph."""
    gpu.capturing = True
    left = bench.take(loss=Tensor(0.5), lr=0.1)
    assert left is not None

    assert left.fields == {"lr": 0.1}
    assert gpu.work == []


def test_what_never_came_is_absent_and_counted(gpu: Gpu, bench: Bench) -> None:
    """Never NaN."""
    bench.take(1, loss=Tensor(0.5), lr=0.1)

    assert [one.fields for one in bench.capture.give_up()] == [{"lr": 0.1}]
    assert bench.bad.counts()["loss"] == 2
    assert len(bench.capture) == 0


@pytest.fixture
def torch(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The stand-in as the module that the program has imported."""
    monkeypatch.setitem(__import__("sys").modules, "torch", gpu)
    return gpu


@pytest.fixture
def transport() -> MemoryTransport:
    """Where events go."""
    return MemoryTransport()


@pytest.fixture
def events(torch: Gpu, transport: MemoryTransport, until: Any) -> Iterator[Emitter]:
    """An emitter of a program with a GPU, whose memory is there."""
    emitter = Emitter(run="r", transport=transport, announce=False)
    emitter.observe("warm", {"loss": Tensor(0.0)})
    until.sync(lambda: bool(torch.allocated))
    emitter.flush(20)
    transport.records.clear()
    yield emitter
    emitter.close(5)


def test_an_emitter_sends_the_value_with_its_own_time(
    events: Emitter, transport: MemoryTransport, torch: Gpu
) -> None:
    """Order, step, time and tags are those of the call."""
    loss = events.series("training", "loss", "lr")
    events.observe("training", {"loss": Tensor(0.5)}, step=1, tags={"phase": "train"})
    loss(Tensor(0.25), 0.1, step=2)
    torch.run()
    assert events.flush(20)

    found = [(o.fields, o.step, o.tags) for o in transport.observations()]
    assert found == [
        ({"loss": 0.5}, 1, {"phase": "train"}),
        ({"loss": 0.25, "lr": 0.1}, 2, {}),
    ]
    times = [o.ts for o in transport.observations()]
    assert times == sorted(times)


def test_a_gpu_that_hangs_does_not_hold_up_the_end(
    events: Emitter, transport: MemoryTransport
) -> None:
    """What is known is sent, what is not is counted."""
    events.observe("training", {"loss": Tensor(0.5), "lr": 0.1}, step=1)
    assert events.close(10)

    assert [o.fields for o in transport.observations()] == [{"lr": 0.1}]
    assert events.stats().bad_fields["loss"] == 2


def test_the_end_waits_for_values_that_are_nearly_there(
    events: Emitter, transport: MemoryTransport, torch: Gpu
) -> None:
    """A last step is not lost."""
    events.observe("training", {"loss": Tensor(0.5)}, step=1)
    events.end(10, crashed=False)
    torch.run()
    events.join()

    assert [o.fields for o in transport.observations()] == [{"loss": 0.5}]


@pytest.mark.gpu
def test_a_real_gpu_is_not_waited_for(transport: MemoryTransport, until: Any) -> None:
    """A value behind a second of work is emitted at once, and arrives right."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    import time

    events = Emitter(run="r", transport=transport, announce=False)
    events.observe("warm", {"loss": torch.zeros((), device="cuda")})
    until.sync(lambda: bool(events._worker.capture and events._worker.capture._pools))
    torch.cuda.synchronize()
    start = time.monotonic()
    torch.cuda._sleep(2_000_000_000)
    loss = torch.full((), 0.5, device="cuda", dtype=torch.bfloat16)
    events.observe("training", {"loss": loss}, step=1)
    took = time.monotonic() - start
    busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert events.close(30)

    assert busy, "the call waited for the GPU"
    assert took < 0.5
    assert transport.observations()[-1].fields == {"loss": 0.5}
