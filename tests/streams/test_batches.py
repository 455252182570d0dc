"""The contract with Faust and aiokafka that `batches` and `app` rest on; no broker needed."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faust
import faust.channels
import faust.transport.consumer
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.structs import ConsumerRecord
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from mlops_events.streams.batches import (
    MAX_RECORDS,
    SETTINGS,
    Batch,
    BatchApp,
    BatchScheduler,
    BatchSchema,
    BlockingQueue,
)


def record(offset: int, partition: int = 0) -> ConsumerRecord:
    """Return a record as aiokafka hands it out."""
    return ConsumerRecord(
        "t", partition, offset, 1000 + offset, 0, None, b"%d" % offset, None, -1, 1, ()
    )


@pytest.fixture
def make_app(tmp_path: Path) -> Iterator[Callable[[], BatchApp]]:
    """Yield a maker of apps that never meet a broker; to be called inside the test's loop."""
    made: list[Any] = []

    def make() -> BatchApp:
        app = BatchApp(
            "contract",
            broker="kafka://127.0.0.1:1",
            store="memory://",
            web_enabled=False,
            datadir=str(tmp_path),
            **SETTINGS,
        )
        made.append(app)
        return app

    yield make
    for app in made:
        if app._consumer is not None:
            app._consumer._thread.thread_loop.close()


def test_the_pinned_faust_is_installed() -> None:
    """The private names in use were read in this version."""
    assert faust.__version__ == "0.15.3"


async def test_both_settings_take_effect(make_app: Callable[[], BatchApp]) -> None:
    """Faust takes the scheduler, the schema and the queue from where they are given."""
    app = make_app()

    assert app.conf.ConsumerScheduler is BatchScheduler
    assert app.conf.Schema is BatchSchema
    assert isinstance(app.FlowControlQueue(maxsize=4), BlockingQueue)
    queue = inspect.getsource(faust.channels.Channel.queue.fget)  # type: ignore[arg-type]
    assert "self.app.FlowControlQueue(" in queue


def test_faust_hands_the_whole_poll_to_the_scheduler() -> None:
    """`Consumer.getmany` still asks the scheduler what becomes a message."""
    source = inspect.getsource(faust.transport.consumer.Consumer.getmany)

    assert "self.scheduler.iterate(records)" in source
    assert "to_message(tp, record)" in source


def test_the_consumer_thread_can_be_reached() -> None:
    """Commits and look-ups go through `app.consumer._thread._consumer`, one setting into its fetcher."""
    delegate = inspect.getsource(faust.transport.consumer.ThreadDelegateConsumer.__init__)

    assert "self._thread = " in delegate
    assert "self._consumer" in inspect.getsource(AIOKafkaConsumerThread._ensure_consumer)
    assert callable(AIOKafkaConsumerThread.call_thread)
    assert "_fetch_max_wait_ms," in inspect.getsource(Fetcher._get_actions_per_node)
    assert "self._fetcher = Fetcher(" in inspect.getsource(AIOKafkaConsumer.start)
    assert "self._coordinator = GroupCoordinator(" in inspect.getsource(AIOKafkaConsumer.start)
    assert callable(AIOKafkaConsumer.commit)
    assert callable(AIOKafkaConsumer.assignment)


def test_the_errors_of_the_group_are_kept_where_they_are_looked_for() -> None:
    """A member that is unknown resets its generation, and any error waits as `_pending_exception`."""
    made = inspect.getsource(GroupCoordinator.__init__)
    heartbeat = inspect.getsource(GroupCoordinator._do_heartbeat)

    assert "self._group_instance_id = group_instance_id" in made
    assert "self._closing = create_future()" in made
    assert "UnknownMemberIdError" in heartbeat
    assert "self.reset_generation()" in heartbeat
    assert "self._pending_exception = exc" in inspect.getsource(
        GroupCoordinator._push_error_to_user
    )


def test_runs_take_turns_and_lose_nothing() -> None:
    """A poll becomes runs of at most 2,000 records, the partitions one after the other."""
    polls = {
        TP("t", 0): [record(i) for i in range(4500)],
        TP("t", 1): [record(i, 1) for i in range(10)],
    }

    got = list(BatchScheduler().iterate(polls))

    assert [(tp.partition, r.offset, len(r.value)) for tp, r in got] == [
        (0, 0, MAX_RECORDS),
        (1, 0, 10),
        (0, 2000, MAX_RECORDS),
        (0, 4000, 500),
    ]


async def test_a_poll_goes_through_faust_as_batches(make_app: Callable[[], BatchApp]) -> None:
    """The real getmany, conductor and stream deliver 4,500 records as three untracked events."""
    app = make_app()
    topic = app.topic("t", acks=False)
    app.finalize()
    consumer: Any = app.consumer
    app.flow_control.resume()
    consumer.resume_flow()

    async def poll(_: float) -> tuple[dict[TP, list[ConsumerRecord]], set[TP]]:
        return {TP("t", 0): [record(i) for i in range(5, 4505)]}, {TP("t", 0)}

    consumer._wait_next_records = poll
    consumer.highwater = lambda tp: 0
    channel: Any = topic.clone(is_iterator=True)
    handler = app.topics._build_handler(TP("t", 0), {channel})  # type: ignore[attr-defined]
    messages = []
    async with asyncio.timeout(20):
        async for _, message in consumer.getmany(timeout=1):
            await handler(message)
            messages.append(message)
        seen: list[Batch] = []
        async for batch in app.stream(channel):
            seen.append(batch)
            if len(seen) == 3:
                break

    assert [(b.tp, b.records[0].offset, len(b)) for b in seen] == [
        (TP("t", 0), 5, 2000),
        (TP("t", 0), 2005, 2000),
        (TP("t", 0), 4005, 500),
    ]
    assert [m.offset for m in messages] == [5, 2005, 4005]
    assert not any(m.tracked for m in messages)
    assert {m.generation_id for m in messages} == {app.consumer_generation_id}


async def test_a_full_queue_blocks_and_pauses_nothing(make_app: Callable[[], BatchApp]) -> None:
    """Pressure is felt by the fetcher, never by a partition."""
    app = make_app()
    app.flow_control.resume()
    queue = app.FlowControlQueue(maxsize=2)
    pressure: list[str] = []
    for i in range(2):
        queue.put_nowait_enhanced(
            i,
            on_pressure_high=lambda: pressure.append("high"),
            on_pressure_drop=lambda: pressure.append("drop"),
        )

    putting = asyncio.ensure_future(queue.put(2))
    await asyncio.sleep(0)

    assert queue.full()
    assert not putting.done()
    assert not pressure
    assert await queue.get() == 0
    await putting
