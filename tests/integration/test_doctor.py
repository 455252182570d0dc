"""`mlops-emit doctor` and real brokers: plain, with TLS and login, and the embedded one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mlops_events.control.topics import create_topics
from mlops_events.schemas.frame import decode_frame
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topics import topic_specs
from mlops_events.streams.clients import open_reader
from mlops_events.streams.logreader import TopicPartition

PROGRAM = (sys.executable, "-m", "mlops_events.producers")
Examine = Callable[..., "tuple[int, dict[str, dict[str, str]]]"]


@pytest.fixture
def examine() -> Examine:
    """Return a function that returns the exit code and the finding of each check."""

    def examine(*args: str, **env: str) -> tuple[int, dict[str, dict[str, str]]]:
        done = subprocess.run(
            [*PROGRAM, "doctor", "--json", *args],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}

    return examine


async def make_topics(kafka: KafkaSettings) -> None:
    specs = topic_specs(kafka.topics, sinks=["sqlite"], partitions=2, replication=1)
    await create_topics(kafka, specs)


async def lines(kafka: KafkaSettings) -> list[str]:
    """Return the messages of all lines of log."""
    partitions = {TopicPartition(kafka.topics.raw("log"), number) for number in range(2)}
    async with open_reader(kafka) as reader:
        logs = await reader.bounds(partitions)
        frames = [decode_frame(record.value) async for _, record in reader.read(logs)]
    return [getattr(event, "message", "") for frame in frames for _, event in frame.events()]


async def test_all_is_well(examine: Examine, kafka: str, prefix: str) -> None:
    """A line of log is written if that is asked for, and every finding if that is."""
    settings = KafkaSettings(brokers=kafka, prefix=prefix, partitions=2, replication=1)
    await make_topics(settings)
    env = {"MLOPS_EVENTS_KAFKA_BROKERS": kafka, "MLOPS_EVENTS_KAFKA_PREFIX": prefix}
    code, found = examine("--timeout", "20s", **env)
    untouched = await lines(settings)
    wrote, written = examine("--write", "--emit", "--timeout", "20s", **env)
    messages = await lines(settings)

    assert (code, wrote, untouched) == (0, 0, [])
    assert [found[name]["status"] for name in ("broker", "login", "cluster", "topics")] == [
        "ok"
    ] * 4
    assert found["write"]["status"] == "skipped"
    assert written["write"]["status"] == "ok"
    assert messages.count("the doctor was here") == 1
    assert {"doctor: broker ok", "doctor: origin warning"} <= set(messages)


async def test_missing_topics_are_named(examine: Examine, kafka: str, prefix: str) -> None:
    """With the prefix that may be wrong; an address that fails beside one that works is a pity."""
    code, found = examine(
        *("--write", "--timeout", "20s", "--brokers", kafka), MLOPS_EVENTS_KAFKA_PREFIX=prefix
    )

    assert code == 1
    assert f"{prefix}.observation.v1" in found["topics"]["found"]
    assert prefix in found["topics"]["cure"]
    assert "mend the way there first" in found["write"]["found"]


async def test_the_embedded_broker_has_to_be_called_so(
    examine: Examine, embedded_broker: Any, prefix: str
) -> None:
    """It refuses idempotent writes with an unknown error, which tells nobody anything."""
    settings = KafkaSettings(brokers=embedded_broker.address, prefix=prefix, embedded=True)
    await make_topics(settings)
    env = {
        "MLOPS_EVENTS_KAFKA_BROKERS": embedded_broker.address,
        "MLOPS_EVENTS_KAFKA_PREFIX": prefix,
    }
    code, found = examine("--write", "--timeout", "15s", **env)
    good, right = examine("--write", "--timeout", "20s", MLOPS_EVENTS_KAFKA_EMBEDDED="1", **env)

    assert code == 1
    assert "set MLOPS_EVENTS_KAFKA_EMBEDDED=1" in found["write"]["found"]
    assert good == 0
    assert right["write"]["status"] == "ok"


class Secure(NamedTuple):
    """A broker with TLS and login, and a node's settings for it."""

    address: str
    env: dict[str, str]


@pytest.fixture
def secure(kafka_script: Any, free_port: Callable[[], int], tmp_path: Path) -> Iterator[Secure]:
    """Start an Apache Kafka that lets in whom it knows."""
    folder, port = tmp_path / "kafka", free_port()
    kafka_script("start-secure", folder, port)
    passwords = dict(
        line.split("=", 1)
        for line in (folder / "secure" / "passwords.env").read_text().splitlines()
    )
    yield Secure(
        f"127.0.0.1:{port}",
        {
            "MLOPS_EVENTS_KAFKA_BROKERS": f"127.0.0.1:{port}",
            "MLOPS_EVENTS_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "MLOPS_EVENTS_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "MLOPS_EVENTS_KAFKA_SASL_USERNAME": "producer",
            "MLOPS_EVENTS_KAFKA_SASL_PASSWORD": passwords["KAFKA_PRODUCER_PASSWORD"],
            "MLOPS_EVENTS_KAFKA_SSL_CA_FILE": str(folder / "secure" / "ca.pem"),
        },
    )
    kafka_script("kill", folder)


def test_what_is_wrong_with_tls_and_login_is_told_apart(examine: Examine, secure: Secure) -> None:
    """Certificate, protocol, mechanism, password: each has its own words, and no secret in them."""

    def told(check: str, **env: str) -> str:
        found = examine("--timeout", "20s", **{**secure.env, **env})[1]
        assert secure.env["MLOPS_EVENTS_KAFKA_SASL_PASSWORD"] not in str(found)
        return f"{found[check]['status']}: {found[check]['found']} -> {found[check]['cure']}"

    assert "with TLS; its certificate is good until" in told("broker")
    assert told("login") == f"ok: {secure.address} answers, SASL_SSL -> "
    unknown = told("broker", MLOPS_EVENTS_KAFKA_SSL_CA_FILE="")
    assert unknown.startswith(f"error: {secure.address}: its certificate is not accepted")
    assert "set MLOPS_EVENTS_KAFKA_SSL_CA_FILE" in unknown
    plain = told("login", MLOPS_EVENTS_KAFKA_SECURITY_PROTOCOL="PLAINTEXT")
    assert "does not answer as Kafka does" in plain
    assert "does not offer PLAIN ->" in told("login", MLOPS_EVENTS_KAFKA_SASL_MECHANISM="PLAIN")
    wrong = told("login", MLOPS_EVENTS_KAFKA_SASL_PASSWORD="wrong")
    assert wrong.startswith(f"error: {secure.address} does not let producer in")
