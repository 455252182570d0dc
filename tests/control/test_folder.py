"""The folder of `up`: what it says about what runs there."""

import os
from pathlib import Path

import pytest

from mlops_events.control.folder import UpState, kafka_of, last_port, read_state, write_state
from mlops_events.schemas.errors import ConfigError


def state(*, pid: int, brokers: str = "127.0.0.1:20001", embedded: bool = True) -> UpState:
    return UpState(pid=pid, brokers=brokers, embedded=embedded, processes={})


def test_what_runs_in_a_folder_is_found(tmp_path: Path) -> None:
    """With the address of its broker."""
    write_state(tmp_path, state(pid=os.getpid()))
    kafka = kafka_of(tmp_path, brokers=None)

    assert read_state(tmp_path) == state(pid=os.getpid())
    assert (kafka.brokers, kafka.embedded) == ("127.0.0.1:20001", True)
    assert kafka_of(tmp_path, brokers="elsewhere:9092").brokers == "elsewhere:9092"


def test_what_has_ended_does_not_run(tmp_path: Path) -> None:
    """Its broker's address is no address any more, but a start takes the same port again."""
    write_state(tmp_path, state(pid=0))

    assert read_state(tmp_path) is None
    assert last_port(tmp_path) == 20001
    with pytest.raises(ConfigError, match=f"does not run in {tmp_path}"):
        kafka_of(tmp_path, brokers=None)


def test_a_folder_without_a_broker_of_its_own_has_no_port(tmp_path: Path) -> None:
    """None was there, or it is a real Kafka's, or the file is torn."""
    assert last_port(tmp_path) is None
    write_state(tmp_path, state(pid=0, embedded=False))
    assert last_port(tmp_path) is None
    (tmp_path / "up.json").write_text('{"pid":')
    assert last_port(tmp_path) is None
