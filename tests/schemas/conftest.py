"""Fixtures of the schemas' tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlops_events.schemas.events import Origin, RawKind
from mlops_events.schemas.frame import FrameEncoder, Series
from mlops_events.schemas.values import ENCODER

EMITTER = bytes(range(16))


@pytest.fixture
def emitter() -> bytes:
    """Sixteen bytes that name an emitter."""
    return EMITTER


@pytest.fixture
def origin() -> Origin:
    """A miner of a run."""
    return Origin(run="llama-7b-42", role="miner", uid=12, version="1.4.0")


@pytest.fixture
def encode(origin: Origin) -> Callable[..., bytes]:
    """A function that encodes events, structs or plain lists, as a frame of one kind."""

    def encode(
        kind: RawKind, events: Sequence[Any], series: Sequence[Series] = (), *, end: bool = False
    ) -> bytes:
        return FrameEncoder(emitter=EMITTER, kind=kind, origin=origin).encode(
            [e if isinstance(e, bytes) else ENCODER.encode(e) for e in events],
            seq=7,
            closed_ns=1_767_225_600_000_000_000,
            accepted=100 + len(events),
            dropped=3,
            series=series,
            end=end,
        )

    return encode


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden files."""
    return Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="session")
def docs() -> Path:
    """The folder of the documentation."""
    return Path(__file__).parents[2] / "docs"
