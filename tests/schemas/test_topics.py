"""Names, keys, headers and settings of topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.schemas.errors import DecodeError
from mlops_events.schemas.events import Origin
from mlops_events.schemas.topics import (
    Topics,
    origin_key,
    raw_headers,
    read_headers,
    topic_specs,
    wandb_key,
)

EMITTER = bytes(range(16))
DAY_MS = 86_400_000


def test_names() -> None:
    """Every topic stands below the prefix."""
    topics = Topics("a.b")

    assert topics.raws == ["a.b.run.v1", "a.b.observation.v1", "a.b.profile.v1", "a.b.log.v1"]
    assert topics.sink("loki") == "a.b.sink.loki.v1"
    assert topics.stats == "a.b.stats.v1"
    assert topics.dead_letters == "a.b.dead-letters.v1"
    assert topics.checkpoints == "a.b.checkpoints.v1"


@pytest.mark.parametrize(
    ("origin", "key", "wandb"),
    [
        (Origin(run="r", role="miner", uid=12, rank=3), b"r/miner/12/3", b"r/miner/12"),
        (Origin(run="r", uid="12"), b"r//12/", b"r//12"),
        (Origin(), b"///", b"//"),
        (Origin(run="a/b", role="50%"), b"a%2Fb/50%25//", b"a%2Fb/50%25/"),
        (Origin(run="\u00fc", rank=0), "\u00fc///0".encode(), "\u00fc//".encode()),
    ],
)
def test_keys(origin: Origin, key: bytes, wandb: bytes) -> None:
    """Keys are a function of the origin alone."""
    assert origin_key(origin) == key
    assert wandb_key(origin) == wandb


@given(*[st.text(max_size=4)] * 4)
def test_other_origins_have_other_keys(run: str, role: str, other: str, another: str) -> None:
    """No slash in a name makes two origins one."""
    same = (run, role) == (other, another)

    keys = origin_key(Origin(run=run, role=role)), origin_key(Origin(run=other, role=another))
    assert (keys[0] == keys[1]) == same


def test_headers_are_readable_and_read_back() -> None:
    """What any Kafka tool shows is what sinks drop repeats by."""
    origin = Origin(run="r", role="miner", uid=12, version="1.4.0")

    headers = raw_headers(origin, kind="log", emitter=EMITTER, seq=7, count=3)
    assert dict(headers) == {
        "content-type": b"application/vnd.mlops-events.frame.v1+msgpack",
        "kind": b"log",
        "run": b"r",
        "role": b"miner",
        "uid": b"12",
        "version": b"1.4.0",
        "emitter": b"000102030405060708090a0b0c0d0e0f",
        "seq": b"7",
        "count": b"3",
    }
    found = read_headers(headers)
    assert (found.kind, found.emitter, found.seq, found.count) == ("log", EMITTER, 7, 3)
    assert not found.redriven
    assert read_headers([*headers, ("redriven", b"")]).redriven


@pytest.mark.parametrize("missing", ["kind", "emitter", "seq", "count"])
def test_a_missing_header_is_named(missing: str) -> None:
    """The error says which."""
    headers = raw_headers(Origin(), kind="log", emitter=EMITTER, seq=7, count=3)

    with pytest.raises(DecodeError, match=missing):
        read_headers([header for header in headers if header[0] != missing])


@pytest.mark.parametrize(
    "changed",
    [("kind", b"other"), ("kind", b"\xff"), ("emitter", b"xyz"), ("seq", b"one"), ("count", b"")],
)
def test_a_malformed_header_is_refused(changed: tuple[str, bytes]) -> None:
    """Foreign records become dead letters, not crashes."""
    headers = raw_headers(Origin(), kind="log", emitter=EMITTER, seq=7, count=3)

    with pytest.raises(DecodeError, match="malformed"):
        read_headers([*headers, changed])


def test_settings_that_guarantees_rest_on() -> None:
    """Log time is the broker's; checkpoints outlive what they are the state of."""
    specs = {spec.name: spec for spec in topic_specs(Topics("p"), sinks=["sqlite"])}

    assert set(specs) == {
        *Topics("p").raws,
        "p.stats.v1",
        "p.sink.sqlite.v1",
        "p.dead-letters.v1",
        "p.checkpoints.v1",
    }
    for spec in specs.values():
        assert (spec.partitions, spec.replication) == (12, 3)
        assert spec.config["message.timestamp.type"] == "LogAppendTime"
        assert spec.config["max.message.bytes"] == str(2 << 20)
        assert spec.config["min.insync.replicas"] == "2"
    assert specs["p.log.v1"].config["retention.ms"] == str(7 * DAY_MS)
    assert specs["p.checkpoints.v1"].config["retention.ms"] == str(8 * DAY_MS)
    assert specs["p.checkpoints.v1"].config["cleanup.policy"] == "delete"
    assert specs["p.dead-letters.v1"].config["cleanup.policy"] == "compact,delete"
    assert specs["p.sink.sqlite.v1"].config["retention.ms"] == str(3 * DAY_MS)
