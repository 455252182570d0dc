"""A transport in memory, for the tests of programs that embed an emitter."""

from typing import TYPE_CHECKING

from mlops_events.producers.transport import OutRecord, TransportError
from mlops_events.schemas.events import Log, Observation, Profile, RawKind, Run
from mlops_events.schemas.frame import Frame, decode_frame

if TYPE_CHECKING:
    import asyncio

__all__ = ["MemoryTransport"]


class MemoryTransport:
    """Keeps what was sent and decodes it; can be told to fail, to hang and to be slow.

        transport = MemoryTransport()
        events = Emitter(run="test", transport=transport)
        train(events)
        assert events.flush()
        losses = [e.fields["loss"] for e in transport.observations()]

    Args:
        delay_s: how long each record takes.
    """

    def __init__(self, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.records: list[OutRecord] = []
        """What was acknowledged, in that order."""
        self.attempts: list[OutRecord] = []
        """What was tried, failures included."""
        self.closed = False
        self._failures: float = 0
        self._error = TransportError("told to fail")
        self._hanging = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recovered: asyncio.Event | None = None

    def frames(self, kind: RawKind | None = None) -> list[Frame]:
        """Return the frames that were acknowledged, of one kind or of all."""
        frames = [decode_frame(record.value) for record in self.records]
        return [frame for frame in frames if kind in (None, frame.kind)]

    def events(self, kind: RawKind | None = None) -> list[Run | Observation | Profile | Log]:
        """Return the events that were acknowledged, of one kind or of all."""
        return [event for frame in self.frames(kind) for _, event in frame.events()]

    def runs(self) -> list[Run]:
        """Return the events of kind run."""
        return [event for event in self.events("run") if isinstance(event, Run)]

    def observations(self) -> list[Observation]:
        """Return the observations."""
        return [event for event in self.events("observation") if isinstance(event, Observation)]

    def profiles(self) -> list[Profile]:
        """Return the profiles."""
        return [event for event in self.events("profile") if isinstance(event, Profile)]

    def logs(self) -> list[Log]:
        """Return the logs."""
        return [event for event in self.events("log") if isinstance(event, Log)]

    def fail(self, times: int | None = None, *, error: TransportError | None = None) -> None:
        """Fail the next attempts with this error; all until `recover` if `times` is None."""
        self._failures = float("inf") if times is None else times
        self._error = error or TransportError("told to fail")

    def hang(self) -> None:
        """Answer nothing until `recover`."""
        self._hanging = True

    def recover(self) -> None:
        """Work again, from any thread."""
        self._failures = 0
        self._hanging = False
        if self._loop is not None and self._recovered is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._recovered.set)

    async def open(self) -> None:
        """Begin; nothing to connect to."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._recovered = asyncio.Event()

    async def send(self, record: OutRecord) -> None:
        """Keep the record, unless told otherwise.

        Raises:
            TransportError: it was told to fail.
        """
        import asyncio

        self.attempts.append(record)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        while self._hanging and self._recovered is not None:
            self._recovered.clear()
            await self._recovered.wait()
        if self._failures > 0:
            self._failures -= 1
            raise self._error
        self.records.append(record)

    async def close(self, timeout_s: float) -> None:
        """Remember that it was closed."""
        self.closed = True
