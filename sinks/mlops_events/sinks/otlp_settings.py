"""Settings of the otlp sink."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from mlops_events.schemas.secret import Secret

__all__ = ["OTLPSettings"]


class OTLPSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the collector is; read with the prefix "otlp".

    `endpoint` is the base that `/v1/metrics` and `/v1/logs` follow; `metrics_endpoint` and
    `logs_endpoint` are whole addresses and win over it. `headers` are sent with each request
    (`authorization=Bearer ...`), `token` as a bearer token.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "endpoint": ("OTEL_EXPORTER_OTLP_ENDPOINT",),
        "metrics_endpoint": ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",),
        "logs_endpoint": ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",),
    }

    endpoint: str = ""
    metrics_endpoint: str = ""
    logs_endpoint: str = ""
    headers: dict[str, str] = {}
    token: Secret = Secret()
    gzip: bool = True
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
