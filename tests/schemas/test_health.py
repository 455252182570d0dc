"""/metrics, /healthz and /readyz over a real socket."""

import http.client
from collections.abc import Iterator

import pytest

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.health import Counters, Health, HealthServer, serve_health


def _get(server: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def counters() -> Counters:
    """Counters of a hop."""
    return Counters("sink", sink="sqlite")


@pytest.fixture
def problems() -> dict[str, str | None]:
    """What is wrong with the service."""
    return {"alive": None, "ready": None}


@pytest.fixture
def server(counters: Counters, problems: dict[str, str | None]) -> Iterator[HealthServer]:
    """A running server."""
    health = Health(alive=lambda: problems["alive"], ready=lambda: problems["ready"])
    server = serve_health(0, counters=counters, health=health)
    assert server is not None
    yield server
    server.close()


def test_every_hop_counts_the_same_four_things(server: HealthServer, counters: Counters) -> None:
    """Received, sent, dropped with its reason, errors; with Prometheus' names."""
    counters.received("log", 3)
    counters.sent("log", 2)
    counters.dropped("repeat")
    counters.error("timeout")
    counters.add("bytes", 10)
    counters.gauge("lag_records", lambda: 4.0)

    status, text = _get(server, "/metrics")
    assert status == 200
    for line in (
        'mlops_events_sink_received_total{kind="log",sink="sqlite"} 3.0',
        'mlops_events_sink_sent_total{kind="log",sink="sqlite"} 2.0',
        'mlops_events_sink_dropped_total{reason="repeat",sink="sqlite"} 1.0',
        'mlops_events_sink_errors_total{reason="timeout",sink="sqlite"} 1.0',
        'mlops_events_sink_bytes_total{sink="sqlite"} 10.0',
        'mlops_events_sink_lag_records{sink="sqlite"} 4.0',
    ):
        assert line in text


def test_totals_are_at_hand(counters: Counters) -> None:
    """A count over all its labels, or of one."""
    counters.dropped("repeat", 2)
    counters.dropped("full", 3)

    assert (counters.total("dropped"), counters.total("dropped", "full")) == (5, 3)


@pytest.mark.parametrize(("path", "what"), [("/healthz", "alive"), ("/readyz", "ready")])
def test_a_probe_says_what_is_wrong(
    server: HealthServer, problems: dict[str, str | None], path: str, what: str
) -> None:
    """200 while all is well, 503 with the reason when it is not."""
    assert _get(server, path) == (200, "ok\n")

    problems[what] = "waits for the broker"
    assert _get(server, path) == (503, "waits for the broker\n")


def test_other_paths_name_the_right_ones(server: HealthServer) -> None:
    """A typing error is told from an outage."""
    status, text = _get(server, "/metric")

    assert (status, text) == (404, "/metrics, /healthz or /readyz\n")


def test_a_port_in_use_is_a_clear_error(server: HealthServer) -> None:
    """The message names it and what to do."""
    with pytest.raises(ConfigError, match=f"port {server.port} .*0 for a free one"):
        serve_health(server.port)


def test_none_serves_nothing() -> None:
    """Health is off unless a port is set."""
    assert serve_health(None) is None


def test_close_may_be_called_twice() -> None:
    """Like everything that closes."""
    server = serve_health(0)
    assert server is not None

    server.close()
    server.close()
