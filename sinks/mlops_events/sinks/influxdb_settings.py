"""Settings of the influxdb sink."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal

import msgspec

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.secret import Secret

__all__ = ["FIELD_TYPES", "InfluxDBSettings"]

FIELD_TYPES = ("float", "integer", "string", "boolean")
"""What a field can be, in InfluxDB's words."""

_UNBOUNDED = frozenset(("trace_id", "span_id", "event_id", "id"))


class InfluxDBSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where InfluxDB is and what it is given; read with the prefix "influxdb".

    `url` wins over `host` and `port`; a host without a scheme is asked over HTTPS unless it is
    this machine. `bucket` is a database of 1.x, where `token` is USER:PASSWORD and
    `retention_policy` may be named. Of raw observations all are written, a share of
    `sample_share`, or none; Stats are written in any case. `tags` names tags of events and
    origins that become tags in InfluxDB, too, `types` sets the types of fields beforehand, by
    FIELD or MEASUREMENT.FIELD.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "url": ("INFLUXDB_URL",),
        "host": ("INFLUXDB_HOST",),
        "port": ("INFLUXDB_PORT",),
        "token": ("INFLUXDB_TOKEN",),
        "org": ("INFLUXDB_ORG",),
        "bucket": ("INFLUXDB_BUCKET", "INFLUXDB_DATABASE"),
    }

    url: str = ""
    host: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8086
    token: Secret = Secret()
    org: str = "-"
    bucket: str = ""
    retention_policy: str = ""
    observations: Literal["all", "sampled", "none"] = "all"
    sample_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    tags: tuple[str, ...] = ("device", "gpu")
    types: dict[str, str] = {}
    gzip: bool = True
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url begins with http:// or https://; found {self.url!r}")
        for name in self.tags:
            if is_step_like(name) or name in _UNBOUNDED:
                raise ValueError(
                    f"tags names {name!r}, which has no end of values: each would be a series of "
                    "its own; it is written as a field"
                )
        for name, kind in self.types.items():
            if kind not in FIELD_TYPES:
                raise ValueError(f"types: {name}={kind}; expected one of {', '.join(FIELD_TYPES)}")

    @property
    def address(self) -> str:
        """The server's URL; empty if neither `url` nor `host` is set."""
        if self.url or not self.host:
            return self.url.rstrip("/")
        if "://" in self.host:
            return f"{self.host}:{self.port}"
        return f"{'http' if _is_this_machine(self.host) else 'https'}://{self.host}:{self.port}"

    @property
    def place(self) -> str:
        """What the server calls a bucket; in 1.x the database and its retention policy."""
        return f"{self.bucket}/{self.retention_policy}" if self.retention_policy else self.bucket


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
