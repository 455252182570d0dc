"""Settings of the influxdb sink, under our names and those that others use."""

from pathlib import Path

import pytest

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import load
from mlops_events.sinks.influxdb_settings import InfluxDBSettings


def test_the_names_of_other_programs_are_read(tmp_path: Path) -> None:
    """A host and port, a database, a token from a file."""
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    environ = {
        "INFLUXDB_HOST": "db.example.org",
        "INFLUXDB_PORT": "8181",
        "INFLUXDB_DATABASE": "training",
        "INFLUXDB_ORG": "lab",
        "INFLUXDB_TOKEN_FILE": str(secret),
    }
    found = load(InfluxDBSettings, "influxdb", environ=environ)

    assert found.address == "https://db.example.org:8181"
    assert (found.place, found.org, found.token.reveal()) == ("training", "lab", "s3cret")
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (InfluxDBSettings(), ""),
        (InfluxDBSettings(url="http://a:1/", host="b"), "http://a:1"),
        (InfluxDBSettings(host="localhost"), "http://localhost:8086"),
        (InfluxDBSettings(host="127.0.0.1", port=1), "http://127.0.0.1:1"),
        (InfluxDBSettings(host="10.0.0.7"), "https://10.0.0.7:8086"),
        (InfluxDBSettings(host="http://db"), "http://db:8086"),
    ],
)
def test_a_host_is_asked_over_https_unless_it_says_otherwise(
    settings: InfluxDBSettings, address: str
) -> None:
    """A token goes over the network in plain text only if somebody wrote http."""
    assert settings.address == address


def test_a_retention_policy_belongs_to_the_database() -> None:
    """As the v2 API of 1.x wants it."""
    assert InfluxDBSettings(bucket="db", retention_policy="week").place == "db/week"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TAGS", "device,window", "tags names 'window'"),
        ("TAGS", "trace_id", "tags names 'trace_id'"),
        ("TYPES", "loss=double", "expected one of float, integer, string, boolean"),
        ("URL", "127.0.0.1:8086", "http:// or https://"),
        ("OBSERVATIONS", "some", "OBSERVATIONS"),
    ],
)
def test_settings_that_cannot_work_are_named(name: str, value: str, said: str) -> None:
    """Tags without end, types that do not exist, half an address."""
    with pytest.raises(ConfigError, match=said):
        load(InfluxDBSettings, "influxdb", environ={f"MLOPS_EVENTS_INFLUXDB_{name}": value})
