"""The Emitter: what a training program calls from any thread."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from msgspec.structs import replace

from mlops_events.producers import lifetime
from mlops_events.producers.buffer import MALFORMED
from mlops_events.producers.clock import Clock
from mlops_events.producers.lane import Lane
from mlops_events.producers.mend import save, text, whole
from mlops_events.producers.origin import describe
from mlops_events.producers.sections import Section, timed
from mlops_events.producers.series import Handle
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.stats import EmitterStats
from mlops_events.producers.tally import Tally
from mlops_events.producers.transport import KafkaTransport, OutRecord, Transport
from mlops_events.producers.worker import Pace, Worker
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import RAW_KINDS, Log, Profile, RawKind, Run
from mlops_events.schemas.values import ENCODER

if TYPE_CHECKING:
    from mlops_events.producers.collectors.series import Collectors
    from mlops_events.producers.declared import Declared, DeclaredSeries

__all__ = ["Emitter"]

F = TypeVar("F", bound=Callable[..., Any])

_encode = ENCODER.encode


class Emitter:
    """Sends events to Kafka without holding up the program that emits them.

    Any thread may emit. A call encodes and appends; a daemon thread closes frames and sends them.
    After its making an emitter does not block, raise or print, and grows to `buffer_bytes` a kind:
    what does not fit is dropped and counted, see `stats`. A forked child is an emitter of its own.
    What is left at exit is sent within 2 s; `os._exit` and signals that kill give no time for it.

    An event over 256 KiB is cut and flagged with `truncated`: a tag, or a field of a log, or an
    entry of a run's config. Texts in it are cut to 16 KiB, fields are kept in their order up to
    192 KiB, and the others are counted by name in `stats().bad_fields`.

    Arguments that are not given come from `MLOPS_EVENTS_*`. Without a broker the emitter is off
    and says so once.

    Args:
        run: the run's id; all processes of a run share it. A new one is made up without it.
        project: what the run belongs to.
        name: the run's name for people.
        role: what this node does in the run: miner, validator, trainer or any other word.
        uid: the node's number or name in the run.
        hotkey: the node's key on its network.
        rank: its place in the process group; `RANK` is read, too.
        world_size: the size of the process group; `WORLD_SIZE` is read, too.
        node: the machine; its host name without it.
        version: the version of the program.
        environment: such as "production".
        group: runs that belong together.
        job_type: such as "train" or "eval".
        netuid: the subnet.
        tags: more about the origin; belongs to all events.
        config: the run's configuration, sent with its start.
        settings: read from the environment if None.
        transport: where frames go; Kafka if None. A forked child opens it again.
        clock: nanoseconds since the epoch that never go back; for tests.
        required: raise if no broker is configured.
        announce: emit that the run starts, now, and that it ends, at close.
        system: emit what the machine and this process use, every `collect_s` of the settings.
        gpu: emit what each GPU tells, as often.

    Raises:
        ConfigError: a setting is unusable, or there is no broker and it is required.
    """

    id: bytes
    """16 random bytes that name this emitter."""

    _transport: Transport
    _lock: "RLock"
    _ending: bool
    _bad: Tally
    _worker: Worker
    _lanes: dict[RawKind, Lane]
    _series: dict[str, Handle]
    _declared: "dict[tuple[Any, ...], Declared]"
    _collectors: "Collectors | None"

    def __init__(
        self,
        *,
        run: str | None = None,
        project: str | None = None,
        name: str | None = None,
        role: str | None = None,
        uid: int | str | None = None,
        hotkey: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        node: str | None = None,
        version: str | None = None,
        environment: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        netuid: int | None = None,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        settings: EmitterSettings | None = None,
        transport: Transport | None = None,
        clock: Callable[[], int] | None = None,
        required: bool = False,
        announce: bool = True,
        system: bool | None = None,
        gpu: bool | None = None,
    ) -> None:
        if settings is None:
            settings = EmitterSettings.from_environment()
        self._settings = settings
        self.origin = describe(
            settings,
            run=run,
            project=project,
            role=role,
            uid=uid,
            hotkey=hotkey,
            rank=rank,
            world_size=world_size,
            node=node,
            version=version,
            environment=environment,
            group=group,
            job_type=job_type,
            netuid=netuid,
            tags=tags,
        )
        if self.origin.tags and settings.scrub and not settings.disabled:
            scrubber = settings.scrubber()
            assert scrubber is not None  # noqa: S101 - it is wanted
            self.origin = replace(self.origin, tags=scrubber.mapping(self.origin.tags))
        self._name = name or settings.run_name
        self._clock = Clock(clock)
        if transport is None and settings.kafka.brokers and not settings.disabled:
            transport = KafkaTransport(settings.kafka)
        if transport is None and not settings.disabled:
            if required:
                raise ConfigError("no brokers; set MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT")
            _warn_off()
        self.enabled = transport is not None and not settings.disabled
        """Whether events go anywhere."""
        self._announced = announce and self.enabled
        self._declared = {}
        self._system = settings.collect_system if system is None else system
        self._gpu = settings.collect_gpu if gpu is None else gpu
        self._begin(transport or _Nowhere())
        if not self.enabled:
            self._switch_off()
            return
        lifetime.remember(self)
        if self._announced:
            self._run("start", config=config or {})
        if self._system or self._gpu:
            self._worker.wake()

    def observe(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        step: int | None = None,
        ts: int | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Emit values that belong together, such as the loss and learning rate of a step.

        Args:
            name: what they are about, such as "training".
            fields: numbers, bools, texts, lists of samples, or mappings of these.
            step: the training step.
            ts: when it was, in nanoseconds since the epoch; now if None.
            tags: more about this event.
        """
        try:
            pick, width, known, sid, now, buffer, append = self._series[name]
            if (
                tags != known
                or len(fields) != width
                or type(fields) is not dict  # others may make up what they lack
                or (type(step) is not int and step is not None)
                or ts is not None
            ):
                self._observe(name, fields, step, ts, tags)
                return
            values = _encode(pick(fields))
        except Exception:  # values may be anybody's objects
            self._observe(name, fields, step, ts, tags)
            return
        buffer.room = room = buffer.room - len(values)
        if room < 0:
            buffer.crowded((sid, now(), step, values))
        else:
            append((sid, now(), step, values))

    def profile(
        self,
        name: str,
        duration_ns: int,
        *,
        step: int | None = None,
        ts: int | None = None,
        tags: Mapping[str, Any] | None = None,
        failed: bool = False,
    ) -> None:
        """Emit how long a section of the program took; `ts` is when it ended."""
        buffer = self._lanes["profile"].buffer
        try:
            duration = whole(duration_ns, "duration_ns", self._bad)
            if duration is None:
                raise TypeError("a profile needs a duration")
            event = Profile(
                ts=self._time(ts),
                name=name if type(name) is str else text(name),
                duration_ns=duration,
                step=self._step(step),
                tags=None if tags is None else save(tags, self._bad, what="tags"),
                failed=bool(failed),
            )
            buffer.put(_encode(event))
        except Exception:  # values may be anybody's objects
            buffer.dropped.add(MALFORMED)

    def section(
        self, name: str, *, step: int | None = None, tags: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[None]:
        """Profile what happens inside a `with`; it counts as failed if that raises."""
        return Section(self, name, step, tags)

    def timed(
        self,
        name: str | None = None,
        *,
        tags: Mapping[str, Any] | None = None,
        sample_rate: float = 1.0,
    ) -> Callable[[F], F]:
        """Return a decorator that profiles each call of a function, coroutine or generator.

        Args:
            name: of the section; the function's if None.
            tags: more about it.
            sample_rate: the share of calls that is profiled, told as the tag `sample_rate`.

        Raises:
            ValueError: the sample rate is no share.
        """
        return timed(self, name, tags=tags, sample_rate=sample_rate)

    def series(
        self,
        name: str,
        *fields: str,
        tags: Mapping[str, str] | None = None,
        sample_rate: float = 1.0,
    ) -> "DeclaredSeries":
        """Declare a series for a hot loop: `loss = events.series("training", "loss", "lr")`, then
        `loss(0.5, 1e-4, step=step)` emits what `observe` would, at less than half the cost.

        Args:
            name: what the values are about.
            fields: what each of them is called.
            tags: of all of them.
            sample_rate: the share of calls that is emitted, told as the tag `sample_rate`.

        Raises:
            ValueError: there are no fields, a name is no text, or the sample rate is no share.
        """
        if not fields or not all(type(one) is str for one in (name, *fields)):
            raise ValueError(
                f"a series needs a name and fields, all text; found {name!r}, {fields!r}"
            )
        from mlops_events.producers.declared import declare  # most programs declare none

        key = (name, fields, tuple(tags.items()) if tags else (), sample_rate)
        declared = self._declared.get(key)
        if declared is None:
            declared = declare(
                name, fields, tags=tags, sample_rate=sample_rate, odd=self._observe_odd
            )
            lane = self._lanes["observation"]
            declared.bind(lane.table, lane.buffer)
            self._declared[key] = declared
        return declared.emit

    def log(
        self,
        level: str,
        message: str,
        /,
        *,
        step: int | None = None,
        ts: int | None = None,
        logger: str = "",
        **fields: Any,
    ) -> None:
        """Emit a line of log with values beside it.

        Args:
            level: debug, info, warning, error or critical, or any other word.
            message: what happened; best a constant text, with what varies in the fields.
            step: the training step.
            ts: when it was, in nanoseconds since the epoch; now if None.
            logger: the name of the logger that it comes from.
            fields: values beside the message.
        """
        try:
            self.write(
                Log(
                    ts=self._time(ts),
                    level=level if type(level) is str else text(level),
                    message=message if type(message) is str else text(message),
                    logger=logger if type(logger) is str else text(logger),
                    fields=fields,
                    step=self._step(step),
                )
            )
        except Exception:  # values may be anybody's objects
            self._lanes["log"].buffer.dropped.add(MALFORMED)

    def write(self, event: Log) -> None:
        """Emit a line of log that is made already, such as by a handler of Python's logging."""
        buffer = self._lanes["log"].buffer
        try:
            try:
                encoded = _encode(event)
            except Exception:  # values may be anybody's objects
                encoded = _encode(
                    replace(
                        event,
                        level=text(event.level),
                        message=text(event.message),
                        logger=text(event.logger),
                        fields=save(event.fields, self._bad),
                    )
                )
            buffer.put(encoded)
        except Exception:  # values may be anybody's objects
            buffer.dropped.add(MALFORMED)

    def update(self, config: Mapping[str, Any]) -> None:
        """Emit an update of the run's configuration."""
        self._run("update", config=config)

    def latest(self, *, system: bool = False, gpu: bool = False) -> dict[str, Any]:
        """Return the newest figures of the machine, of this process's GPU, or of both.

        They are read by a thread every `collect_s`, never by this call: nothing is there before the
        first reading, or when the last ones failed. For those who want them beside their own values:
        `events.observe("training", {"loss": loss, **events.latest(gpu=True)})`.
        """
        if not self.enabled:
            return {}
        collectors = self._collectors or self._collect()
        return {} if collectors is None else collectors.latest(system=system, gpu=gpu)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything emitted before is acknowledged; False if it is not in time."""
        return self._worker.flush(timeout)

    def close(self, timeout: float = 5.0, *, crashed: bool = False) -> bool:
        """Send the rest and end; True if every event that was not dropped is acknowledged.

        A second call waits for the first. What is emitted later is dropped and counted. After the
        deadline the rest is given up, and no word goes out that it was all.

        Args:
            timeout: seconds that it may take.
            crashed: say that an exception ended the run.
        """
        self.end(timeout, crashed=crashed)
        self.join()
        return not self.enabled or self.stats().ended

    async def aclose(
        self,
        timeout: float = 5.0,  # noqa: ASYNC109 - the deadline of `close`, which cancels nothing
        *,
        crashed: bool = False,
    ) -> bool:
        """Do what `close` does without holding up the event loop."""
        import asyncio
        from functools import partial

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, partial(self.close, timeout, crashed=crashed))

    def stats(self) -> EmitterStats:
        """Return what became of the events so far."""
        return EmitterStats(
            emitter=self.id.hex(),
            kinds={kind: lane.stats() for kind, lane in self._lanes.items()},
            bad_fields=self._bad.counts(),
            cut=sum(lane.cut for lane in self._lanes.values()),
            ended=self._worker.ended,
            error=self._worker.error,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(crashed=_is_crash(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose(crashed=_is_crash(error))

    # Called by `lifetime`.

    def end(self, timeout: float, *, crashed: bool) -> None:
        """Begin to close, which `join` waits for; `close` is both."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
            if self._collectors is not None:
                self._collectors.stop()
        lifetime.forget(self)
        if self._announced:
            self._run("end", status="crashed" if crashed else "finished")
        self._worker.close(timeout)

    def join(self) -> None:
        """Wait until it has ended, not longer than its deadline."""
        self._worker.join()

    def renew(self) -> None:
        """Become a new emitter, in a forked child; the run stays its parent's to start and end."""
        lifetime.keep(self._worker)
        self._worker.abandon()
        self._announced = False
        self._begin(self._transport)

    # Everything else.

    def _begin(self, transport: Transport) -> None:
        """Start empty, under a new id."""
        self.id = os.urandom(16)
        self._transport = transport
        self._lock = RLock()
        self._ending = False
        self._collectors = None
        self._bad = Tally()
        settings = self._settings
        self._worker = Worker(
            transport=transport,
            clock=self._clock,
            pace=Pace(
                linger_s=settings.linger_s,
                most_s=settings.max_linger_s,
                little=settings.frame_events,
            ),
        )
        self._lanes = {
            kind: Lane(
                kind,
                emitter=self.id,
                origin=self.origin,
                topics=settings.kafka.topics,
                clock=self._clock,
                wake=self._worker.wake,
                limit=settings.buffer_bytes,
                most_events=settings.frame_events,
                most_bytes=settings.frame_bytes,
                bad=self._bad,
            )
            for kind in RAW_KINDS
        }
        self._worker.lanes = tuple(self._lanes.values())
        self._worker.scrubber = settings.scrubber
        self._worker.observe = self._observe
        if self.enabled and (self._system or self._gpu):
            self._worker.collect = self._collect
        if settings.spool_dir and self.enabled:
            from mlops_events.producers.keeper import Keeper  # costs nothing where it is off

            self._worker.spool = Keeper(self._worker, settings, name=self.id.hex())
        lane = self._lanes["observation"]
        self._series = lane.table.current
        for declared in self._declared.values():
            declared.bind(lane.table, lane.buffer)

    def _switch_off(self) -> None:
        """Cost next to nothing."""
        self.observe = _no_observation  # type: ignore[method-assign]
        self.profile = _nothing  # type: ignore[method-assign]
        self.section = _no_section  # type: ignore[method-assign]
        self.timed = _not_timed  # type: ignore[method-assign]
        self.series = _no_series  # type: ignore[method-assign]
        self.log = _nothing  # type: ignore[method-assign]
        self.write = _nothing  # type: ignore[method-assign]
        self.update = _nothing  # type: ignore[method-assign]

    def _run(
        self,
        state: Literal["start", "update", "end"],
        *,
        config: Mapping[str, Any] | None = None,
        status: Literal["finished", "crashed"] | None = None,
    ) -> None:
        buffer = self._lanes["run"].buffer
        try:
            event = Run(
                ts=self._clock.now(),
                state=state,
                config=save(config, self._bad, what="config"),
                project=self.origin.project,
                name=self._name,
                group=self.origin.group,
                job_type=self.origin.job_type,
                status=status,
            )
            buffer.put(_encode(event))
        except Exception:  # values may be anybody's objects
            buffer.dropped.add(MALFORMED)

    def _observe(self, name: Any, fields: Any, step: Any, ts: Any, tags: Any) -> None:
        """Emit an observation that is new, or odd: as far as it can be encoded."""
        lane = self._lanes["observation"]
        try:
            if "torch" in sys.modules and any(_on_device(value) for value in fields.values()):
                self._observe_device(name, fields, step, self._time(ts), tags)
                return
            step = self._step(step)
            ts = self._time(ts)
            try:
                event = lane.table.encode(name, fields, step=step, ts=ts, tags=tags)
            except Exception:  # values may be anybody's objects
                if not isinstance(fields, Mapping):
                    raise
                good = save(fields, self._bad)
                marks = save(tags, self._bad, what="tags")
                event = lane.table.encode(text(name), good, step=step, ts=ts, tags=marks)
            lane.buffer.put(event)
        except Exception:  # values may be anybody's objects
            lane.buffer.dropped.add(MALFORMED)

    def _observe_device(self, name: Any, fields: Any, step: Any, ts: int, tags: Any) -> None:
        """Emit an observation with values on a GPU, when they are here."""
        from mlops_events.producers.scalars import Capture, Captured

        worker = self._worker
        if worker.capture is None:
            worker.capture = Capture(bad=self._bad, wake=worker.wake)
        marks = None if tags is None else dict(tags)
        left = worker.capture.take(Captured(name, dict(fields), step, ts, marks))
        if left is not None:
            self._observe(left.name, left.fields, left.step, left.ts, left.tags)

    def _observe_odd(self, name: str, fields: Any, step: Any, tags: Any) -> None:
        self._observe(name, fields, step, None, tags)

    def _collect(self) -> "Collectors | None":
        """Start the collectors, once; not when this ends."""
        from mlops_events.producers.collectors.series import Collectors

        with self._lock:
            if self._collectors is None and not self._ending:
                self._collectors = Collectors(
                    self, every_s=self._settings.collect_s, system=self._system, gpu=self._gpu
                )
                self._collectors.start()
            return self._collectors

    def _time(self, ts: Any) -> int:
        given = whole(ts, "ts", self._bad)
        return self._clock.now() if given is None else given

    def _step(self, step: Any) -> int | None:
        return whole(step, "step", self._bad)


class _Nowhere:
    """The transport of an emitter that is off: it is never opened."""

    async def open(self) -> None:
        pass

    async def send(self, record: OutRecord) -> None:
        pass

    async def close(self, timeout_s: float) -> None:
        pass


_NOTHING = nullcontext()


def _no_observation(
    name: str,
    fields: Mapping[str, Any],
    *,
    step: int | None = None,
    ts: int | None = None,
    tags: Mapping[str, Any] | None = None,
) -> None:
    pass


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _no_section(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return _NOTHING


def _on_device(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True


def _not_timed(*_: Any, **__: Any) -> Callable[[F], F]:
    return lambda function: function


def _no_series(*_: Any, **__: Any) -> Any:
    return _nothing


def _is_crash(error: BaseException | None) -> bool:
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None


def _warn_off() -> None:
    import logging

    logging.getLogger(__name__).warning(
        "no Kafka brokers are set, so no events are sent; set MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT,"
        " or MLOPS_EVENTS_DISABLED=1 to say nothing"
    )
