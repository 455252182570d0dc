"""Emitters in host programs of every kind, each in a process of its own, on a real Kafka.

`tests/producers/test_host.py` has more of them without a broker: exit with a broker that hangs, a
plain fork, emitting in a signal handler and after close. Two seconds are all that a program has at
its end, and a busy machine needs them for the first connection alone: programs here flush once before.
"""

import asyncio
import signal
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from mlops_events.control.topics import create_topics
from mlops_events.schemas.events import Observation, Run
from mlops_events.schemas.frame import Frame, decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs

START = """
import asyncio, multiprocessing, os, signal, subprocess, sys, threading, time
from mlops_events.producers import Emitter
"""

# Ctrl-C, where a shell may have had signals of its background jobs ignored
INTERRUPT = "signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), 2); time.sleep(60)"


class Told:
    """What a run's processes sent."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = sorted(frames, key=lambda frame: (frame.kind, frame.emitter, frame.seq))

    def values(self) -> list[int]:
        """The values of all observations, sorted."""
        return sorted(
            event.fields["i"]
            for frame in self.frames
            for _, event in frame.events()
            if isinstance(event, Observation)
        )

    def emitters(self) -> dict[str, list[int]]:
        """The values that each emitter sent, by its id, in their order."""
        found: dict[str, list[int]] = {}
        for frame in self.frames:
            for _, event in frame.events():
                if isinstance(event, Observation):
                    found.setdefault(frame.emitter.hex(), []).append(event.fields["i"])
        return found

    def states(self) -> list[str]:
        """What was said of the run: start, and finished or crashed."""
        return [
            event.status or event.state
            for frame in self.frames
            for _, event in frame.events()
            if isinstance(event, Run)
        ]


class Host:
    """Runs programs that emit into topics of this module, and reads what arrived."""

    def __init__(self, kafka: KafkaSettings, processes: Any, folder: Path) -> None:
        self._kafka = kafka
        self._processes = processes
        self._folder = folder
        self.run = f"run-{uuid.uuid4().hex[:8]}"
        self.spool = folder / "spool"

    def start(
        self,
        body: str,
        *arguments: object,
        spool: bool = False,
        reachable: bool = True,
        python: tuple[str, ...] = (),
        stdin: str | None = None,
        **environ: str,
    ) -> Any:
        """Start a program; a body for Python to read from standard input is given there."""
        brokers = self._kafka.brokers if reachable else "127.0.0.1:1"
        env = {
            "MLOPS_EVENTS_KAFKA_BROKERS": brokers,
            "MLOPS_EVENTS_KAFKA_PREFIX": self._kafka.prefix,
            "MLOPS_EVENTS_RUN_ID": self.run,
            "MLOPS_EVENTS_LINGER_S": "0.1",
            # Python 3.12 and newer warn of a fork beside a thread, and an emitter has one
            "PYTHONWARNINGS": "ignore::DeprecationWarning",
            **environ,
        }
        if spool:
            env["MLOPS_EVENTS_SPOOL_DIR"] = str(self.spool)
        program = self._folder / f"program-{uuid.uuid4().hex[:8]}.py"
        program.write_text(START + textwrap.dedent(body))
        given = () if stdin is not None else (program, *arguments)
        return self._processes.start(sys.executable, *python, *given, env=env, stdin=stdin)

    async def told(self) -> Told:
        """Return what this run's processes sent."""
        options = self._kafka.client_options()
        consumer = AIOKafkaConsumer(**options, enable_auto_commit=False)
        await consumer.start()
        try:
            places = [TopicPartition(topic, 0) for topic in self._kafka.topics.raws]
            consumer.assign(places)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(places)
            found = []
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [decode_frame(record.value) for record in records]
        finally:
            await consumer.stop()
        return Told([frame for frame in found if frame.origin.run == self.run])


@pytest.fixture(scope="module")
def topics(kafka: str) -> KafkaSettings:
    """Create the topics of this module; every test has a run of its own in them."""
    settings = KafkaSettings(
        brokers=kafka, prefix=f"test.{uuid.uuid4().hex[:12]}", partitions=1, replication=1
    )
    specs = topic_specs(settings.topics, sinks=[], partitions=1, replication=1)
    asyncio.run(create_topics(settings, specs))
    return settings


@pytest.fixture
def host(topics: KafkaSettings, processes: Any, tmp_path: Path) -> Host:
    """Return what runs programs and reads what they sent."""
    return Host(topics, processes, tmp_path)


