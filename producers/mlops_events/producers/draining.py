"""Sends what dead processes left in a spool, for a command that waits for it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from mlops_events.producers.keeper import record_of
from mlops_events.producers.spool import Leftover, leftovers
from mlops_events.producers.transport import (
    OutRecord,
    RecordRefusedError,
    Transport,
    TransportError,
)
from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.topics import Topics

__all__ = ["Account", "drain"]

_AGAIN_S = 0.5
_CLOSE_S = 2.0


class Account(msgspec.Struct, kw_only=True):
    """What became of the frames: `refused` ones are too large for the broker, `unreadable` ones
    are none; both are gone. With an `error` the rest has stayed."""

    frames: int = 0
    events: int = 0
    refused: int = 0
    unreadable: int = 0
    error: str = ""


async def drain(
    root: Path,
    topics: Topics,
    transport: Transport,
    *,
    timeout_s: float,
    progress: Callable[[Account], None],
) -> Account:
    """Send everything that processes which are gone have left, under their own ids.

    Args:
        root: the spool.
        topics: where to.
        transport: takes the records; it is closed at the end.
        timeout_s: how long the broker may be silent.
        progress: told after each frame.
    """
    account = Account()
    try:
        for leftover in leftovers(root):
            await _send_all(leftover, topics, transport, timeout_s, account, progress)
    except TransportError as error:
        account.error = str(error)
    finally:
        await transport.close(_CLOSE_S)
    return account


async def _send_all(
    leftover: Leftover,
    topics: Topics,
    transport: Transport,
    timeout_s: float,
    account: Account,
    progress: Callable[[Account], None],
) -> None:
    done = False
    try:
        for stored in leftover.frames():
            try:
                record = record_of(stored, topics)
                await _send(record, transport, timeout_s)
            except DecodeError:
                account.unreadable += 1
            except RecordRefusedError:
                account.refused += 1
            else:
                account.frames += 1
                account.events += stored.events
            progress(account)
        done = True
    finally:
        leftover.close(done=done)


async def _send(record: OutRecord, transport: Transport, timeout_s: float) -> None:
    """Send a record, again and again for some time.

    Raises:
        RecordRefusedError: it is refused for good.
        TransportError: the broker is silent for too long.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            await asyncio.wait_for(transport.send(record), max(0.1, end - time.monotonic()))
        except RecordRefusedError:
            raise
        except (TransportError, TimeoutError) as error:
            if time.monotonic() + _AGAIN_S > end:
                reason = str(error) or f"no answer within {timeout_s:g} s"
                raise TransportError(reason) from error
            await asyncio.sleep(_AGAIN_S)
        else:
            return
