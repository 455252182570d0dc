"""Emitters of the shims send into memory, and every test begins as a fresh process would."""

from collections.abc import Iterator

import pytest

from mlops_events.producers.compat import loki, notices, sharing
from mlops_events.producers.testing import MemoryTransport


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTransport]:
    """Return the transport of all emitters that the shims open."""
    transport = MemoryTransport()
    monkeypatch.setenv("MLOPS_EVENTS_KAFKA_BROKERS", "127.0.0.1:1")
    monkeypatch.setattr("mlops_events.producers.emitter.KafkaTransport", lambda _: transport)
    for module, name in ((sharing, "_shared"), (sharing, "_made_up")):
        monkeypatch.setattr(module, name, [])
    monkeypatch.setattr(loki, "_wired", {})
    monkeypatch.setattr(notices, "_said", set())
    yield transport
    for shared in sharing._shared:
        shared.emitter.close(20)
