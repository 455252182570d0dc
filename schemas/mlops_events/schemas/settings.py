"""Settings of every component: argument over environment over file over default."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.secret import Secret
from mlops_events.schemas.topics import DEFAULT_PARTITIONS, DEFAULT_PREFIX, Topics

if TYPE_CHECKING:
    from mlops_events.schemas.sources import Setting

__all__ = ["CONFIG", "START", "KafkaSettings", "Secret", "explain", "load", "variable"]

T = TypeVar("T", bound=msgspec.Struct)

START = "MLOPS_EVENTS_"
"""What the names of all our environment variables begin with."""

CONFIG = "MLOPS_EVENTS_CONFIG"
"""The file that services read where none is named; `--config` sets it for all that follows."""


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Kafka is and how to get in; read with the prefix "kafka".

    `brokers` is a list of HOST:PORT separated by commas. `embedded` means the broker that
    `mlops-pipeline up` starts. `partitions` and `replication` are for topics that get created.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {"brokers": ("KAFKA_BOOTSTRAP_SERVERS",)}

    brokers: str = ""
    prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,180}$")] = DEFAULT_PREFIX
    embedded: bool = False
    partitions: Annotated[int, msgspec.Meta(ge=1)] = DEFAULT_PARTITIONS
    replication: Annotated[int, msgspec.Meta(ge=1)] = 3
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str = ""
    sasl_password: Secret = Secret()
    ssl_ca_file: str = ""

    def __post_init__(self) -> None:
        if "://" in self.brokers:
            raise ValueError(
                f"brokers are HOST:PORT, without a scheme; found {self.brokers!r}",
            )
        if self.security_protocol.startswith("SASL") and not (
            self.sasl_username and self.sasl_password
        ):
            raise ValueError(
                f"{self.security_protocol} needs sasl_username and sasl_password",
            )

    @property
    def topics(self) -> Topics:
        """The topics below `prefix`."""
        return Topics(self.prefix)

    def client_options(self) -> dict[str, Any]:
        """Return what every aiokafka client is given: brokers and security.

        Raises:
            ConfigError: there are no brokers, or the CA file cannot be read.
        """
        if not self.brokers:
            raise ConfigError(f"no brokers; set {variable('kafka', 'brokers')}=HOST:PORT")
        options: dict[str, Any] = {
            "bootstrap_servers": [b.strip() for b in self.brokers.split(",") if b.strip()],
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.reveal()
        if self.security_protocol.endswith("SSL"):
            import ssl

            try:
                options["ssl_context"] = ssl.create_default_context(cafile=self.ssl_ca_file or None)
            except OSError as error:
                raise ConfigError(f"CA file {self.ssl_ca_file!r}: {error}") from error
        return options


def variable(prefix: str, name: str) -> str:
    """Return the environment variable of a setting."""
    return START + (f"{prefix}_{name}" if prefix else name).upper()


def load(
    struct: type[T],
    prefix: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    unknown: Literal["error", "warn"] = "error",
) -> T:
    """Read a component's settings.

    The environment holds them as `MLOPS_EVENTS_<PREFIX>_<FIELD>` and under the names that the
    Struct lists in a ClassVar `also_read`, a secret also as the path of a file under the name with
    `_FILE`. The file (TOML) holds them in the table `prefix`, or at its top if that is "". A field
    that is itself a Struct is a section below. Arguments that are None and variables that are
    empty count as not given.

    Args:
        struct: the settings; a field without a default must be given.
        prefix: the component's word, such as "kafka"; may be empty.
        arguments: values from code or a command line; text is parsed where no text is wanted.
        environ: `os.environ` if None.
        file: path of a TOML file; on services that which `MLOPS_EVENTS_CONFIG` names if None.
        unknown: on training nodes "warn", so that a stray variable stops no training.

    Raises:
        ConfigError: names every setting that is wrong, missing or unknown.
    """
    from mlops_events.schemas.sources import resolve  # kept out of what a training program imports

    if unknown == "error":
        file = _named(file, environ)
    found, settings = resolve(struct, prefix, arguments, environ, file)
    problems = [s for s in settings if s.problem]
    if unknown == "warn":
        strays = [s for s in problems if s.source == "unknown"]
        problems = [s for s in problems if s.source != "unknown"]
        if strays:
            import logging

            for stray in strays:
                logging.getLogger(__name__).warning("setting ignored: %s", stray.problem)
    if problems:
        raise ConfigError("\n".join(["settings cannot be used:", *(s.problem for s in problems)]))
    assert found is not None  # noqa: S101 - without a problem there is a Struct
    return found


def explain(
    struct: type[msgspec.Struct],
    prefix: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> "list[Setting]":
    """Return every setting with its value and where that came from; `load` reads the same.

    Raises:
        ConfigError: the file cannot be read.
    """
    from mlops_events.schemas.sources import resolve

    return resolve(struct, prefix, arguments, environ, _named(file, environ))[1]


def _named(
    file: str | os.PathLike[str] | None, environ: Mapping[str, str] | None
) -> str | os.PathLike[str] | None:
    return file or (os.environ if environ is None else environ).get(CONFIG) or None