@pytest.mark.parametrize("spool", [False, True])
@pytest.mark.parametrize(
    ("ending", "code", "state"),
    [
        ("", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("sys.exit(3)", 3, "finished"),
        ("raise ValueError('training failed')", 1, "crashed"),
        (INTERRUPT, -signal.SIGINT, "crashed"),
    ],
)
async def test_a_program_may_end_without_a_word(
    host: Host, ending: str, code: int, state: str, spool: bool
) -> None:
    """Everything arrives, and the run's end says whether an exception ended it."""
    program = host.start(
        f"""
        events = Emitter()
        for i in range(2000):
            events.observe("a", {{"i": i}})
        assert events.flush(60)
        for i in range(2000, 2100):
            events.observe("a", {{"i": i}})
        {ending}
        """,
        spool=spool,
    )

    assert program.wait() == code, program.stderr()
    told = await host.told()
    assert told.values() == list(range(2100))
    assert told.states() == ["start", state]


async def test_an_event_loop_goes_on_while_an_emitter_closes(host: Host) -> None:
    """`async with` awaits `aclose`."""
    program = host.start(
        """
        async def main():
            turns = 0

            async def tick():
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            ticking = asyncio.create_task(tick())
            async with Emitter() as events:
                await asyncio.gather(*(emit(events, i) for i in range(100)))
                before = turns
            print(turns - before)
            ticking.cancel()

        async def emit(events, i):
            events.observe("a", {"i": i})

        asyncio.run(main())
        """
    )

    assert program.wait() == 0, program.stderr()
    assert int(program.stdout()) > 0
    told = await host.told()
    assert told.values() == list(range(100))
    assert told.states() == ["start", "finished"]


async def test_a_mistake_at_a_prompt_is_no_crash(host: Host) -> None:
    """A notebook or a prompt prints the error and goes on, so the run does."""
    prompt = host.start(
        "",
        python=("-i",),
        stdin="from mlops_events.producers import Emitter\n"
        "events = Emitter()\n"
        "events.observe('a', {'i': 1})\n"
        "events.flush(60)\n"
        "1 / 0\n"
        "events.observe('a', {'i': 2})\n",
    )

    assert prompt.wait() == 0
    assert "ZeroDivisionError" in prompt.stderr()
    told = await host.told()
    assert told.values() == [1, 2]
    assert told.states() == ["start", "finished"]


@pytest.mark.parametrize("spool", [False, True])
async def test_workers_of_a_server_that_forks_them_are_emitters_of_their_own(
    host: Host, spool: bool
) -> None:
    """The master has an emitter before it forks; workers end at SIGTERM as gunicorn's do."""
    server = host.start(
        """
        events = Emitter(role="server")
        events.observe("a", {"i": 0})
        ready, written = os.pipe()

        def work(number):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            for i in range(99):
                events.observe("a", {"i": number * 1000 + i})
            assert events.flush(60)
            events.observe("a", {"i": number * 1000 + 99})
            os.write(written, b"x")
            while True:
                signal.pause()

        workers = []
        for number in (1, 2, 3):
            pid = os.fork()
            if not pid:
                work(number)
            workers.append(pid)
        for _ in workers:
            os.read(ready, 1)
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        events.observe("a", {"i": 1})
        print(codes)
        """,
        spool=spool,
    )

    assert server.wait() == 0, server.stderr()
    assert server.stdout().strip() == "[0, 0, 0]", server.stderr()
    told = await host.told()
    expected = [[0, 1], *([n * 1000 + i for i in range(100)] for n in (1, 2, 3))]
    assert sorted(told.emitters().values()) == expected
    assert told.states() == ["start", "finished"]


async def test_ranks_of_a_process_group_tell_their_rank(host: Host) -> None:
    """torchrun starts a process for each, with RANK and WORLD_SIZE."""
    body = """
        rank = int(os.environ["RANK"])
        with Emitter(role="trainer", announce=rank == 0) as events:
            for i in range(50):
                events.observe("a", {"i": rank * 1000 + i}, step=i)
        """
    ranks = [host.start(body, RANK=str(rank), WORLD_SIZE="3") for rank in range(3)]

    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    told = await host.told()
    origins = {(frame.origin.rank, frame.origin.world_size, frame.emitter) for frame in told.frames}
    assert sorted(origin[:2] for origin in origins) == [(0, 3), (1, 3), (2, 3)]
    assert told.values() == [rank * 1000 + i for rank in range(3) for i in range(50)]
    assert told.states() == ["start", "finished"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_workers_that_load_data_send_what_they_have(host: Host, method: str) -> None:
    """multiprocessing ends its children without exit functions; they are daemons, as torch's are."""
    program = host.start(
        f"""
        events = None

        def work(number, tasks, results):
            global events
            if events is None:  # of another process by spawn; a forked one has its parent's
                events = Emitter(role="loader", announce=False)
            while (task := tasks.get()) is not None:
                events.observe("a", {{"i": task}})
                if task < 90:  # what comes later is left for the end
                    assert events.flush(60)
                results.put(task)

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            events = Emitter(role="trainer")
            tasks, results = context.Queue(), context.Queue()
            workers = [
                context.Process(target=work, args=(n, tasks, results), daemon=True)
                for n in range(2)
            ]
            for worker in workers:
                worker.start()
            for i in range(100):
                tasks.put(i)
            for i in range(100):
                events.observe("a", {{"i": 1000 + results.get()}})
            for worker in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()
            print([worker.exitcode for worker in workers])
        """
    )

    assert program.wait() == 0, program.stderr()
    assert program.stdout().strip() == "[0, 0]", program.stderr()
    told = await host.told()
    assert told.values() == [*range(100), *range(1000, 1100)]
    assert told.states() == ["start", "finished"]


@pytest.mark.parametrize("spool", [False, True])
async def test_os_exit_loses_only_what_was_not_sent(host: Host, spool: bool) -> None:
    """Nobody is told of it; the run has no end."""
    program = host.start(
        """
        events = Emitter()
        for i in range(100):
            events.observe("a", {"i": i})
        assert events.flush(60)
        os._exit(7)
        """,
        spool=spool,
    )

    assert program.wait() == 7
    told = await host.told()
    assert told.values() == list(range(100))
    assert told.states() == ["start"]


@pytest.mark.parametrize("ending", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGTERM)"])
async def test_what_is_in_the_spool_survives_a_sudden_end(host: Host, ending: str) -> None:
    """The next program sends it, under its old id."""
    program = host.start(
        f"""
        events = Emitter()
        for i in range(100):
            events.observe("a", {{"i": i}})
        while events.stats().spooled < 101:  # all of them, and the run's start
            time.sleep(0.01)
        {ending}
        """,
        spool=True,
        reachable=False,
    )
    assert program.wait() in (7, -signal.SIGTERM)
    after = host.start(
        """
        from glob import glob
        events = Emitter(announce=False)
        events.observe("a", {"i": 1000})
        spool = os.environ["MLOPS_EVENTS_SPOOL_DIR"]
        while glob("**/*.seg", root_dir=spool, recursive=True, include_hidden=True):
            time.sleep(0.01)
        """,
        spool=True,
    )

    assert after.wait() == 0, after.stderr()
    told = await host.told()
    assert sorted(told.emitters().values()) == [list(range(100)), [1000]]
    assert told.states() == ["start"]


async def test_threads_may_emit_until_the_interpreter_is_gone(host: Host) -> None:
    """Threads that the interpreter waits for send all they have, daemons do no harm."""
    program = host.start(
        """
        events = Emitter()

        def work(first):
            for i in range(first, first + 1000):
                events.observe("a", {"i": i})
                if not i % 100:
                    time.sleep(0.01)

        def for_ever():
            while True:
                events.log("info", "still here")
                time.sleep(0.001)

        events.observe("a", {"i": -1})
        assert events.flush(60)
        threading.Thread(target=for_ever, daemon=True).start()
        for first in (0, 1000, 2000):
            threading.Thread(target=work, args=(first,)).start()
        """
    )

    assert (program.wait(), program.stderr()) == (0, "")
    told = await host.told()
    assert told.values() == list(range(-1, 3000))
    assert told.states() == ["start", "finished"]


async def test_two_emitters_of_a_process_do_not_mix(host: Host) -> None:
    """Each has its origin, and both are closed at exit."""
    program = host.start(
        """
        miner, judge = Emitter(role="miner", uid=1), Emitter(role="validator", uid=2)
        for i in range(100):
            miner.observe("a", {"i": i})
            judge.observe("a", {"i": 1000 + i})
            if i == 50:
                assert miner.flush(60)
                assert judge.flush(60)
        """
    )

    assert program.wait() == 0
    told = await host.told()
    assert sorted(told.emitters().values()) == [list(range(100)), list(range(1000, 1100))]
    for frame in told.frames:
        own = {e.fields["i"] < 1000 for _, e in frame.events() if isinstance(e, Observation)}
        assert own in (set(), {frame.origin.role == "miner"})
    assert told.states() == ["start", "finished"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_hosts_own_signal_handlers_work(host: Host, until: Any, number: int) -> None:
    """The program stops its loop at the signal, and ends as it wants."""
    program = host.start(
        f"""
        stop = threading.Event()
        signal.signal({int(number)}, lambda *_: stop.set())
        events = Emitter()
        events.observe("a", {{"i": 0}})
        assert events.flush(60)
        print("ready", flush=True)
        while not stop.wait(0.01):
            pass
        events.observe("a", {{"i": 1}})
        sys.exit(5)
        """
    )
    await until(lambda: "ready" in program.stdout())
    program.signal(number)

    assert program.wait() == 5
    told = await host.told()
    assert told.values() == [0, 1]
    assert told.states() == ["start", "finished"]


async def test_sigterm_without_a_handler_ends_the_program_at_once(host: Host, until: Any) -> None:
    """As Python does; what was sent before is there, and the run has no end."""
    program = host.start(
        """
        events = Emitter()
        events.observe("a", {"i": 0})
        assert events.flush(60)
        print("ready", flush=True)
        while True:
            signal.pause()
        """
    )
    await until(lambda: "ready" in program.stdout())
    program.signal(signal.SIGTERM)

    assert program.wait() == -signal.SIGTERM
    told = await host.told()
    assert told.values() == [0]
    assert told.states() == ["start"]
