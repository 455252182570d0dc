"""Log events that the streams make themselves, under ids that follow from what they are about."""

from hashlib import blake2b
from typing import Any

import msgspec

from mlops_events.schemas.events import Log, Origin
from mlops_events.schemas.frame import Frame, FrameEncoder, decode_frame
from mlops_events.schemas.values import ENCODER

__all__ = ["DerivedLog", "derive_emitter"]


def derive_emitter(what: str, *about: Any) -> bytes:
    """Return the 16 bytes that stand for the emitter of something derived.

    Args:
        what: a constant, one for each thing that is derived.
        about: what it follows from, as msgpack knows it; the same gives the same bytes for ever.
    """
    return blake2b(ENCODER.encode(["mlops-events", what, *about]), digest_size=16).digest()


class DerivedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A line of log that no process emitted; it is the only event of its `emitter`."""

    emitter: bytes
    origin: Origin
    log: Log

    def frame(self) -> Frame:
        """Return the frame that holds it: the same whenever and wherever it is made."""
        encoder = FrameEncoder(emitter=self.emitter, kind="log", origin=self.origin)
        value = encoder.encode(
            [ENCODER.encode(self.log)],
            seq=0,
            closed_ns=self.log.ts,
            accepted=1,
            dropped=0,
            end=True,
        )
        return decode_frame(value)
