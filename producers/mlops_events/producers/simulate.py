"""A fleet of simulated nodes on real emitters: starts them, lets them report, ends them."""

import time
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, Literal, assert_never

import msgspec

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.nodes import Node, Tick, fleet_of, schedule
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.stats import EmitterStats
from mlops_events.producers.transport import Transport
from mlops_events.producers.truth import Truth
from mlops_events.producers.workload import Event, Workload
from mlops_events.schemas.events import Log, Observation, Origin, Profile, Run

__all__ = ["Fleet", "FleetSettings", "emit", "run_fleet", "wall_clock"]

_SECOND = 1_000_000_000
_BEHIND_NS = 1 * _SECOND
"""A fleet that was stopped for longer goes on from the present; it does not catch up."""
_WAKE_NS = _SECOND // 20
"""What is due within this time is done together, so that a large fleet costs little."""


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How large a fleet is, how much it says and for how long.

    `rate` is in observations a second for each node; `duration_s` None is for ever. At the end an
    emitter has `close_timeout_s` to send the rest.
    """

    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8
    run: str = "simulation"
    seed: int = 0
    rate: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 10.0
    duration_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    close_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    tags: dict[str, str] = {}

    @property
    def period_s(self) -> float:
        """Within which everything happens that happens to nodes."""
        return min(60.0, self.duration_s or 60.0)


def run_fleet(
    settings: FleetSettings,
    *,
    emitter: EmitterSettings,
    truth: Truth,
    clock: Callable[[], int],
    pause: Callable[[float], bool],
    transport: Callable[[], Transport] | None = None,
) -> list[EmitterStats]:
    """Run a fleet to its end and return the account of every emitter.

    Args:
        settings: how large it is.
        emitter: settings of every emitter.
        truth: is told all that is emitted.
        clock: nanoseconds since the epoch, never going back.
        pause: waits so many seconds; returns True early when the fleet is to end.
        transport: makes an emitter's transport; Kafka if None.

    Raises:
        ConfigError: the emitters' settings cannot be used.
        OSError: the truth cannot be written.
    """
    fleet = Fleet(settings, emitter=emitter, truth=truth, clock=clock, transport=transport)
    try:
        while True:
            wait_ns = fleet.advance()
            if wait_ns is None or pause(max(wait_ns, _WAKE_NS) / _SECOND):
                break
    finally:
        accounts = fleet.close()
    return accounts


def wall_clock() -> Callable[[], int]:
    """Return a clock in nanoseconds since the epoch that never goes back."""
    last = 0

    def now() -> int:
        nonlocal last
        last = max(last, time.time_ns())
        return last

    return now


class Fleet:
    """Nodes at work; see `run_fleet` for the arguments. One thread calls it."""

    def __init__(
        self,
        settings: FleetSettings,
        *,
        emitter: EmitterSettings,
        truth: Truth,
        clock: Callable[[], int],
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        self._settings = settings
        self._emitter = emitter
        self._truth = truth
        self._clock = clock
        self._transport = transport
        self._start_ns = clock()
        self._actors = [_Actor(node, settings) for node in fleet_of(settings.nodes)]
        self._ending: list[Emitter] = []
        self._accounts: list[tuple[EmitterStats, Origin]] = []

    def advance(self) -> int | None:
        """Do what is due; return the nanoseconds until more is, None when all is done."""
        now = self._clock()
        due_ns = self._start_ns + min(actor.tick.offset_ns for actor in self._actors)
        self._start_ns += max(0, now - due_ns - _BEHIND_NS)
        elapsed_ns = now - self._start_ns
        duration_s = self._settings.duration_s
        end_ns = None if duration_s is None else round(duration_s * _SECOND)
        until_ns = elapsed_ns if end_ns is None else min(elapsed_ns, end_ns)
        for actor in self._actors:
            while actor.tick.offset_ns <= until_ns:
                self._act(actor, actor.tick)
                actor.tick = next(actor.ticks)
        if end_ns is not None and elapsed_ns >= end_ns:
            return None
        return min(actor.tick.offset_ns for actor in self._actors) - elapsed_ns

    def close(self) -> list[EmitterStats]:
        """End every process; return the account of each that there ever was."""
        for actor in self._actors:
            self._end(actor)
        for emitter in self._ending:
            emitter.join()
            self._accounts.append((emitter.stats(), emitter.origin))
        for stats, origin in self._accounts:
            self._truth.account(stats, origin)
        return [stats for stats, _ in self._accounts]

    def _act(self, actor: "_Actor", tick: Tick) -> None:
        if actor.process is not None and actor.process.life != tick.life:
            self._end(actor, crashed=actor.node.habit == "crashing")
        if actor.process is None and tick.life is not None:
            actor.process = self._start(actor, tick.life)
        if actor.process is not None and tick.speaks:
            emitter = actor.process.emitter
            events = actor.workload.step(self._start_ns + tick.offset_ns + actor.node.skew_ns)
            self._truth.write(emitter.id, *events)
            for event in events:
                emit(emitter, event)

    def _start(self, actor: "_Actor", life: int) -> "_Process":
        node, settings = actor.node, self._settings
        config = actor.workload.config
        clock = _NodeClock(self._clock, node.skew_ns)
        ts = clock.stop()
        emitter = Emitter(
            run=settings.run,
            project="simulation",
            name=node.name,
            role=node.role,
            uid=node.uid,
            node=f"node-{node.uid}",
            version=node.version(life),
            environment="simulation",
            group="fleet",
            job_type=node.role,
            netuid=3,
            tags=settings.tags,
            config=config,
            settings=self._emitter,
            transport=None if self._transport is None else self._transport(),
            clock=clock,
            required=True,
        )
        clock.go_on()
        self._truth.write(
            emitter.id, _run(node, emitter.origin, ts=ts, state="start", config=config)
        )
        return _Process(life, emitter, clock)

    def _end(self, actor: "_Actor", *, crashed: bool = False) -> None:
        """Begin to end a node's process; the other nodes do not wait for it."""
        process = actor.process
        if process is None:
            return
        actor.process = None
        emitter = process.emitter
        ts = process.clock.stop()
        status: Literal["finished", "crashed"] = "crashed" if crashed else "finished"
        self._truth.write(
            emitter.id, _run(actor.node, emitter.origin, ts=ts, state="end", status=status)
        )
        emitter.end(self._settings.close_timeout_s, crashed=crashed)
        self._ending.append(emitter)
        self._let_go()

    def _let_go(self) -> None:
        """Keep only the accounts of those that have ended, since a fleet may work for ever."""
        ending, self._ending = self._ending, []
        for emitter in ending:
            stats = emitter.stats()
            if stats.ended:
                self._accounts.append((stats, emitter.origin))
            else:
                self._ending.append(emitter)


