"""What an emitter says about itself."""

import msgspec

from mlops_events.schemas.events import RawKind

__all__ = ["EmitterStats", "KindStats"]


class KindStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one kind: `emitted` = `sent` + `buffered` + `spooled` + `lost` + all of `dropped`.

    `accepted` events got into frames, and with that an id. Of those, `sent` were acknowledged,
    `spooled` wait on disk, also after `close`, and `lost` were given up: refused by the broker,
    dropped from a full spool, or in memory when `close` ran into its deadline. `buffered` events
    wait in memory. `dropped` events never got an id; the reason is `full`, `closed` or `malformed`.
    """

    emitted: int = 0
    accepted: int = 0
    sent: int = 0
    buffered: int = 0
    spooled: int = 0
    lost: int = 0
    dropped: dict[str, int] = {}


class EmitterStats(msgspec.Struct, frozen=True, kw_only=True):
    """An emitter's account.

    `emitter` is its id in hex. `bad_fields` counts values that could not be encoded, by name.
    `cut` events were over 256 KiB and sent in part. `ended` is true when the last frame of every
    kind it used was acknowledged. `error` says why the last attempt to send failed, "" if it did
    not.
    """

    emitter: str
    kinds: dict[RawKind, KindStats]
    bad_fields: dict[str, int] = {}
    cut: int = 0
    ended: bool = False
    error: str = ""

    @property
    def emitted(self) -> int:
        """Events of all kinds that the program emitted."""
        return sum(kind.emitted for kind in self.kinds.values())

    @property
    def sent(self) -> int:
        """Events of all kinds that the broker acknowledged."""
        return sum(kind.sent for kind in self.kinds.values())

    @property
    def buffered(self) -> int:
        """Events of all kinds that wait in memory."""
        return sum(kind.buffered for kind in self.kinds.values())

    @property
    def spooled(self) -> int:
        """Events of all kinds that wait on disk."""
        return sum(kind.spooled for kind in self.kinds.values())

    @property
    def lost(self) -> int:
        """Events of all kinds that were given up after they had an id."""
        return sum(kind.lost for kind in self.kinds.values())

    @property
    def dropped(self) -> int:
        """Events of all kinds that never got an id."""
        return sum(sum(kind.dropped.values()) for kind in self.kinds.values())
