"""The transport in memory that users test with."""

import asyncio

import pytest

from mlops_events.producers import Emitter
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.transport import OutRecord, RecordRefusedError, TransportError

RECORD = OutRecord(topic="t", key=b"k", headers=[], value=b"v")


async def test_it_keeps_what_was_sent() -> None:
    """In order, and as it was."""
    transport = MemoryTransport()
    await transport.open()
    await transport.send(RECORD)

    assert transport.records == [RECORD]
    await transport.close(1)
    assert transport.closed


async def test_it_fails_as_often_as_it_was_told() -> None:
    """A failed attempt is remembered, but its record is not kept."""
    transport = MemoryTransport()
    await transport.open()
    transport.fail(1, error=RecordRefusedError("no"))

    with pytest.raises(RecordRefusedError, match="no"):
        await transport.send(RECORD)
    await transport.send(RECORD)
    assert (len(transport.attempts), len(transport.records)) == (2, 1)


async def test_it_fails_until_it_recovers() -> None:
    """Without a number it does not stop by itself."""
    transport = MemoryTransport()
    await transport.open()
    transport.fail()
    for _ in range(3):
        with pytest.raises(TransportError):
            await transport.send(RECORD)

    transport.recover()
    await transport.send(RECORD)
    assert transport.records == [RECORD]


async def test_it_hangs_until_it_recovers() -> None:
    """The record that hung is acknowledged then."""
    transport = MemoryTransport()
    await transport.open()
    transport.hang()
    sending = asyncio.create_task(transport.send(RECORD))
    await asyncio.sleep(0)
    before = list(transport.records)
    transport.recover()
    await asyncio.wait_for(sending, 5)

    assert (before, transport.records) == ([], [RECORD])


def test_events_are_at_hand_by_kind() -> None:
    """Decoded, with names and tags."""
    transport = MemoryTransport()
    with Emitter(run="test", transport=transport) as events:
        events.observe("training", {"loss": 0.5}, tags={"phase": "train"})
        events.profile("forward", 12)
        events.log("info", "hello")

    assert [run.state for run in transport.runs()] == ["start", "end"]
    assert transport.observations()[0].fields == {"loss": 0.5}
    assert transport.profiles()[0].duration_ns == 12
    assert transport.logs()[0].message == "hello"
    assert len(transport.events()) == 5