class _NodeClock:
    """A node's clock: the fleet's plus what it is ahead.

    While it stands still, the time that the emitter gives to the start or end of its Run is known.
    """

    def __init__(self, clock: Callable[[], int], ahead_ns: int) -> None:
        self._clock = clock
        self._ahead_ns = ahead_ns
        self._still: int | None = None

    def __call__(self) -> int:
        still = self._still
        return self._clock() + self._ahead_ns if still is None else still

    def stop(self) -> int:
        """Stand still from now on; return the time."""
        self._still = self()
        return self._still

    def go_on(self) -> None:
        """Show the time again."""
        self._still = None


def _run(
    node: Node,
    origin: Origin,
    *,
    ts: int,
    state: Literal["start", "end"],
    config: dict[str, Any] | None = None,
    status: Literal["finished", "crashed"] | None = None,
) -> Run:
    """The Run that a node's emitter emits by itself."""
    return Run(
        ts=ts,
        state=state,
        config=config or {},
        project=origin.project,
        name=node.name,
        group=origin.group,
        job_type=origin.job_type,
        status=status,
    )


class _Process(msgspec.Struct, frozen=True):
    """One life of a node."""

    life: int
    emitter: Emitter
    clock: _NodeClock


class _Actor:
    """A node, what it is about to do, and the process that it is."""

    def __init__(self, node: Node, settings: FleetSettings) -> None:
        self.node = node
        self.ticks = schedule(node, rate=settings.rate, period_s=settings.period_s)
        self.tick = next(self.ticks)
        noise = Random(f"{settings.seed}/{node.uid}")  # noqa: S311 - no secret
        self.workload = Workload(role=node.role, rng=noise)
        self.process: _Process | None = None


def emit(emitter: Emitter, event: Event) -> None:
    """Emit an event that was made before."""
    if isinstance(event, Observation):
        emitter.observe(event.name, event.fields, step=event.step, ts=event.ts, tags=event.tags)
    elif isinstance(event, Profile):
        emitter.profile(
            event.name,
            event.duration_ns,
            step=event.step,
            ts=event.ts,
            tags=event.tags,
            failed=event.failed,
        )
    elif isinstance(event, Log):
        emitter.log(
            event.level,
            event.message,
            step=event.step,
            ts=event.ts,
            logger=event.logger,
            **event.fields,
        )
    else:
        assert_never(event)
