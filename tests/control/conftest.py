"""Fixtures of the tests of the operator's commands."""

from collections.abc import Callable
from typing import Any

import pytest

from mlops_events.control.deadletters import Letter
from mlops_events.schemas.events import DeadLetter, Origin
from mlops_events.schemas.frame import FrameEncoder, Free
from mlops_events.schemas.values import ENCODER

EMITTER = bytes(range(16))


@pytest.fixture
def make_frame() -> Callable[..., bytes]:
    """Return a function that makes frames of observations, or of what is passed."""

    def make(*events: Any, run: str = "r", seq: int = 0, kind: Any = "observation") -> bytes:
        encoder = FrameEncoder(
            emitter=EMITTER, kind=kind, origin=Origin(run=run, role="miner", uid=1, version="v1")
        )
        given = events or (Free(1_700_000_000_000_000_000, 3, "training", {"loss": 1.5}),)
        return encoder.encode(
            [ENCODER.encode(event) for event in given],
            seq=seq,
            closed_ns=0,
            accepted=len(given),
            dropped=0,
        )

    return make


@pytest.fixture
def make_letter(make_frame: Callable[..., bytes]) -> Callable[..., Letter]:
    """Return a function that makes dead letters."""

    def make(
        *,
        partition: int = 0,
        offset: int = 0,
        written_ns: int = 0,
        run: str = "r",
        **fields: Any,
    ) -> Letter:
        payload: bytes = fields.pop("payload", None) or make_frame(run=run)
        known: dict[str, Any] = {
            "sink": "sqlite",
            "reason": "unwanted",
            "message": "nobody wants it",
            "key": f"sqlite/{partition}/{offset}",
            "kind": "observation",
            "first_seen_ns": 0,
            "topic": "p.sink.sqlite.v1",
            "partition": 0,
            "offset": 0,
            "size": len(payload),
            "payload": payload,
            **fields,
        }
        letter = DeadLetter(**known)
        return Letter(letter=letter, partition=partition, offset=offset, written_ns=written_ns)

    return make
