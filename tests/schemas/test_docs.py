"""The documentation says what the code does."""

import importlib
import pkgutil
import re
from pathlib import Path

import msgspec
import pytest

import mlops_events
from mlops_events.schemas import catalog
from mlops_events.schemas.events import Origin, Profile
from mlops_events.schemas.frame import FrameEncoder, decode_frame
from mlops_events.schemas.settings import variable
from mlops_events.schemas.values import ENCODER

TS = 1_767_225_600_000_000_000


def test_the_frame_walked_through_byte_by_byte(docs: Path) -> None:
    """The dump in wire.md is what the encoder writes, and it decodes."""
    text = (docs / "wire.md").read_text().partition("byte by byte")[2]
    dump = "".join(re.findall(r"^    ((?:[0-9a-f]{2} ?)+)", text, flags=re.MULTILINE))
    value = bytes.fromhex(dump)

    profile = Profile(ts=TS, name="forward", duration_ns=12_000_000, step=7)
    encoder = FrameEncoder(emitter=bytes(range(16)), kind="profile", origin=Origin(run="r"))
    assert value == encoder.encode(
        [ENCODER.encode(profile)], seq=0, closed_ns=TS, accepted=1, dropped=0
    )
    assert list(decode_frame(value).events()) == [(0, profile)]


def test_the_catalogue_is_in_events_md(docs: Path) -> None:
    """The table of metrics is the one that the code has."""
    assert catalog.describe() in (docs / "events.md").read_text()


def _settings() -> dict[str, str]:
    """Every setting of every component: its variable and its default as text."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(mlops_events.__path__, "mlops_events."):
        if module.name.endswith("__main__"):
            continue
        for thing in vars(importlib.import_module(module.name)).values():
            prefix = PREFIXES.get(getattr(thing, "__name__", ""))
            if prefix is None or not issubclass(thing, msgspec.Struct):
                continue
            for field in msgspec.structs.fields(thing):
                if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                    continue
                found[variable(prefix, field.name)] = _default(field)
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    """A default as the pages write it."""
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        value = None if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        value = ",".join(value)
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else str(int(value))
    return str(value) if value or value == 0 else "–"  # noqa: RUF001 - as the table has it


PREFIXES = {
    "KafkaSettings": "kafka",
    "EmitterSettings": "",
    "StreamSettings": "stream",
    "FleetStatsSettings": "fleet",
    "DeliverSettings": "sink",
    "SQLiteSettings": "sqlite",
    "ConsoleSettings": "console",
    "InfluxDBSettings": "influxdb",
    "LokiSettings": "loki",
    "OTLPSettings": "otlp",
    "WandbSettings": "wandb",
    "StoreSettings": "store",
    "Retention": "store_retention",
}


def test_every_setting_is_in_configuration_md(docs: Path) -> None:
    """Each variable has a row with its default, and no row is about one that nobody reads."""
    text = (docs / "configuration.md").read_text()
    rows = re.findall(r"^\| `(MLOPS_EVENTS_\w+)` \| (\S+) \|", text, flags=re.MULTILINE)

    assert dict(rows) == _settings()


@pytest.mark.parametrize(
    "page", ["wire.md", "events.md", "configuration.md", "architecture.md", "diagnostics.md"]
)
def test_links_lead_somewhere(docs: Path, page: str) -> None:
    """Relative links point at files that exist."""
    for target in re.findall(r"\]\(([^)#:]+)\)", (docs / page).read_text()):
        assert (docs / target).exists(), target
