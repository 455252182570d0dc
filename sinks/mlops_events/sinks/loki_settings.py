"""Settings of the loki sink."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from mlops_events.schemas.secret import Secret

__all__ = ["LokiSettings"]

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class LokiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Loki is and what it is told; read with the prefix "loki".

    `url` is the server's, with or without `/loki/api/v1/push`. Streams are told apart by
    `uid_label`: `uid` while nodes times roles stay below some 2,000, `shard` (uid modulo 32)
    above, `none`. `labels` names tags that become labels too. Everything else is structured
    metadata, or part of the line where `structured_metadata` is false. Lines older than `too_old_s`
    or further ahead than `ahead_s` are refused, as Loki would.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "url": ("LOKI_URL",),
        "tenant": ("LOKI_TENANT_ID",),
        "username": ("LOKI_USERNAME",),
        "password": ("LOKI_PASSWORD",),
        "token": ("LOKI_TOKEN",),
    }

    url: str = ""
    ready_path: str = "/ready"
    tenant: str = ""
    username: str = ""
    password: Secret = Secret()
    token: Secret = Secret()
    uid_label: Literal["uid", "shard", "none"] = "uid"
    labels: tuple[str, ...] = ()
    structured_metadata: bool = True
    gzip: bool = True
    timeout_s: Seconds = 30.0
    too_old_s: Seconds = 7 * 86_400.0
    ahead_s: Seconds = 600.0
