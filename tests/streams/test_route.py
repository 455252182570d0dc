"""Routes: what goes to which sink, by a table."""

import pytest

from mlops_events.schemas.events import Kind, Origin
from mlops_events.schemas.topics import Topics
from mlops_events.streams.route import ALL_KINDS, Routes

SINKS = ("influxdb", "loki", "wandb", "sqlite", "otlp", "console")


def sinks_of(routes: Routes, kind: Kind) -> list[str]:
    """Return the sinks that a kind goes to."""
    return [d.topic.split(".")[-2] for d in routes.of(kind) if ".sink." in d.topic]


@pytest.mark.parametrize(
    ("kind", "sinks"),
    [
        ("run", ["wandb", "sqlite", "console"]),
        ("observation", ["influxdb", "wandb", "sqlite", "console"]),
        ("profile", ["influxdb", "sqlite", "console"]),
        ("log", ["loki", "sqlite", "otlp", "console"]),
        ("stats", ["influxdb", "sqlite", "otlp", "console"]),
    ],
)
def test_each_sink_gets_the_kinds_it_can_use(kind: Kind, sinks: list[str]) -> None:
    """Metrics to InfluxDB, lines to Loki, runs to W&B, everything to SQLite."""
    assert sinks_of(Routes(Topics(), SINKS, {}), kind) == sinks


def test_nothing_is_sent_to_a_sink_that_nobody_runs() -> None:
    """A kind that no enabled sink takes goes nowhere; its raw topic keeps it."""
    routes = Routes(Topics(), ["loki"], {})

    assert sinks_of(routes, "log") == ["loki"]
    assert routes.of("observation") == ()
    assert [d.topic for d in routes.of("stats")] == ["mlops.events.stats.v1"]


def test_the_operator_may_change_a_sinks_kinds() -> None:
    """Only that sink changes."""
    routes = Routes(Topics("p"), ["loki", "console"], {"console": ("run",)})

    assert [sinks_of(routes, kind) for kind in ALL_KINDS] == [["console"], [], [], ["loki"], []]
    assert routes.of("run")[0].topic == "p.sink.console.v1"


def test_a_sink_of_somebody_else_takes_everything() -> None:
    """Until the operator says what it wants."""
    routes = Routes(Topics(), ["theirs"], {})

    assert all(sinks_of(routes, kind) == ["theirs"] for kind in ALL_KINDS)


def test_all_ranks_of_a_node_have_one_key_for_wandb() -> None:
    """A run there has one writer; everywhere else ranks may spread."""
    origin = Origin(run="r", role="miner", uid=3, rank=1)
    keys = {d.topic: d.key(origin) for d in Routes(Topics("p"), SINKS, {}).of("observation")}

    assert keys["p.sink.wandb.v1"] == b"r/miner/3"
    assert keys["p.sink.sqlite.v1"] == b"r/miner/3/1"
