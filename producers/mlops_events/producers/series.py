"""The series table: sets of fields that have been seen get an id, so that a row holds only values."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from threading import RLock
from typing import Any, TypeAlias

from mlops_events.producers.buffer import Buffer, Event
from mlops_events.schemas.frame import Series
from mlops_events.schemas.values import ENCODER

__all__ = ["MAX_TABLE_BYTES", "Handle", "SeriesTable"]

MAX_TABLE_BYTES = 128 << 10
"""All series of an emitter, encoded: what a frame keeps free for its table."""

_MAX_SERIES = 1024
_MAX_SERIES_BYTES = 4 << 10
_MAX_TAG_SETS = 16

Pick: TypeAlias = Callable[[Mapping[str, Any]], tuple[Any, ...]]

Handle: TypeAlias = tuple[
    Pick,
    int,
    dict[str, Any] | None,
    int,
    Callable[[], int],
    Buffer,
    Callable[[Event], None],
]
"""All that `Emitter.observe` needs, found with one look-up.

What picks the values, how many there are, the tags that they must come with, the id of the series,
the clock, the buffer, and what appends to it.
"""


class SeriesTable:
    """Registers series, from any thread.

    Tags whose values are all text belong to the series. Of one set of fields up to 16 such sets of
    tags get an id; beyond that, and with other tags, the rows carry their tags. Beyond 1,024 series
    or 128 KiB of names an observation brings its own names.

    Args:
        clock: the clock's reading without its anchor.
        buffer: where observations go.
    """

    def __init__(self, *, clock: Callable[[], int], buffer: Buffer) -> None:
        self.current: dict[str, Handle] = {}
        """The series that each name was last used with."""
        self.registered: list[Series] = []
        """All series by id."""
        self._clock = clock
        self._buffer = buffer
        self._lock = RLock()
        self._known: dict[tuple[Any, ...], Handle] = {}
        self._tag_sets: dict[tuple[Any, ...], int] = {}
        self._bytes = 0
        self._full = False

    def encode(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        step: int | None,
        ts: int,
        tags: Mapping[str, Any] | None,
    ) -> Event:
        """Return an observation as a row if it has a series or can get one, else in free form.

        Raises:
            Exception: whatever foreign values raise, if something in it cannot be encoded.
        """
        if type(name) is not str or not all(type(key) is str for key in (*fields, *(tags or ()))):
            raise TypeError("names must be text")
        handle, own = self._find(name, fields, dict(tags) if tags else None)
        if handle is None:
            return ENCODER.encode(("m", ts, step, name, fields, own))
        values = handle[0](fields)
        row = ("r", handle[3], ts, step, values)
        return (handle[3], None, None, ENCODER.encode(row if own is None else (*row, own)))

    def declare(
        self, name: str, fields: tuple[str, ...], tags: dict[str, Any] | None
    ) -> Handle | None:
        """Return the series of these fields, registered if there is room; None if there is none."""
        key = (name, fields, tuple(tags.items()) if tags else ())
        return self._known.get(key) or self._register(key, tags)

    def _find(
        self, name: str, fields: Mapping[str, Any], tags: dict[str, Any] | None
    ) -> tuple[Handle | None, dict[str, Any] | None]:
        """Return the series, registered if there is room, and the tags its row must carry."""
        base = (name, tuple(fields))
        if tags is None or all(type(value) is str for value in tags.values()):
            key = (*base, tuple(tags.items()) if tags else ())
            handle = self._known.get(key) or self._register(key, tags)
            if handle is not None:
                self.current[name] = handle
                return handle, None
        return self._known.get(base) or self._register(base, None), tags

    def _register(self, key: tuple[Any, ...], tags: dict[str, Any] | None) -> Handle | None:
        name, names = base = key[:2]
        if self._full or not names:
            return None
        with self._lock:
            sets = self._tag_sets.get(base, 0)
            if key in self._known or (key != base and sets >= _MAX_TAG_SETS):
                return self._known.get(key)
            sid = len(self.registered)
            series = Series(sid, name, list(names), tags)
            size = len(ENCODER.encode(series))
            if size > _MAX_SERIES_BYTES:
                return None
            if sid >= _MAX_SERIES or self._bytes + size > MAX_TABLE_BYTES:
                self._full = True
                return None
            pick = itemgetter(*names) if len(names) > 1 else _only(names[0])
            handle: Handle = (
                pick,
                len(names),
                tags,
                sid,
                self._clock,
                self._buffer,
                self._buffer.append,
            )
            self.registered.append(series)
            self._bytes += size
            self._tag_sets[base] = sets + 1
            self._known[key] = handle
            return handle


def _only(name: str) -> Pick:
    return lambda fields: (fields[name],)
