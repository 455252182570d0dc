"""Settings: where they come from, which one wins, and what is said when one is wrong."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import pytest

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import KafkaSettings, Secret, explain, load, variable


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of every type."""

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {"url": ("BOX_URL",)}

    url: str = ""
    token: Secret = Secret()
    window_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    max_bytes: int = 1 << 20
    mode: Literal["online", "offline"] = "online"
    fast: bool = False
    names: list[str] = []
    tags: dict[str, str] = {}
    port: int | None = None


def _load(
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, object] | None = None,
    file: Path | None = None,
) -> Box:
    return load(Box, "box", environ=environ or {}, arguments=arguments, file=file)


def test_argument_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each source wins over the next."""
    file = tmp_path / "mlops-events.toml"
    file.write_text('[box]\nurl = "file"\nwindow_s = 3\nmode = "offline"\n')

    box = _load(
        {"MLOPS_EVENTS_BOX_URL": "environment", "MLOPS_EVENTS_BOX_WINDOW_S": "2"},
        {"url": "argument", "window_s": None},
        file,
    )
    assert (box.url, box.window_s, box.mode, box.fast) == ("argument", 2.0, "offline", False)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("window_s", "5min", 300.0),
        ("window_s", "250ms", 0.25),
        ("window_s", "1.5", 1.5),
        ("max_bytes", "2MiB", 2 << 20),
        ("max_bytes", "10kB", 10_000),
        ("fast", "yes", True),
        ("fast", "OFF", False),
        ("names", "a, b", ["a", "b"]),
        ("names", '["a", "b"]', ["a", "b"]),
        ("tags", "a=1,b=2", {"a": "1", "b": "2"}),
        ("tags", '{"a": "1"}', {"a": "1"}),
        ("mode", "OFFLINE", "offline"),
        ("port", "none", None),
        ("port", "off", None),
        ("port", "8080", 8080),
    ],
)
def test_text_becomes_what_is_wanted(name: str, text: str, value: object) -> None:
    """Durations, sizes, switches, lists and mappings are written as people write them."""
    assert getattr(_load({f"MLOPS_EVENTS_BOX_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("WINDOW_S", "soon", "'soon' is no duration"),
        ("WINDOW_S", "0", "Expected `float` > 0"),
        ("WINDOW_S", "5parsec", "is no duration"),
        ("MAX_BYTES", "big", "is no size"),
        ("MODE", "sideways", "none of online, offline"),
        ("FAST", "maybe", "neither true nor false"),
        ("TAGS", "a", "no '='"),
        ("PORT", "http", "is no whole number"),
        ("NAMES", "[1", "is no JSON"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(name: str, text: str, said: str) -> None:
    """The variable, the value and what would do."""
    with pytest.raises(ConfigError) as error:
        _load({f"MLOPS_EVENTS_BOX_{name}": text})

    assert f"MLOPS_EVENTS_BOX_{name}" in str(error.value)
    assert said in str(error.value)


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    """Nobody has to start a service ten times to find ten mistakes."""
    file = tmp_path / "mlops-events.toml"
    file.write_text("[box]\nwidow_s = 3\n")

    with pytest.raises(ConfigError) as error:
        _load({"MLOPS_EVENTS_BOX_FAST": "x", "MLOPS_EVENTS_BOX_TOKN": "x"}, {"mode": "up"}, file)
    text = str(error.value)
    assert "MLOPS_EVENTS_BOX_FAST" in text
    assert "did you mean MLOPS_EVENTS_BOX_TOKEN?" in text
    assert "'widow_s'" in text
    assert "window_s" in text
    assert "mode" in text


def test_a_stray_variable_stops_no_training(caplog: pytest.LogCaptureFixture) -> None:
    """On a node it is a warning."""
    with caplog.at_level(logging.WARNING):
        box = load(Box, "box", environ={"MLOPS_EVENTS_BOX_URK": "x"}, unknown="warn")

    assert box == Box()
    assert "did you mean MLOPS_EVENTS_BOX_URL?" in caplog.text


def test_a_wrong_value_is_an_error_on_a_node_too() -> None:
    """A warning would hide that the setting has no effect."""
    with pytest.raises(ConfigError, match="MLOPS_EVENTS_BOX_FAST"):
        load(Box, "box", environ={"MLOPS_EVENTS_BOX_FAST": "x"}, unknown="warn")


def test_names_that_the_ecosystem_has_are_read() -> None:
    """Our own name wins over them."""
    assert _load({"BOX_URL": "theirs"}).url == "theirs"
    assert _load({"BOX_URL": "theirs", "MLOPS_EVENTS_BOX_URL": "ours"}).url == "ours"


def test_empty_variables_are_not_given() -> None:
    """As compose files leave them."""
    assert _load({"MLOPS_EVENTS_BOX_WINDOW_S": ""}).window_s == 10.0


def test_a_secret_may_come_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    """Neither printing nor an error shows it."""
    file = tmp_path / "token"
    file.write_text("hunter2\n")

    box = _load({"MLOPS_EVENTS_BOX_TOKEN_FILE": str(file)})
    assert box.token.reveal() == "hunter2"
    assert "hunter2" not in f"{box} {box!r} {box.token}"
    assert str(box.token) == "***"
    shown = explain(Box, "box", environ={"MLOPS_EVENTS_BOX_TOKEN": "hunter2"})
    assert "hunter2" not in str(shown)
    with pytest.raises(ConfigError, match="MLOPS_EVENTS_BOX_TOKEN_FILE"):
        _load({"MLOPS_EVENTS_BOX_TOKEN_FILE": str(tmp_path / "none")})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or no TOML."""
    broken = tmp_path / "broken.toml"
    broken.write_text("[box")

    for file in (tmp_path / "missing.toml", broken):
        with pytest.raises(ConfigError, match=file.name):
            _load(file=file)


