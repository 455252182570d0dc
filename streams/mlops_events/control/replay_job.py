"""A replay as a command: from its settings and its saved state to its closing account."""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from aiokafka.errors import KafkaError

from mlops_events.control.replay import Moment, Portions, Replay
from mlops_events.control.replay_fold import Plan, ReplayFold
from mlops_events.control.replay_limit import check_until
from mlops_events.control.replay_request import ReplayRequest, taken_kinds
from mlops_events.control.replay_sources import check_sources, find_partitions, find_sources
from mlops_events.control.replay_state import ReplayState, StateFile, shown_command
from mlops_events.control.replay_writer import DryRun, ReplayWriter
from mlops_events.schemas.errors import ConfigError, MlopsEventsError
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.sinks.base import ReplaySink, SinkError, load_sink
from mlops_events.sinks.intake import DeliverSettings
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import LogReader, TopicPartition
from mlops_events.streams.settings import StreamSettings

__all__ = ["Job", "ReplayError", "run_job"]

_SHOW_S: Final = 0.5
_GRACE_S: Final = 5.0
"""How long the batch in hand may take after Ctrl-C."""


class ReplayError(MlopsEventsError):
    """A replay came to an end before its time."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run.

    `command` is what was typed: going on is refused with another one. `request` is what it comes
    to now; the one that was saved counts when going on.
    """

    command: dict[str, str]
    request: ReplayRequest
    kafka: KafkaSettings
    stream: StreamSettings
    deliver: DeliverSettings
    path: Path
    resume: bool
    rate: float


async def run_job(job: Job, show: Callable[[Moment], None]) -> ReplayState:
    """Run a replay until it is done, or until SIGINT or SIGTERM.

    Args:
        job: what is to be run.
        show: called with how far it is, twice a second.

    Returns:
        Its state; not `done` if it was stopped.

    Raises:
        ConfigError: it cannot be run as things are.
        StillOpenError: the stream has windows of the range open.
        ReplayError: something failed; the state lets it go on.
    """
    file = StateFile(job.path)
    try:
        state = _begin(job, file)
        if not state.done:
            await _run(job, state, file, show)
        return state
    finally:
        file.close()


def _begin(job: Job, file: StateFile) -> ReplayState:
    """Return the state to begin with: a new one, or what was saved.

    Raises:
        ConfigError: there is nothing to go on with, or that is another replay.
    """
    saved = file.read()
    by = [rule.label for rule in job.stream.rules]
    if not job.resume:
        number = saved.number + 1 if saved is not None else 1
        return ReplayState(command=job.command, number=number, request=job.request, by=by)
    if saved is None:
        others = "".join(f"\n  replay {shown_command(s.command)}" for s in file.others())
        raise ConfigError(
            f"nothing to resume: no replay with these options was begun ({file.path} is missing)"
            + (f"; unfinished ones:{others}" if others else "")
        )
    if saved.command != job.command:
        raise ConfigError(
            f"{file.path} is the state of another replay: {shown_command(saved.command)}; "
            "go on with just these options, or begin anew without --resume"
        )
    if saved.by != by:
        raise ConfigError(
            f"the replay has windows by {', '.join(saved.by)}, the settings say {', '.join(by)}; "
            "set MLOPS_EVENTS_STREAM_BY back, or begin anew without --resume"
        )
    return saved


async def _run(
    job: Job, state: ReplayState, file: StateFile, show: Callable[[Moment], None]
) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    running = asyncio.ensure_future(_replay(job, state, file, show, stop))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    done, _ = await asyncio.wait({running}, timeout=_GRACE_S if stop.is_set() else None)
    if not done:  # what was saved last stands
        running.cancel()
        await asyncio.wait({running})
    if running.cancelled():
        return
    try:
        running.result()
    except (KafkaError, TimeoutError) as error:
        raise ReplayError(f"Kafka failed: {error!r}; go on with --resume") from error
    except SinkError as error:
        raise ReplayError(f"{error}; go on with --resume") from error
    except OSError as error:
        raise ReplayError(f"the state cannot be saved: {error}") from error


async def _replay(
    job: Job,
    state: ReplayState,
    file: StateFile,
    show: Callable[[Moment], None],
    stop: asyncio.Event,
) -> None:
    kinds = taken_kinds(state.request.sink, job.stream, asked=state.request.kinds)
    writer = _writer(job, state)
    partitions = await find_partitions(job.kafka, state.request.sources)
    async with open_reader(job.kafka) as reader:
        await _find(job, state, reader, partitions)
        plan = Plan(state.request, kinds, job.stream.rules, job.stream.tags, state.still_open)
        folds = [ReplayFold(source, plan, state.account) for source in state.sources]
        try:
            await writer.open()
            replay = Replay(
                state,
                folds,
                writer,
                save=file.write,
                portions=Portions(job.deliver.max_events, job.deliver.max_bytes, job.rate),
                clock=time.monotonic,
                now_ms=lambda: time.time_ns() // 1_000_000,
                stop=stop,
            )
            showing = asyncio.ensure_future(_show(replay, show))
            try:
                await replay.run(reader)
            finally:
                showing.cancel()
                show(replay.moment())
        finally:
            await writer.close()


async def _find(
    job: Job, state: ReplayState, reader: LogReader, partitions: list[TopicPartition]
) -> None:
    """Find out what is to be read, or whether what is left still is there."""
    logs = await reader.bounds(partitions)
    if state.sources:
        check_sources(state.sources, logs, state.account)
        return
    await check_until(
        reader, job.kafka, job.stream, state.request, logs=logs, now_ns=time.time_ns()
    )
    state.sources = await find_sources(reader, job.kafka, state.request, logs)


def _writer(job: Job, state: ReplayState) -> ReplayWriter | DryRun:
    """Return where the records go.

    Raises:
        ConfigError: there is no such sink, or nothing can be replayed into it.
    """
    sink = load_sink(state.request.sink)
    if isinstance(sink, ReplaySink):
        sink.expect_replay(state.id)
    if state.request.dry_run:
        return DryRun()
    return ReplayWriter(
        sink,
        job.kafka,
        replay=state.id,
        timeout_s=job.deliver.write_timeout_s,
        draw=random.random,
    )


async def _show(replay: Replay, show: Callable[[Moment], None]) -> None:
    while True:
        show(replay.moment())
        await asyncio.sleep(_SHOW_S)


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
