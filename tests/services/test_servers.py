"""What the servers that stand in for users' own do when a test harms them."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest


def post(url: str, body: bytes, headers: dict[str, str], *, timeout: float = 30.0) -> int:
    """Post to a server of the test's own; return the status."""
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - http
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - http
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def write(influxdb: Any, lines: str, *, token: str | None = None, timeout: float = 30.0) -> int:
    """Write lines to InfluxDB; return the status."""
    return post(
        f"{influxdb.url}/api/v2/write?bucket={influxdb.database}&precision=ns",
        lines.encode(),
        {"Authorization": f"Token {token or influxdb.token}"},
        timeout=timeout,
    )


def push(victorialogs: Any, *lines: tuple[int, str], timeout: float = 30.0) -> int:
    """Push lines to VictoriaLogs; return the status."""
    stream = {"stream": {"app": "x"}, "values": [[str(ts), line] for ts, line in lines]}
    return post(
        f"{victorialogs.url}/loki/api/v1/push",
        json.dumps({"streams": [stream]}).encode(),
        {"Content-Type": "application/json", "X-Scope-OrgID": victorialogs.tenant},
        timeout=timeout,
    )


def test_influxdb_keeps_what_it_acknowledged_when_it_is_killed(influxdb: Any) -> None:
    """204 is for good."""
    status = write(influxdb, "m,uid=7 loss=1.5 1700000000000000001")
    influxdb.kill()
    influxdb.start()

    assert status == 204
    assert influxdb.query('SELECT loss, uid FROM "m"') == [
        {"measurement": "m", "time": 1_700_000_000_000_000_001, "loss": 1.5, "uid": "7"}
    ]


def test_influxdb_wants_the_right_token(influxdb: Any) -> None:
    """Nobody else gets in."""
    assert write(influxdb, "m v=1 1", token="admin:wrong") == 401
    assert write(influxdb, "m v=1 1") == 204


def test_influxdb_can_be_frozen(influxdb: Any) -> None:
    """It takes the connection and says nothing until it thaws."""
    influxdb.freeze()
    with pytest.raises(TimeoutError):
        write(influxdb, "m v=1 1", timeout=0.5)
    influxdb.thaw()

    assert write(influxdb, "m v=1 1") == 204


@pytest.mark.parametrize("turn", range(2))
def test_influxdb_is_well_again_in_the_next_test(influxdb: Any, turn: int) -> None:
    """What one test does to it is no matter to the next, nor is what it wrote."""
    assert influxdb.query("SHOW MEASUREMENTS") == []
    assert write(influxdb, "m v=1 1") == 204, turn
    influxdb.stop()
    influxdb.start(INFLUXDB_HTTP_MAX_BODY_SIZE="100")

    assert write(influxdb, "m v=1 1\n" * 100) == 413
    influxdb.freeze()


def test_victorialogs_keeps_lines_by_tenant(victorialogs: Any) -> None:
    """A line that is a JSON object stays a line; times keep their nanoseconds."""
    status = push(
        victorialogs, (1_700_000_000_000_000_001, '{"a": 1}'), (1_700_000_001_000_000_000, "b")
    )
    rows = victorialogs.query('{app="x"} | sort by (_time)')

    assert status == 204
    assert [row["_msg"] for row in rows] == ['{"a": 1}', "b"]
    assert rows[0]["_time"] == "2023-11-14T22:13:20.000000001Z"


@pytest.mark.parametrize("turn", range(2))
def test_victorialogs_is_well_again_in_the_next_test(victorialogs: Any, turn: int) -> None:
    """What one test does to it is no matter to the next, nor is what it pushed."""
    assert victorialogs.query("*") == []
    assert push(victorialogs, (1_700_000_000_000_000_000, "a")) == 204, turn
    victorialogs.freeze()
    with pytest.raises(TimeoutError):
        push(victorialogs, (1_700_000_001_000_000_000, "b"), timeout=0.5)
    victorialogs.kill()