def test_services_read_the_file_that_a_variable_names(tmp_path: Path) -> None:
    """`--config` sets it for all that follows; training nodes read no file."""
    file = tmp_path / "mlops-events.toml"
    file.write_text('[box]\nmode = "offline"\n')
    environ = {"MLOPS_EVENTS_CONFIG": str(file)}

    assert load(Box, "box", environ=environ).mode == "offline"
    assert load(Box, "box", environ=environ, unknown="warn").mode == "online"
    assert {s.name: s.source for s in explain(Box, "box", environ=environ)}["mode"] == "file"


def test_explain_says_where_each_value_came_from(tmp_path: Path) -> None:
    """For `mlops-pipeline config show`."""
    file = tmp_path / "mlops-events.toml"
    file.write_text('[box]\nmode = "offline"\n')

    found = explain(
        Box,
        "box",
        environ={"BOX_URL": "u"},
        arguments={"fast": True},
        file=file,
    )
    sources = {s.name: (s.source, s.place) for s in found}
    assert sources["url"] == ("environment", "BOX_URL")
    assert sources["fast"] == ("argument", "fast")
    assert sources["mode"] == ("file", str(file))
    assert sources["window_s"] == ("default", "")


def test_the_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at import."""
    monkeypatch.setenv(variable("kafka", "brokers"), "a:1")

    assert load(KafkaSettings, "kafka").brokers == "a:1"


class TestKafka:
    """Where Kafka is and how to get in."""

    def test_clients_get_brokers_and_security(self) -> None:
        """Without a word about TLS none is used."""
        kafka = KafkaSettings(brokers="a:9092, b:9092")

        assert kafka.client_options() == {
            "bootstrap_servers": ["a:9092", "b:9092"],
            "security_protocol": "PLAINTEXT",
        }

    def test_sasl_over_tls(self) -> None:
        """User, password and a context that checks host names."""
        kafka = KafkaSettings(
            brokers="a:9092",
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="worker",
            sasl_password=Secret("hunter2"),
        )

        options = kafka.client_options()
        assert options["sasl_mechanism"] == "SCRAM-SHA-512"
        assert options["sasl_plain_username"] == "worker"
        assert options["sasl_plain_password"] == "hunter2"
        assert options["ssl_context"].check_hostname

    def test_no_brokers(self) -> None:
        """There is no default remote endpoint."""
        with pytest.raises(ConfigError, match="MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT"):
            KafkaSettings().client_options()

    @pytest.mark.parametrize(
        ("environ", "said"),
        [
            ({"MLOPS_EVENTS_KAFKA_BROKERS": "kafka://a:1"}, "without a scheme"),
            ({"MLOPS_EVENTS_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}, "needs sasl_username"),
            ({"MLOPS_EVENTS_KAFKA_PREFIX": "a/b"}, "MLOPS_EVENTS_KAFKA_PREFIX"),
            ({"MLOPS_EVENTS_KAFKA_PARTITIONS": "0"}, ">= 1"),
        ],
    )
    def test_what_cannot_be(self, environ: dict[str, str], said: str) -> None:
        """It is said before anything connects."""
        with pytest.raises(ConfigError, match=said):
            load(KafkaSettings, "kafka", environ=environ)

    def test_a_ca_file_that_is_not_there(self, tmp_path: Path) -> None:
        """It is named."""
        kafka = KafkaSettings(
            brokers="a:1", security_protocol="SSL", ssl_ca_file=str(tmp_path / "ca.pem")
        )

        with pytest.raises(ConfigError, match=r"ca\.pem"):
            kafka.client_options()
