"""Events as rows of a run's history: values, names, what is refused."""

import math
from typing import Any

import msgspec
import pytest

from mlops_events.schemas.catalog import BARE_NAME
from mlops_events.schemas.events import EventId, Log, Observation, Origin, Profile, Stats, StatsKey
from mlops_events.sinks.base import Envelope, Rejected
from mlops_events.sinks.wandb_rows import Row, row_of, values_of

TS = 1_700_000_000_500_000_000


def envelope(event: Any, **where: Any) -> Envelope:
    """Put an event into an envelope."""
    own = {
        "id": EventId(bytes(16), "observation", 0, 3),
        "origin": Origin(run="r", role="miner", uid=1, version="1.2.0"),
        "tags": {},
        "event": event,
        "topic": "t",
        "partition": 0,
        "offset": 10,
        "incarnation": 2,
        "position": 0,
    }
    return Envelope(**{**own, **where})


def row(event: Any, **where: Any) -> Row:
    """Return the row of an event, which it must have."""
    found = row_of(envelope(event, **where))
    assert isinstance(found, Row), found
    return found


def observed(*, name: str = "training", **fields: Any) -> Observation:
    """Return an observation."""
    return Observation(ts=TS, name=name, fields=fields, step=5)


def test_a_row_holds_its_place_time_and_training_step() -> None:
    """The place is offset and index, by which a repeat is known."""
    assert values_of(row(observed(loss=0.5)), prefix="none", step=5) == {
        "training/loss": 0.5,
        "global_step": 5,
        "sink/pos": 10 * 4096 + 3,
        "sink/inc": 2,
        "_timestamp": 1_700_000_000.5,
    }


def test_metrics_that_a_program_named_in_whole_keep_their_names() -> None:
    """As those of a program that logged to W&B before."""
    found = values_of(row(observed(name=BARE_NAME, **{"miner/loss": 0.5})), prefix="none", step=5)

    assert found["miner/loss"] == 0.5
    assert not any(name.startswith(BARE_NAME) for name in found)


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("none", {"training/loss"}),
        ("latest", {"latest/training/loss"}),
        ("both", {"v1.2.0/training/loss", "latest/training/loss", "v1.2.0/step"}),
    ],
)
def test_version_prefixes(prefix: Any, names: set[str]) -> None:
    """Metrics are named after the version, the latest, both or neither."""
    values = values_of(row(observed(loss=0.5)), prefix=prefix, step=5)

    assert {k for k in values if not k.startswith(("sink/", "_"))} - {"global_step"} == names


def test_the_streams_version_tag_wins_over_the_origins() -> None:
    """As everywhere downstream of the streams."""
    assert row(observed(loss=1.0), tags={"version": "v2"}).version == "v2"


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"a": math.inf}, {"training/a": math.inf}),
        ({"a": None}, {"training/a": None}),
        ({"a": 2**63, "b": -(2**63)}, {"training/a": float(2**63), "training/b": -(2**63)}),
        ({"a": True}, {"training/a": True}),
        ({"a": "x\ny"}, {"training/a": "x\ny"}),
        ({"a": "nul\x00"}, {"training/a": "nul\ufffd"}),
        ({"a": b"\x00\xff"}, {"training/a": "AP8="}),
        ({"a": {"b": {"c": 1.0}, "d": [1, {"e": 2**64 - 1}]}},
         {"training/a.b.c": 1.0, "training/a.d": [1, {"e": float(2**64 - 1)}]}),
        ({}, {}),
        ({"time": 1.0, "_step": 2.0}, {"training/time": 1.0, "training/_step": 2.0}),
    ],
)  # fmt: skip
def test_values(fields: dict[str, Any], values: dict[str, Any]) -> None:
    """Rows 1 to 6, 9, 11, 18 and 19 of the inputs that every sink must bear."""
    assert row(observed(**fields)).values == values


def test_nan_passes() -> None:
    """W&B holds it (row 1)."""
    assert math.isnan(row(observed(a=math.nan)).values["training/a"])


def test_tags_are_metrics_beside_the_fields() -> None:
    """W&B has no tags on rows, and a window or shard is worth a curve (row 10)."""
    event = msgspec.structs.replace(observed(loss=1.0), tags={"window": 7, "phase": "train"})

    assert row(event).values == {
        "training/window": 7,
        "training/phase": "train",
        "training/loss": 1.0,
    }


def test_a_profile_is_a_section_in_seconds() -> None:
    """With a sign if it failed."""
    event = Profile(ts=TS, name="forward", duration_ns=1_500_000, failed=True)

    assert row(event).values == {"section/forward/seconds": 0.0015, "section/forward/failed": 1}


def test_ranks_of_a_node_keep_their_metrics_apart() -> None:
    """They share a run; the first rank has the plain names."""
    names = [
        next(iter(row(observed(loss=1.0), origin=Origin(run="r", rank=rank)).values))
        for rank in (None, 0, 3)
    ]

    assert names == ["training/loss", "training/loss", "rank3/training/loss"]


def stats(**more: Any) -> Envelope:
    """Return Stats of a window."""
    own: dict[str, Any] = {
        "kind": "observation", "name": "training", "field": "loss", "start": TS,
        "size": 10**10, "revision": 3, "final": True, "count": 3, "mean": 0.5,
    }  # fmt: skip
    key = StatsKey(bytes(16), "observation", "training", "loss", "time", TS, 10**10)
    return envelope(Stats(**{**own, **more}), id=key, position=2)


def test_final_stats_are_rows_if_they_are_routed_here() -> None:
    """At the end of their window; those of a fleet under a name of their own."""
    final, fleet = row_of(stats()), row_of(stats(nodes=4, median_of_medians=0.4))

    assert isinstance(final, Row)
    assert isinstance(fleet, Row)
    assert (final.ts, final.pos) == (TS + 10**10, 10 * 4096 + 2)
    assert final.values == {"training_10s/loss/mean": 0.5, "training_10s/loss/count": 3}
    assert fleet.values["fleet/training_10s/loss/nodes"] == 4


def test_stats_that_will_change_are_left_out() -> None:
    """A row cannot be changed; the final ones follow."""
    assert row_of(stats(final=False)) is None


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (observed(name="", _step=1.0), "reserved_name"),
        (observed(name="", **{"": 1.0}), "reserved_name"),
        (observed(name="sink", pos=1), "reserved_name"),
        (observed(name="x" * 2000, a=1.0), "bad_name"),
        (observed(a=msgspec.msgpack.Ext(5, b"x")), "unencodable"),
        (Log(ts=TS, level="info", message="hi"), "unwanted"),
    ],
)
def test_what_has_no_row_is_refused_with_a_reason(event: Any, reason: str) -> None:
    """W&B would drop it without a word (row 11)."""
    found = row_of(envelope(event))

    assert isinstance(found, Rejected)
    assert found.reason == reason
