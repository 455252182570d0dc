"""Deaths of stream workers under load: every window is the true one, every frame comes through.

The run of three workers takes longer if the environment says so, and reports if pytest shows it:

    CHAOS_FAULTS=60 CHAOS_SESSION_S=30 CHAOS_KINDS="kill kill kill term" \
        pytest -s --timeout 0 tests/chaos -k by_schedule

CHAOS_KINDS are taken in turns; CHAOS_STATIC=0 gives the workers no instance ids, CHAOS_SEED another
order and other moments, CHAOS_EVERY_S the seconds between two faults.
"""

import asyncio
import os
import signal
import statistics
import sys
from collections import Counter, defaultdict
from typing import Any

from mlops_events.schemas.settings import KafkaSettings

FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
EVERY_S = float(os.environ.get("CHAOS_EVERY_S", "3"))
SESSION_S = float(os.environ.get("CHAOS_SESSION_S", "6"))
KINDS = os.environ.get("CHAOS_KINDS", "kill kill term kill stop").split()
STATIC = os.environ.get("CHAOS_STATIC", "1") == "1"
SEED = int(os.environ.get("CHAOS_SEED", "1"))
AWAY_S = float(os.environ.get("CHAOS_AWAY_S", "12"))
DEATHS = 6
FAULTY_S = 15.0


async def strike(worker: Any, kind: str) -> None:
    """Do something bad to a worker: "kill", "term", or "stop" for longer than its session."""
    if kind != "stop":
        worker.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        return
    worker.signal(signal.SIGSTOP)
    await asyncio.sleep(SESSION_S + 2)
    worker.signal(signal.SIGCONT)


async def test_windows_stay_true_while_three_workers_die_by_schedule(fleet: Any) -> None:
    """On Kafka, members that a supervisor starts again: kill -9, SIGTERM, SIGSTOP for too long."""
    chance, struck = fleet.chance, []
    chance.seed(SEED)
    names = ["w0", "w1", "w2"]
    for name in names:
        fleet.start(name, INSTANCE=name if STATIC else "", SESSION_S=str(SESSION_S))
    async with fleet.supervised():
        async with fleet.loaded():
            await fleet.running()
            for i in range(FAULTS):
                await asyncio.sleep(chance.uniform(0.5, 1.5) * EVERY_S)
                kind = KINDS[i % len(KINDS)]
                struck.append((fleet.now(), kind))
                await strike(fleet.workers[chance.choice(names)], kind)
            await asyncio.sleep(EVERY_S)
        await fleet.complete()
    account = await fleet.check()

    ends = [*(at for at, _ in struck[1:]), fleet.now()]
    waits = await fleet.waits()
    longest: defaultdict[str, list[float]] = defaultdict(list)
    for (at, kind), end in zip(struck, ends, strict=True):
        longest[kind].append(max(wait for came, wait in waits if at - 0.5 < came < end))
    report = [f"{account}", f"exits {Counter(fleet.exits)}"]
    for kind, waited in longest.items():
        report.append(
            f"{kind}: {len(waited)} times; the longest wait of a frame after it: "
            f"median {statistics.median(waited):.1f} s, most {max(waited):.1f} s"
        )
    sys.stdout.write("\n".join(["", *report, ""]))
    assert {code for _, code in fleet.exits} <= {-signal.SIGKILL, -signal.SIGTERM, 0, 1}


async def test_windows_stay_true_while_workers_die_around_their_checkpoints(fleet: Any) -> None:
    """Between outputs, checkpoint and commit, again and again."""
    for name in ("w0", "w1"):
        fleet.start(name, INSTANCE=name, DIE="0.1")
    async with fleet.supervised():
        async with fleet.loaded():
            await asyncio.sleep(FAULTY_S)
        for name in ("w0", "w1"):
            fleet.workers[name].kill()
            fleet.start(name, INSTANCE=name)
        await fleet.complete()
    await fleet.check()

    assert {code for _, code in fleet.exits} == {9}


async def test_windows_stay_true_while_worker_and_embedded_broker_die(
    embedded_broker: Any, prefix: str, fleet_on: Any
) -> None:
    """On the broker of the local mode: kill -9 of the one worker, and of the broker too."""
    kafka = KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True)
    fleet = await fleet_on(kafka)
    fleet.start("w0")
    async with fleet.loaded():
        for kill in range(DEATHS):
            await asyncio.sleep(fleet.chance.uniform(2, 5))
            if kill % 2:
                await asyncio.to_thread(embedded_broker.kill)
                await asyncio.to_thread(embedded_broker.start)
            assert fleet.workers["w0"].poll() is None, fleet.workers["w0"].stderr()
            fleet.workers["w0"].kill()
            fleet.restart("w0")
    await fleet.check()


async def test_windows_stay_true_while_batches_are_dropped_and_doubled(fleet: Any) -> None:
    """Faust loses one batch in forty and delivers another twice: the guard notices each."""
    fleet.start("w0", FAULTS="0.05")
    async with fleet.loaded():
        await asyncio.sleep(FAULTY_S)
    (guard,) = (await fleet.check()).guards

    assert guard["repeated"] > 0
    assert guard["holes"] > 0
    assert guard["healed"] == guard["holes"]
    assert guard["missing"] == 0


async def test_a_skipped_tail_is_read_again(fleet: Any) -> None:
    """Faust loses all there is, and nothing follows that would betray it: the log's end does."""
    async with fleet.loaded():
        pass
    fleet.start("w0", LOSE_FOR_S="3")
    (guard,) = (await fleet.check()).guards

    assert guard["nudges"] > 0
    assert guard["holes"] == 0


async def test_windows_stay_true_while_kafka_is_away(
    kafka_broker: Any, prefix: str, fleet_on: Any
) -> None:
    """Kafka dies under load, and with it what is being sent and committed: workers wait."""
    fleet = await fleet_on(KafkaSettings(brokers=kafka_broker.address, prefix=prefix))
    for name in ("w0", "w1"):
        fleet.start(name, MLOPS_EVENTS_STREAM_CHECKPOINT_S="0.1")
    async with fleet.loaded():
        await fleet.running()
        await asyncio.sleep(3)
        loads = [worker.stderr().count("partitions loaded") for worker in fleet.workers.values()]
        await asyncio.to_thread(kafka_broker.kill)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(kafka_broker.start)
        await asyncio.sleep(3)
    await fleet.complete()  # when the first of them is stopped the other one loads its partitions
    after = [worker.stderr().count("partitions loaded") for worker in fleet.workers.values()]
    await fleet.check()

    assert after == loads


async def test_windows_stay_true_when_a_stopped_worker_of_the_embedded_broker_wakes_up(
    embedded_broker: Any, prefix: str, fleet_on: Any
) -> None:
    """Two workers, one stopped for longer than its session: a zombie's outputs do no harm."""
    kafka = KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True)
    fleet = await fleet_on(kafka)
    for name in ("w0", "w1"):
        fleet.start(name)
    async with fleet.loaded():
        await asyncio.sleep(5)
        for name in ("w0", "w1"):
            fleet.workers[name].signal(signal.SIGSTOP)
            await asyncio.sleep(5)
            fleet.workers[name].signal(signal.SIGCONT)
            await asyncio.sleep(4)
    await fleet.check()
