"""The whole pipeline on one machine: broker, stream, sinks and simulated nodes as processes."""

import asyncio
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar
from zlib import crc32

import msgspec

from mlops_events.control.embedded import EmbeddedBroker
from mlops_events.control.folder import UpState, last_port, write_state
from mlops_events.control.ledger import read_ledger
from mlops_events.control.snapshot import Moment, Snapshot, Watch
from mlops_events.control.supervise import Program, ProgramFailedError, Supervisor
from mlops_events.control.topics import count_brokers, create_topics
from mlops_events.control.truth import Truth, WindowRules, give_up_large
from mlops_events.control.verify import Report, verify
from mlops_events.control.verify_fleet import fleet_has_arrived
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings, explain, load, variable
from mlops_events.schemas.topics import topic_specs
from mlops_events.sinks.base import SinkUnavailable
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.streams.settings import StreamSettings

__all__ = ["Display", "Up", "UpSettings"]

_BROKER_S = 15.0
_CLOSE_S = 15.0
"""Simulated nodes outlast a restart of the broker at their end, so that verification has it all."""
_SIMULATE_STOP_S = _CLOSE_S + 5.0
_STOP_S = 25.0
_STALLED_S = 40.0
"""When nothing more has arrived for so long, what is missing will not come."""
_FLEET_S = 10.0
"""How long Stats of fleets are waited for; those of a node that lagged for hours never come."""
_LOOK_S = 0.5
_SHOW_S = 1.0
_TRUTH_BYTES = 1 << 30
"""Of what simulated nodes emitted: eight of them write it in about nine hours."""

