"""/metrics, /healthz and /readyz of a service."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from mlops_events.schemas.errors import ConfigError

__all__ = ["Counters", "Health", "HealthServer", "serve_health"]

_TIMEOUT_S = 5.0


class Counters:
    """What passed one hop: received, sent, dropped with a reason, errors with a kind.

    Without prometheus-client they count all the same, and `/metrics` says what to install.

    Args:
        hop: the word that the metrics begin with after `mlops_events_`, such as "stream".
        labels: the same for all of them, such as the sink's name.
    """

    def __init__(self, hop: str, **labels: str) -> None:
        self.hop = hop
        self.labels = labels
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, str, str], float] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def received(self, kind: str, count: int = 1) -> None:
        """Count events that came in."""
        self._add("received", "kind", kind, count)

    def sent(self, kind: str, count: int = 1) -> None:
        """Count events that went out and were acknowledged."""
        self._add("sent", "kind", kind, count)

    def dropped(self, reason: str, count: int = 1) -> None:
        """Count events that go no further."""
        self._add("dropped", "reason", reason, count)

    def error(self, reason: str, count: int = 1) -> None:
        """Count failures of this hop, whatever became of the events."""
        self._add("errors", "reason", reason, count)

    def add(self, name: str, count: float = 1, *, label: str = "", value: str = "") -> None:
        """Count anything else, under `mlops_events_<hop>_<name>_total`."""
        self._add(name, label, value, count)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Show what `read` returns as `mlops_events_<hop>_<name>`, unit included in the name."""
        self._gauges[name] = read

    def total(self, name: str, value: str = "") -> float:
        """Return a count, such as `total("dropped", "repeat")`; over all labels if "" is given."""
        with self._lock:
            return sum(
                n for (what, _, of), n in self._totals.items() if what == name and value in ("", of)
            )

    def _add(self, name: str, label: str, value: str, count: float) -> None:
        key = (name, label, value)
        with self._lock:
            self._totals[key] = self._totals.get(key, 0) + count

    def collect(self) -> Any:
        """Yield the metric families; prometheus-client calls this."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            totals = sorted(self._totals.items())
        names, fixed = list(self.labels), list(self.labels.values())
        families: dict[str, CounterMetricFamily] = {}
        for (name, label, value), count in totals:
            family = families.get(name)
            if family is None:
                family = families[name] = CounterMetricFamily(
                    f"mlops_events_{self.hop}_{name}",
                    f"{name} of {self.hop}",
                    labels=[*names, label] if label else names,
                )
            family.add_metric([*fixed, value] if label else fixed, count)
        yield from families.values()
        for name, read in list(self._gauges.items()):
            gauge = GaugeMetricFamily(
                f"mlops_events_{self.hop}_{name}", f"{name} of {self.hop}", labels=names
            )
            gauge.add_metric(fixed, read())
            yield gauge


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a service says that it works.

    `alive`: restart it if false. `ready`: it does its work now; false while it starts or waits
    for another service. Each returns None if all is well, else what is wrong.
    """

    alive: Callable[[], str | None] = lambda: None
    ready: Callable[[], str | None] = lambda: None


class HealthServer:
    """Serves in a daemon thread until `close`."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.25}, name="health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_TIMEOUT_S)


def serve_health(
    port: int | None,
    *,
    counters: Counters | None = None,
    health: Health | None = None,
    host: str = "127.0.0.1",
) -> HealthServer | None:
    """Serve /metrics, /healthz and /readyz.

    Args:
        port: 0 takes a free one; None serves nothing.
        counters: shown by /metrics.
        health: answers the other two; all is well if None.
        host: the address to listen on.

    Raises:
        ConfigError: the port cannot be had.
    """
    if port is None:
        return None
    state = health or Health()

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version = "mlops-events"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/healthz":
                self._verdict(state.alive())
            elif path == "/readyz":
                self._verdict(state.ready())
            elif path == "/metrics":
                self._answer(*_exposition(counters))
            else:
                self._answer(404, "text/plain", b"/metrics, /healthz or /readyz\n")

        def _verdict(self, wrong: str | None) -> None:
            status, text = (200, "ok") if wrong is None else (503, wrong)
            self._answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Log nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"port {port} on {host} cannot be had ({error}); give another one, or 0 for a free one"
        ) from error
    server.daemon_threads = True
    return HealthServer(server)


def _exposition(counters: Counters | None) -> tuple[int, str, bytes]:
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ImportError:
        text = "install mlops-events[service] for /metrics\n"
        return 501, "text/plain", text.encode()
    registry = CollectorRegistry()
    if counters is not None:
        registry.register(counters)
    return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
