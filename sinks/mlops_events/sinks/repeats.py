"""Which records of a sink's log were there before: frames by their id, Stats by their revision."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from mlops_events.schemas.events import Stats, StatsKey

__all__ = ["Repeats", "SeenFrames", "SeenStats"]

_LIMIT = 100_000
"""What is remembered of a partition, in runs of frames and in keys of Stats."""


class SeenFrames:
    """Remembers the frames of one partition.

    Frames that follow each other are kept as one run. Beyond the limit those of the emitter that
    was silent longest are forgotten first: a repeat of them would pass, but nothing is lost.

    Args:
        limit: how many runs are kept.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._by_emitter: OrderedDict[tuple[bytes, str], list[list[int]]] = OrderedDict()
        self.runs = 0

    def __contains__(self, frame: tuple[bytes, str, int]) -> bool:
        emitter, kind, seq = frame
        runs = self._by_emitter.get((emitter, kind))
        if not runs:
            return False
        if seq > runs[-1][1]:
            return False
        before = bisect_right(runs, seq, key=_first) - 1
        return before >= 0 and seq <= runs[before][1]

    def add(self, emitter: bytes, kind: str, seq: int) -> None:
        """Remember a frame."""
        key = (emitter, kind)
        runs = self._by_emitter.get(key)
        if runs is None:
            runs = self._by_emitter[key] = []
        else:
            self._by_emitter.move_to_end(key)
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
            return
        place = bisect_right(runs, seq, key=_first)
        if place and seq <= runs[place - 1][1]:
            return
        joins_left = place > 0 and runs[place - 1][1] + 1 == seq
        joins_right = place < len(runs) and runs[place][0] - 1 == seq
        if joins_left and joins_right:
            runs[place - 1][1] = runs.pop(place)[1]
            self.runs -= 1
        elif joins_left:
            runs[place - 1][1] = seq
        elif joins_right:
            runs[place][0] = seq
        else:
            runs.insert(place, [seq, seq])
            self.runs += 1
            if self.runs > self._limit:
                self._forget_one()

    def _forget_one(self) -> None:
        key, runs = next(iter(self._by_emitter.items()))
        del runs[0]
        self.runs -= 1
        if not runs:
            del self._by_emitter[key]


class SeenStats:
    """Remembers the highest (revision, final) of each key of one partition.

    Args:
        limit: how many keys are kept, those that were heard last.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._highest: OrderedDict[bytes, int] = OrderedDict()

    def add(self, key: StatsKey, *, revision: int, final: bool) -> bool:
        """Remember it; return whether it is above all that is known of its key."""
        # 16 bytes instead of the key: there are many, and they are only compared.
        digest = blake2b(_ENCODER.encode(key), digest_size=16).digest()
        rank = revision * 2 + final
        if rank <= self._highest.get(digest, -1):
            return False
        self._highest[digest] = rank
        self._highest.move_to_end(digest)
        if len(self._highest) > self._limit:
            self._highest.popitem(last=False)
        return True


class Repeats:
    """What is known of one partition for as long as it is held.

    Args:
        limit: of each of its parts.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self.frames = SeenFrames(limit)
        self._stats = SeenStats(limit)

    def new_stats(self, emitter: bytes, stats: Iterable[Stats]) -> list[Stats]:
        """Remember Stats of one emitter; return those that were not known."""
        return [
            one
            for one in stats
            if self._stats.add(one.key(emitter), revision=one.revision, final=one.final)
        ]


def _first(run: list[int]) -> int:
    return run[0]


_ENCODER = msgspec.msgpack.Encoder()
