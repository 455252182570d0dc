"""Reads the counts out of a stored state without the emitters and their samples."""

from typing import Any

import msgspec

from mlops_events.schemas.errors import DecodeError
from mlops_events.streams.state import Totals

__all__ = ["Glance", "glance"]


class Glance(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a state as it is stored; the order of its positions never changes."""

    v: int
    by: Any
    incarnation: int
    next: int
    mark: Any
    log_ns: int
    lost_by_retention: int
    missing: int
    counts: Totals


_DECODER = msgspec.msgpack.Decoder(Glance)


def glance(state: bytes) -> Glance:
    """Return what a checkpoint's state says of its partition; its settings do not matter.

    Raises:
        DecodeError: the bytes are no state.
    """
    try:
        return _DECODER.decode(state)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"{len(state)} bytes are no state of a partition: {error}") from error
