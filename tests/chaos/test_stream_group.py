"""Workers of one group: who joins, stands by, hangs, or has a name that is taken."""

import asyncio
import os
import re
import signal
from typing import Any

from mlops_events.schemas.settings import KafkaSettings

SESSION = {"SESSION_S": "6"}  # seconds, the least that Kafka allows
STOPPED_S = 8.0


def held(worker: Any) -> int | None:
    """Return how many partitions a worker has loaded last, None if it never has."""
    found = re.findall(r"partitions loaded count=(\d+)", worker.stderr())
    return int(found[-1]) if found else None


async def test_workers_that_join_a_fresh_group_one_into_the_other(fleet: Any) -> None:
    """The group has no commits or commits of 0, there is much to read, and each join disturbs."""
    async with fleet.loaded():
        pass
    for name in ("w0", "w1", "w2", "w3"):
        fleet.start(name)
        await asyncio.sleep(fleet.chance.uniform(0.2, 1.2))
    account = await fleet.check()

    assert {guard["missing"] for guard in account.guards} == {0}


async def test_a_worker_without_partitions_stands_by(
    kafka: str, prefix: str, fleet_on: Any, until: Any
) -> None:
    """Five workers for four partitions: the fifth stays, and takes over when the others die."""
    fleet = await fleet_on(KafkaSettings(brokers=kafka, prefix=prefix), partitions=1)
    names = ["w0", "w1", "w2", "w3", "w4"]
    for name in names:
        fleet.start(name, **SESSION)
    async with fleet.loaded():
        await until(lambda: sorted(held(w) or 0 for w in fleet.workers.values()) == [0, 1, 1, 1, 1])
        await asyncio.sleep(10)
        idle = next(name for name in names if held(fleet.workers[name]) == 0)
        for name in names:
            if name != idle:
                fleet.workers.pop(name).kill()
        await until(lambda: held(fleet.workers[idle]) == 4)
    await fleet.check()


async def test_stopped_workers_wake_up_as_strangers(fleet: Any, until: Any) -> None:
    """SIGSTOP for longer than the session: one joins again, one with an instance id ends for that."""
    fleet.start("dynamic", **SESSION)
    fleet.start("static", INSTANCE="w0", **SESSION)
    fleet.start("other", **SESSION)
    sleepers = [fleet.workers[name] for name in ("dynamic", "static")]
    async with fleet.loaded():
        await until(lambda: all((held(w) or 16) < 16 for w in fleet.workers.values()))
        await asyncio.sleep(2)
        for worker in sleepers:
            worker.signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        assert held(fleet.workers["other"]) == 16
        for worker in sleepers:
            worker.signal(signal.SIGCONT)
        code = await fleet.exit_code(fleet.workers["static"])
        fleet.restart("static")
        await until(lambda: all((held(w) or 16) < 16 for w in fleet.workers.values()))
        await asyncio.sleep(2)
    await fleet.check()

    assert code == 1
    assert fleet.workers["dynamic"] is sleepers[0]


async def test_a_restart_under_the_same_name_disturbs_nobody(fleet: Any, until: Any) -> None:
    """kill -9 and a new start within the session: the others keep what they have, undisturbed."""
    for name in ("w0", "w1"):
        fleet.start(name, INSTANCE=name, SESSION_S="30")
    async with fleet.loaded():
        await until(lambda: [held(w) for w in fleet.workers.values()] == [8, 8])
        loads = fleet.workers["w1"].stderr().count("partitions loaded")
        fleet.workers["w0"].kill()
        fleet.restart("w0")
        await fleet.running("w0")
        await asyncio.sleep(2)
        again = held(fleet.workers["w0"])
    await fleet.check()

    assert again == 8
    assert fleet.workers["w1"].stderr().count("partitions loaded") == loads


async def test_two_workers_with_one_name_do_not_take_turns(fleet: Any) -> None:
    """The one that was there first ends with the reason; the other has the partitions."""
    first = fleet.start("first", INSTANCE="w0")
    async with fleet.loaded():
        await fleet.running("first")
        second = fleet.start("second", INSTANCE="w0")
        code = await fleet.exit_code(first)
        del fleet.workers["first"]
        await fleet.running("second")
        await asyncio.sleep(5)
    await fleet.check()

    assert code == 1
    assert "the group no longer knows this process as 'w0'" in first.stderr()
    assert len(first.stderr().splitlines()) < 300
    assert second.stderr().count("partitions loaded") == 1


async def test_a_worker_whose_loop_hangs_is_ended(fleet: Any) -> None:
    """Its heartbeats go on, so the group would wait for ever; the watchdog says where it hangs."""
    worker = fleet.start("w0", BLOCK_AFTER_S="6", HANG_S="3")
    fleet.start("w1")
    async with fleet.loaded():
        code = await fleet.exit_code(worker)
        fleet.start("w0")
        await asyncio.sleep(2)
    await fleet.check()

    assert code == 70
    assert "the event loop hangs" in worker.stderr()
    assert "Thread 0x" in worker.stderr()


async def test_a_worker_whose_broker_hangs_can_be_stopped(
    kafka_broker: Any, prefix: str, fleet_on: Any
) -> None:
    """Outputs, checkpoint and goodbye are never answered: it gives up, and its successor goes on."""
    fleet = await fleet_on(KafkaSettings(brokers=kafka_broker.address, prefix=prefix))
    broker = int((kafka_broker.folder / "kafka.pid").read_text())
    worker = fleet.start("w0", INSTANCE="w0")
    async with fleet.loaded():
        await fleet.running()
        await asyncio.sleep(2)
        os.kill(broker, signal.SIGSTOP)
        await asyncio.sleep(1)
        worker.signal(signal.SIGTERM)
        code = await fleet.exit_code(worker)
        os.kill(broker, signal.SIGCONT)
    fleet.restart("w0")
    await fleet.check()

    assert code == 0
    assert "no time left for a checkpoint" in worker.stderr()
