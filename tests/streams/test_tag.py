"""Tags: one spelling of a version, and the operator's own."""

import pytest

from mlops_events.schemas.events import Origin
from mlops_events.streams.tag import normalise_version, tag


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.2.3", "1.2.3"),
        ("v1.2.3", "1.2.3"),
        ("V1.2", "1.2"),
        ("  v1.2 \n", "1.2"),
        ("1.2.3+cu121", "1.2.3+cu121"),
        ("v", "v"),
        ("version-2", "version-2"),
        ("9f1c2ab", "9f1c2ab"),
        ("", "unknown"),
        ("   ", "unknown"),
        ("x" * 100, "x" * 64),
    ],
)
def test_a_version_has_one_spelling(text: str, version: str) -> None:
    """Dashboards group by it, so `v1.2` and `1.2` must not be two."""
    assert normalise_version(text) == version


def test_every_event_gets_the_version_and_the_operators_tags() -> None:
    """Tags of the emitter's own stay where they are, in the origin."""
    origin = Origin(run="r", version="v2.0", tags={"rack": "7"})

    assert tag(origin, {"cluster": "eu"}) == {"version": "2.0", "cluster": "eu"}
    assert tag(Origin(), {}) == {"version": "unknown"}