T = TypeVar("T")


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: so many simulated nodes, for so long if not until Ctrl-C."""

    simulate: int = 0
    seed: int = 0
    for_s: float | None = None
    verify: bool = False
    brokers: str = ""
    memory: bool = False


class Display(Protocol):
    """Shows people how it is going."""

    def say(self, text: str) -> None:
        """Show a line."""
        ...

    def show(self, moment: Moment) -> None:
        """Show how everything is."""
        ...


class Up:
    """A pipeline in a folder: it starts, works and ends with `run`.

    Args:
        settings: what to run.
        folder: of the data, which nobody else uses.
        display: is told how it goes.
    """

    def __init__(self, settings: UpSettings, folder: Path, *, display: Display) -> None:
        self._settings = settings
        self._folder = folder
        self._display = display
        self._stream = load(StreamSettings, "stream")
        if "sqlite" not in self._stream.sinks:
            raise ConfigError(
                f"{variable('stream', 'sinks')} lacks sqlite, whose file is what `up` shows"
            )
        self._kafka = load(KafkaSettings, "kafka", arguments={"brokers": settings.brokers or None})
        self._broker: EmbeddedBroker | None = None
        self._partitions: dict[str, int] = {}
        self._supervisor = Supervisor(folder / "logs", changed=self._write_state)
        self._stage: asyncio.Task[Any] | None = None
        self._ending = False
        self._hurry = False
        self._began = time.monotonic()

    async def run(self) -> Report | None:
        """Run until the time is over, Ctrl-C or SIGTERM; return what was verified, if asked for.

        Raises:
            ConfigError: settings, topics or brokers cannot be used.
            ProgramFailedError: a process cannot be kept running.
            KeyboardInterrupt: a second Ctrl-C did not let it end in order.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        showing = asyncio.create_task(self._show())
        try:
            await self._do(self._start())
            if not self._ending:
                await self._do(self._work())
            self._ending = True
            report = await self._do(self._finish())
        finally:
            await self._supervisor.close()
            if self._broker is not None:
                self._broker.close()
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            self._write_state(pid=0)
        if self._hurry:
            raise KeyboardInterrupt
        return report

    # --- the parts of a run -------------------------------------------------------------------

    async def _start(self) -> None:
        if self._settings.brokers:
            await self._adapt_to_cluster()
        else:
            folder = None if self._settings.memory else self._folder / "store"
            self._broker = EmbeddedBroker(folder, port=last_port(self._folder))
            self._kafka = self._broker.settings(self._kafka)
            for program in self._broker.programs():
                self._supervisor.start(program)
            await asyncio.wait_for(self._broker.listening(), _BROKER_S)
        self._display.say(f"broker {self._kafka.brokers}, data in {self._folder}")
        if self._kafka.embedded:
            self._display.say(
                f"for programs of your own: {variable('kafka', 'brokers')}={self._kafka.brokers} "
                f"{variable('kafka', 'embedded')}=1"
            )
        topics = await create_topics(
            self._kafka,
            topic_specs(
                self._kafka.topics,
                sinks=self._stream.sinks,
                partitions=self._kafka.partitions,
                replication=self._kafka.replication,
            ),
            within_s=_BROKER_S,
        )
        self._partitions = {topic.name: topic.partitions for topic in topics}
        for program in self._programs():
            self._supervisor.start(program)

    async def _work(self) -> None:
        """Let it work until its time is over."""
        simulate = self._supervisor.children.get("simulate")
        if simulate is None:
            await asyncio.sleep(math.inf if self._settings.for_s is None else self._settings.for_s)
            return
        await simulate.ended.wait()
        if simulate.exit_code not in (0, 1):  # 1: some events were not acknowledged
            raise ProgramFailedError(f"simulate ended:\n{simulate.last_lines()}")

    async def _finish(self) -> Report | None:
        """Stop everything in the order in which events flow; look whether they all arrived."""
        await self._supervisor.stop("simulate")
        truth: Truth | None = None
        if self._settings.verify and self._partitions:  # else it was stopped before it began
            rules = WindowRules(by=self._stream.rules, lateness=self._stream.lateness_ns)
            self._display.say("waiting for everything to arrive")
            truth = await asyncio.to_thread(Truth, self._folder / "truth", rules)
            await self._drain(truth)
        await self._supervisor.stop("stream")
        await self._supervisor.stop("fleet")
        if truth is not None:
            await self._drain_fleet()
        await self._supervisor.stop(*(_sink(name) for name in self._stream.sinks))
        if truth is None:
            self._say_what_is_stored()
            return None
        ledger = await read_ledger(
            self._kafka,
            self._stream,
            partitions=self._partitions,
            emitters=truth.emitters,
            since_ns=truth.began_ns,
        )
        await self._supervisor.close()
        self._display.say("comparing what is stored with what was emitted")
        with SQLiteStore(self._database) as store:
            report = await asyncio.to_thread(verify, truth, store)
        for name in ledger.__struct_fields__:
            setattr(report, name, getattr(ledger, name))
        return report

    def _say_what_is_stored(self) -> None:
        watch = Watch(self._database)
        snapshot = watch.look()
        watch.close()
        self._display.say(
            f"{snapshot.events} events and {snapshot.stats} aggregates are in {self._database}"
        )

    async def _drain(self, truth: Truth) -> None:
        """Wait until everything has arrived, or nothing more does."""
        known, since = None, time.monotonic()
        while True:
            try:
                with SQLiteStore(self._database) as store:
                    if await asyncio.to_thread(truth.has_arrived, store):
                        return
                    found = store.counts()
            except SinkUnavailable:
                found = {}
            if found != known:
                known, since = found, time.monotonic()
            elif time.monotonic() - since > _STALLED_S:
                self._display.say(f"nothing has arrived for {_STALLED_S:g} s")
                return
            await asyncio.sleep(_LOOK_S)

    async def _drain_fleet(self) -> None:
        """Wait until what the fleet service published at its end has arrived."""
        end = time.monotonic() + _FLEET_S
        while time.monotonic() < end:
            with SQLiteStore(self._database) as store:
                if await asyncio.to_thread(fleet_has_arrived, store):
                    return
            await asyncio.sleep(_LOOK_S)

    # --- what runs ----------------------------------------------------------------------------

    @property
    def _database(self) -> Path:
        return self._folder / "events.db"

    async def _adapt_to_cluster(self) -> None:
        """Ask for no more replicas than there are brokers, unless told to."""
        given = {s.name: s.source for s in explain(KafkaSettings, "kafka")}
        if given["replication"] == "default":
            brokers = await count_brokers(self._kafka, within_s=_BROKER_S)
            self._kafka = msgspec.structs.replace(
                self._kafka, replication=min(brokers, self._kafka.replication)
            )

    def _programs(self) -> list[Program]:
        own = (sys.executable, "-m", "mlops_events.control")
        env = self._environment()
        programs = [
            Program(name="stream", argv=(*own, "stream"), env=env, stop_s=_STOP_S),
            Program(name="fleet", argv=(*own, "fleet"), env=env, stop_s=_STOP_S),
            *(
                Program(name=_sink(name), argv=(*own, "sink", name), env=env, stop_s=_STOP_S)
                for name in self._stream.sinks
            ),
        ]
        settings = self._settings
        if settings.simulate:
            folder = self._folder / "truth"
            folder.mkdir(exist_ok=True)
            argv = (
                *(sys.executable, "-m", "mlops_events.producers", "simulate"),
                *("--nodes", str(settings.simulate), "--seed", str(settings.seed)),
                *("--truth", str(folder / f"{time.time_ns()}.jsonl")),
                *("--close-timeout", f"{_CLOSE_S:g}s"),
                *(("--for", f"{settings.for_s}s") if settings.for_s is not None else ()),
            )
            programs.append(
                Program(name="simulate", argv=argv, env=env, lasting=False, stop_s=_SIMULATE_STOP_S)
            )
        return programs

    def _environment(self) -> dict[str, str]:
        """Return the settings of the processes that talk to Kafka."""
        kafka = self._kafka
        names = ["brokers", "prefix", "partitions", "replication"]
        if kafka.embedded:
            names += ["security_protocol"]
        env = {variable("kafka", name): str(getattr(kafka, name)) for name in names}
        env[variable("kafka", "embedded")] = str(int(kafka.embedded))
        env[variable("sqlite", "path")] = str(self._database)
        if not kafka.embedded:
            # Under a name of its own a process that is restarted has its partitions back at once.
            place = f"{socket.gethostname()}-{crc32(str(self._folder.resolve()).encode()):08x}"
            for part in ("stream", "sink"):
                name = variable(part, "instance_id")
                env[name] = os.environ.get(name) or f"up-{place}"
        return env

    # --- what people and tests see ------------------------------------------------------------

    async def _show(self) -> None:
        watch = Watch(self._database)
        looking: asyncio.Task[Snapshot] | None = None
        try:
            while True:
                looking = asyncio.create_task(asyncio.to_thread(watch.look))
                snapshot = await asyncio.shield(looking)
                self._display.show(
                    Moment(
                        elapsed_s=time.monotonic() - self._began,
                        now_ns=time.time_ns(),
                        brokers=self._kafka.brokers,
                        folder=self._folder,
                        children=list(self._supervisor.children.values()),
                        snapshot=snapshot,
                    )
                )
                if give_up_large(self._folder / "truth", max_bytes=_TRUTH_BYTES):
                    self._display.say("simulated too much to compare all of it at the end")
                await asyncio.sleep(_SHOW_S)
        finally:
            if looking is not None:  # SQLite crashes if it is closed while a thread reads
                await asyncio.wait({looking})
            watch.close()

    def _write_state(self, *, pid: int | None = None) -> None:
        children = self._supervisor.children
        write_state(
            self._folder,
            UpState(
                pid=os.getpid() if pid is None else pid,
                brokers=self._kafka.brokers,
                embedded=self._kafka.embedded,
                processes={name: child.pid for name, child in children.items()},
            ),
        )

    # --- the end ------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        if self._ending:
            self._display.say("ending at once")
            self._hurry = True
            self._supervisor.kill()
        else:
            self._display.say("stopping; Ctrl-C again ends at once")
            self._ending = True
        if self._stage is not None:
            self._stage.cancel()

    async def _do(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do something until it is done, a signal comes or a program fails."""
        stage = asyncio.create_task(self._unless_failed(work))
        self._stage = stage
        try:
            return await stage
        except asyncio.CancelledError:
            if not self._ending:
                raise
            return None
        finally:
            self._stage = None

    async def _unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, unless a program fails."""
        failed = asyncio.create_task(self._supervisor.failure())
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({failed, task}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            return await task
        finally:
            for one in (failed, task):
                one.cancel()
            await asyncio.gather(failed, task, return_exceptions=True)


def _sink(name: str) -> str:
    return f"sink-{name}"
