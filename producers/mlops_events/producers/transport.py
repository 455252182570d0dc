"""Where frames go: the Transport protocol and Kafka."""

import os
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mlops_events.producers.lifetime import IMPORTING, keep
from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.settings import KafkaSettings, variable

if TYPE_CHECKING:
    import asyncio
    import logging

__all__ = ["KafkaTransport", "OutRecord", "RecordRefusedError", "Transport", "TransportError"]

_REQUEST_MS = 10_000
_PATIENCE_S = 10.0
_STUCK_S = 60.0
_PROBE_MS = 5_000
_STOP_S = 2.0


class OutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it is sent."""

    topic: str
    key: bytes
    headers: list[tuple[str, bytes]]
    value: bytes


class TransportError(MlopsEventsError):
    """A record was not acknowledged; the same record may be sent again."""


class RecordRefusedError(TransportError):
    """A record will never be taken, such as one that is too large."""


class Transport(Protocol):
    """Takes records, one by one and in order for each kind."""

    async def open(self) -> None:
        """Connect; called again after an error.

        Raises:
            TransportError: it cannot be reached; the message says where and why.
        """
        ...

    async def send(self, record: OutRecord) -> None:
        """Return when the record is acknowledged.

        Raises:
            TransportError: it is not.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Let go of everything in this time."""
        ...


class KafkaTransport:
    """Sends records to Kafka with aiokafka, which is imported when it opens.

    With idempotence a record stays with aiokafka until the broker has it, however long that takes.
    `send` raises all the same when the broker is silent for 10 s, so that somebody hears of it;
    sending the same record again then waits for the delivery that is under way.

    Args:
        settings: where Kafka is.

    Raises:
        ConfigError: there are no brokers, or the CA file cannot be read.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._options = settings.client_options()
        self._idempotent = not settings.embedded
        self._producer: Any = None
        self._process = 0
        self._opening: asyncio.Lock | None = None
        self._pending: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self._quiet: _Quiet | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker can be reached; the message says where and why.
        """
        with IMPORTING:
            import asyncio

            import aiokafka.conn  # noqa: F401 - all of it now, not when a fork may come

        if self._process != os.getpid():  # what a fork brought along belongs to the parent
            keep((self._producer, self._pending))
            self._process = os.getpid()
            self._producer = None
            self._pending = {}
            self._opening = asyncio.Lock()
        assert self._opening is not None  # noqa: S101 - for the type checkers
        async with self._opening:
            if self._producer is None:
                await self._start()

    async def send(self, record: OutRecord) -> None:
        """Return when the record is acknowledged.

        Raises:
            RecordRefusedError: it is too large for the broker.
            TransportError: it is not acknowledged yet.
        """
        import asyncio

        from aiokafka import errors

        await self.open()
        producer = self._producer
        try:
            if id(record) not in self._pending:
                future = await producer.send(
                    record.topic, value=record.value, key=record.key, headers=record.headers
                )
                self._pending[id(record)] = (future, monotonic())
            future, since = self._pending[id(record)]
            done, _ = await asyncio.wait({future}, timeout=_PATIENCE_S)
            if done:
                del self._pending[id(record)]
                future.result()
                return
        except errors.MessageSizeTooLargeError as error:
            raise RecordRefusedError(f"{record.topic} refuses {len(record.value)} bytes") from error
        except errors.TopicAuthorizationFailedError as error:
            raise TransportError(f"no right to write to {record.topic}") from error
        except errors.UnknownTopicOrPartitionError as error:
            missing = f"there is no topic {record.topic}"
            raise TransportError(f"{self._brokers}: {await self._reason() or missing}") from error
        except errors.KafkaError as error:
            reason = await self._reason() or self._embedded(error, errors.UnknownError)
            if not reason and not error.retriable and self._producer is producer:
                await self._discard()
            raise TransportError(
                f"{self._brokers}: {reason or str(error) or type(error).__name__}"
            ) from error
        reason = await self._reason()
        if not reason and monotonic() - since > _STUCK_S and self._producer is producer:
            await self._discard()
        raise TransportError(f"{self._brokers}: {reason or 'no acknowledgement yet'}")

    async def close(self, timeout_s: float) -> None:
        """Disconnect; what is not acknowledged by then is dropped."""
        if self._producer is not None:
            await self._discard(min(timeout_s, _STOP_S))
        if self._quiet is not None:
            self._quiet.end()

    @property
    def _brokers(self) -> str:
        return ",".join(self._options["bootstrap_servers"])

    async def _start(self) -> None:
        import asyncio

        from aiokafka import AIOKafkaProducer, errors

        if self._quiet is None:
            self._quiet = _Quiet()
        producer = AIOKafkaProducer(
            **self._options,
            client_id="mlops-events",
            acks="all",
            enable_idempotence=self._idempotent,
            compression_type="zstd",
            max_batch_size=256 << 10,
            max_request_size=2 << 20,
            request_timeout_ms=_REQUEST_MS,
            retry_backoff_ms=250,
        )
        try:
            await asyncio.wait_for(producer.start(), _PATIENCE_S + _STOP_S)
        except (errors.KafkaError, OSError, TimeoutError) as error:
            self._producer = producer
            await self._discard()
            reason = await self._reason() or self._embedded(error, errors.UnknownError)
            raise TransportError(
                f"{self._brokers}: {reason or str(error) or type(error).__name__}"
            ) from error
        except BaseException:
            self._producer = producer
            await self._discard(0.0)
            raise
        self._producer = producer

    async def _discard(self, timeout_s: float = _STOP_S) -> None:
        """Stop the producer; an idempotent one whose broker is away would never stop by itself."""
        import asyncio

        producer = self._producer
        self._producer = None
        self._pending = {}
        try:
            await asyncio.wait_for(producer.stop(), timeout_s)
        except Exception:  # nothing of it is needed any more
            task = producer._sender.sender_task  # noqa: SLF001 - stop() waits for it without end
            if task is not None:
                task.cancel()
            await producer.client.close()

    def _embedded(self, error: Exception, unknown: type[Exception]) -> str:
        """Return what is likely wrong if a broker takes connections but nothing idempotent."""
        if type(error) is not unknown or not self._idempotent:
            return ""
        return (
            "it refuses idempotent writes; if it is the broker of `mlops-pipeline up`, set "
            f"{variable('kafka', 'embedded')}=1"
        )

    async def _reason(self) -> str:
        """Return why the brokers cannot be reached, "" if one answers.

        The producer itself only says that it cannot, whatever the reason.
        """
        import asyncio

        from aiokafka.conn import collect_hosts, create_conn

        options = {k: v for k, v in self._options.items() if k != "bootstrap_servers"}
        reason = ""
        for host, port, _ in collect_hosts(self._options["bootstrap_servers"]):
            probe = create_conn(host, port, request_timeout_ms=_PROBE_MS, **options)
            try:
                connection = await asyncio.wait_for(probe, 2 * _PROBE_MS / 1000)
            except Exception as error:  # sockets, TLS, SASL, names
                reason = str(error) or type(error).__name__
            else:
                connection.close()
                return ""
        return reason


class _Quiet:
    """Keeps aiokafka's loggers silent about what happens in this thread.

    Each of its clients logs some ten lines a second while a broker is away. Clients that the
    program uses by itself, in other threads, are heard as ever.
    """

    def __init__(self) -> None:
        import logging
        import threading

        self._thread = threading.get_ident()
        names = [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "aiokafka"]
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self)

    def filter(self, record: "logging.LogRecord") -> bool:
        """Let through what another thread logs."""
        return record.thread != self._thread

    def end(self) -> None:
        """Let everything through again."""
        for logger in self._loggers:
            logger.removeFilter(self)
