"""An emitter's use of the spool: its own frames, and those that processes before it left."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlops_events.producers.spool import Leftover, Spool, Stored, leftovers
from mlops_events.producers.spooled import SpooledBacklog
from mlops_events.producers.transport import OutRecord
from mlops_events.schemas.errors import DecodeError, MlopsEventsError
from mlops_events.schemas.frame import decode_frame
from mlops_events.schemas.topics import Topics, frame_headers, origin_key

if TYPE_CHECKING:
    from mlops_events.producers.backlog import Sealed
    from mlops_events.producers.lane import Lane
    from mlops_events.producers.settings import EmitterSettings
    from mlops_events.producers.worker import Worker

__all__ = ["Keeper", "record_of"]

_LOOK_EVERY_S: Final = 60.0


class SpoolError(MlopsEventsError):
    """Frames wait in memory alone, since the spool takes none."""


class Keeper:
    """Gives the lanes of a worker their spool, and sends what others have left in it.

    Args:
        worker: whose lanes are given a spool, before their first frame.
        settings: where it is, and its bounds.
        name: the emitter's id in hex.
    """

    def __init__(self, worker: "Worker", settings: "EmitterSettings", *, name: str) -> None:
        self._root = Path(settings.spool_dir)
        self._topics = settings.kafka.topics
        self._complain = worker.complain
        self._spool = Spool(
            self._root,
            name,
            limit=settings.spool_bytes,
            drops=settings.spool_drops,
            sync=settings.spool_sync,
        )
        for lane in worker.lanes:
            lane.backlog = SpooledBacklog(
                self._spool.queue(lane.kind),
                restore=partial(_restore, lane),
                complain=self._refused,
            )

    def abandon(self) -> None:
        """Leave it to the parent, in a forked child."""
        self._spool.abandon()

    def close(self) -> None:
        """Let go; what waits is sent by the next process."""
        self._spool.close()

    async def drain(self, send: Callable[[OutRecord], Awaitable[bool]]) -> None:
        """Send what processes that are gone have left, under their own ids, for ever.

        Args:
            send: returns when a record is acknowledged, or False when it is refused for good.
        """
        while True:
            try:
                for leftover in leftovers(self._root):
                    await self._send_all(leftover, send)
            except Exception as error:  # the edge of a thread in somebody else's program
                self._complain(error)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _send_all(
        self, leftover: Leftover, send: Callable[[OutRecord], Awaitable[bool]]
    ) -> None:
        done = False
        try:
            for stored in leftover.frames():
                record = self._record(stored)
                if record is not None:
                    await send(record)
            done = True
        finally:
            leftover.close(done=done)

    def _record(self, stored: Stored) -> OutRecord | None:
        """Return a stored frame as it was to be sent."""
        try:
            return record_of(stored, self._topics)
        except DecodeError as error:
            self._complain(error)
            return None

    def _refused(self, error: OSError) -> None:
        self._complain(SpoolError(f"spool {self._root}: {error}; frames wait in memory alone"))


def record_of(stored: Stored, topics: Topics) -> OutRecord:
    """Return a stored frame as it was to be sent.

    Raises:
        DecodeError: it is no frame.
    """
    frame = decode_frame(stored.value)
    return OutRecord(
        topic=topics.raw(frame.kind),
        key=origin_key(frame.origin),
        headers=frame_headers(frame),
        value=stored.value,
    )


def _restore(lane: "Lane", stored: Stored) -> "Sealed":
    return lane.sealed(stored.seq, stored.events, stored.value)
