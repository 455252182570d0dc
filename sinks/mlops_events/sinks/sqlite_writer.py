"""Writes batches into the SQLite store, one transaction each."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from mlops_events.schemas.events import RawKind, Run
from mlops_events.schemas.frame import Frame, Row, StatsFrame
from mlops_events.sinks.base import Batch, FrameRecord, Record, Rejected, StatsRecord
from mlops_events.sinks.jsontext import from_json, to_json
from mlops_events.sinks.sqlite_rows import (
    FIELDS,
    FREE,
    body_of,
    fields_text,
    is_derived,
    name_of,
)
from mlops_events.sinks.sqlite_schema import INDEX_BITS

__all__ = ["Writer"]

_MAX_EMITTERS = 50_000
"""Emitters whose ids are remembered; beyond that all are looked up again."""

_MAX_FIELD_LISTS = 64
"""Lists of fields that one name of one emitter may have; its next ones are stored as objects."""

_MAX_INT = 2**63 - 1

_INSERT = "INTO event (id, series, ts, step, body, tags) VALUES (?, ?, ?, ?, ?, ?)"

_UPSERT_SENT = """
INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
  stored = stored + excluded.stored,
  last_seq = max(last_seq, excluded.last_seq),
  accepted = max(accepted, excluded.accepted),
  dropped = max(dropped, excluded.dropped),
  ended = max(ended, excluded.ended),
  first_ns = min(first_ns, excluded.first_ns),
  last_ns = max(last_ns, excluded.last_ns)
"""

_UPSERT_STATS = """
INSERT INTO stats (emitter, kind, name, field, by, size, start, revision, final, count, mean, min,
  max, median, nonfinite, first_nonfinite_step, last_finite, closed_by, nodes, nodes_missing,
  median_of_medians, logged_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
  revision = excluded.revision, final = excluded.final, count = excluded.count,
  mean = excluded.mean, min = excluded.min, max = excluded.max, median = excluded.median,
  nonfinite = excluded.nonfinite, first_nonfinite_step = excluded.first_nonfinite_step,
  last_finite = excluded.last_finite, closed_by = excluded.closed_by,
  nodes = excluded.nodes, nodes_missing = excluded.nodes_missing,
  median_of_medians = excluded.median_of_medians, logged_ms = excluded.logged_ms
WHERE (excluded.revision, excluded.final) > (revision, final)
"""

_UPSERT_RUN = """
INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
  project = coalesce(nullif(excluded.project, ''), project),
  name = coalesce(nullif(excluded.name, ''), name),
  "group" = coalesce(nullif(excluded."group", ''), "group"),
  job_type = coalesce(nullif(excluded.job_type, ''), job_type),
  started_ns = coalesce(min(started_ns, excluded.started_ns), started_ns, excluded.started_ns),
  ended_ns = coalesce(max(ended_ns, excluded.ended_ns), ended_ns, excluded.ended_ns),
  config = excluded.config, config_ns = excluded.config_ns
"""


class _Emitter:
    """What is known of an emitter: its id and its series', by kind, name and fields.

    `rows` are those with fields, by name and fields; `lists` is how many of these a name has.
    """

    __slots__ = ("id", "lists", "rows", "series")

    def __init__(self, id: int) -> None:  # noqa: A002 - the column
        self.id = id
        self.rows: dict[tuple[str, ...], int] = {}
        self.series: dict[tuple[str, str, str], int] = {}
        self.lists: dict[str, int] = {}


class _Rows:
    """What one batch adds."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.stats: list[tuple[Any, ...]] = []
        self.sent: dict[tuple[int, str], list[int]] = {}
        self.rejected: list[Rejected] = []


class Writer:
    """Writes through one connection; used by one thread at a time.

    The same event is stored once and changes nothing when it comes again: a frame that is known
    adds only what it lacked. Stats give way to a higher (revision, final) of their key.
    Another process may write to the same file: ids that are remembered are looked up again after
    it did.

    Args:
        connection: from `connect_writer`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._emitters: dict[bytes, _Emitter] = {}
        self._version = -1  # changes when another connection commits

    def write(self, batch: Batch) -> list[Rejected]:
        """Write a batch, all of it or nothing, and return what cannot be stored.

        Raises:
            sqlite3.Error: nothing was written.
        """
        rows = _Rows()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
            if version != self._version:
                self.forget()
                self._version = version
            for record in batch.records:
                if isinstance(record, FrameRecord):
                    self._frame(record, rows)
                else:
                    self._stats(record, rows)
            self._db.executemany(f"INSERT {_INSERT}", rows.events)
            self._db.executemany(_UPSERT_STATS, rows.stats)
            self._db.executemany(
                _UPSERT_SENT, [(*key, *values) for key, values in rows.sent.items()]
            )
            self._db.execute("COMMIT")
        except BaseException:
            self.forget()  # rows that it knows may be rolled back now
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return rows.rejected

    def forget(self) -> None:
        """Look every id up again."""
        self._emitters.clear()

    def _frame(self, record: FrameRecord, rows: _Rows) -> None:
        frame = record.frame
        if max(frame.seq, frame.accepted, frame.dropped, abs(frame.closed_ns)) > _MAX_INT:
            rows.rejected += _reject(record, range(len(frame)), "out_of_range", "a 64-bit count")
            return
        emitter = self._emitter(frame)
        key = (emitter.id, frame.kind, frame.seq)
        found = self._db.execute(
            "SELECT id FROM frames WHERE emitter = ? AND kind = ? AND seq = ?", key
        ).fetchone()
        if found is None:
            number = self._db.execute(
                "INSERT INTO frames (emitter, kind, seq, logged_ms, tags) VALUES (?, ?, ?, ?, ?)",
                (*key, record.timestamp_ms, to_json(frame.tags) if frame.tags else None),
            ).lastrowid
        else:
            (number,) = found
        assert number is not None  # noqa: S101 - the row was made or found
        new, bad = self._events(emitter, frame, number << INDEX_BITS)
        for position, message in bad:
            rows.rejected += _reject(record, (position,), "unencodable", message)
        if found is None:
            rows.events += new
        else:
            new = [row for row in new if self._insert_missing(row)]
        if frame.kind == "run" and new:
            self._runs(emitter, frame, {row[0] & ((1 << INDEX_BITS) - 1) for row in new})
        _count(rows.sent, emitter.id, frame, len(new))

    def _insert_missing(self, row: tuple[Any, ...]) -> bool:
        return self._db.execute(f"INSERT OR IGNORE {_INSERT}", row).rowcount == 1

    def _events(
        self, emitter: _Emitter, frame: Frame, base: int
    ) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
        """Return the rows of a frame's events, and positions of those that JSON cannot hold."""
        rows: list[tuple[Any, ...]] = []
        bad: list[tuple[int, str]] = []
        kind = frame.kind
        known: dict[int, tuple[int, bool, str | None]] = {}
        for position, (index, item) in enumerate(zip(frame.indices, frame.items, strict=True)):
            try:
                if isinstance(item, Row):
                    place = known.get(item.sid)
                    if place is None:
                        place = known[item.sid] = self._row_series(emitter, frame, item.sid)
                    series, listed, tags = place
                    values: Any = item.values
                    if item.tags or not listed:
                        entry = frame.series[item.sid]
                        tags = to_json({**(entry.tags or {}), **item.tags}) if item.tags else tags
                        values = values if listed else dict(zip(entry.fields, values, strict=True))
                    rows.append((base + index, series, item.ts, item.step, to_json(values), tags))
                else:
                    series = self._series(emitter, kind, name_of(item), FIELDS.get(kind, FREE))
                    own = None if isinstance(item, Run) else getattr(item, "tags", None)
                    step = None if isinstance(item, Run) else item.step
                    tags = to_json(own) if own else None
                    rows.append((base + index, series, item.ts, step, to_json(body_of(item)), tags))
            except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
                bad.append((position, str(error)))
        return rows, bad

    def _row_series(
        self, emitter: _Emitter, frame: Frame, sid: int
    ) -> tuple[int, bool, str | None]:
        """Return the id of a row's series, whether it lists its fields, and the tags it gives."""
        entry = frame.series[sid]
        tags = to_json(entry.tags) if entry.tags else None
        number = emitter.rows.get((entry.name, *entry.fields))
        if number is not None:
            return number, True, tags
        listed = emitter.lists.get(entry.name, 0) < _MAX_FIELD_LISTS
        fields = fields_text(entry.fields) if listed else FREE
        return self._series(emitter, frame.kind, entry.name, fields), listed, tags

    def _series(self, emitter: _Emitter, kind: RawKind, name: str, fields: str) -> int:
        key = (kind, name, fields)
        number = emitter.series.get(key)
        if number is None:
            number = self._db.execute(
                "INSERT INTO series (emitter, kind, name, fields) VALUES (?, ?, ?, ?)",
                (emitter.id, *key),
            ).lastrowid
            assert number is not None  # noqa: S101 - a row was inserted
            _learn(emitter, *key, number)
        return number

    def _emitter(self, frame: Frame | StatsFrame) -> _Emitter:
        name, origin = frame.emitter, frame.origin
        emitter = self._emitters.get(name)
        if emitter is not None:
            return emitter
        if len(self._emitters) >= _MAX_EMITTERS:
            self.forget()
        found = self._db.execute("SELECT id FROM emitters WHERE emitter = ?", (name,)).fetchone()
        if found is None:
            number = self._db.execute(
                "INSERT INTO emitters (emitter, run, project, role, uid, rank, node, version, "
                "origin, derived) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    origin.run,
                    origin.project,
                    origin.role,
                    "" if origin.uid is None else str(origin.uid),
                    origin.rank if abs(origin.rank or 0) <= _MAX_INT else None,
                    origin.node,
                    origin.version,
                    msgspec.json.encode(origin).decode(),
                    is_derived(frame),
                ),
            ).lastrowid
            assert number is not None  # noqa: S101 - a row was inserted
            emitter = _Emitter(number)
        else:
            emitter = _Emitter(found[0])
            for row in self._db.execute(
                "SELECT kind, name, fields, id FROM series WHERE emitter = ?", found
            ):
                _learn(emitter, *row)
        self._emitters[name] = emitter
        return emitter

    def _runs(self, emitter: _Emitter, frame: Frame, new: set[int]) -> None:
        """Bring a run, and the emitter's status in it, up to date with new Run events."""
        for index, event in frame.events():
            if not isinstance(event, Run) or index not in new:
                continue
            if event.state != "update":
                status = "running" if event.state == "start" else event.status or "finished"
                self._db.execute(
                    "UPDATE emitters SET status = ? WHERE id = ?", (status, emitter.id)
                )
            origin = frame.origin
            config, config_ns = event.config, event.ts
            known = self._db.execute(
                "SELECT config, config_ns FROM runs WHERE run = ?", (origin.run,)
            ).fetchone()
            if known is not None:
                old = from_json(known[0])
                config = {**old, **config} if event.ts >= known[1] else {**config, **old}
                config_ns = max(event.ts, known[1])
            self._db.execute(
                _UPSERT_RUN,
                (
                    origin.run,
                    event.project or origin.project,
                    event.name,
                    event.group or origin.group,
                    event.job_type or origin.job_type,
                    event.ts if event.state == "start" else None,
                    event.ts if event.state == "end" else None,
                    to_json(config),
                    config_ns,
                ),
            )

    def _stats(self, record: StatsRecord, rows: _Rows) -> None:
        frame = record.frame
        emitter = self._emitter(frame)
        for position, stats in enumerate(frame.stats):
            if max(stats.revision, stats.count, stats.nonfinite) > _MAX_INT:
                rows.rejected += _reject(record, (position,), "out_of_range", "a 64-bit count")
                continue
            rows.stats.append(
                (
                    emitter.id,
                    stats.kind,
                    stats.name,
                    stats.field,
                    stats.by,
                    stats.size,
                    stats.start,
                    stats.revision,
                    stats.final,
                    stats.count,
                    stats.mean,
                    stats.min,
                    stats.max,
                    stats.median,
                    stats.nonfinite,
                    stats.first_nonfinite_step,
                    stats.last_finite,
                    stats.closed_by,
                    stats.nodes,
                    stats.nodes_missing,
                    stats.median_of_medians,
                    record.timestamp_ms,
                )
            )


def _learn(emitter: _Emitter, kind: str, name: str, fields: str, number: int) -> None:
    emitter.series[kind, name, fields] = number
    if kind == "observation" and fields != FREE:
        emitter.lists[name] = emitter.lists.get(name, 0) + 1
        emitter.rows[name, *from_json(fields)] = number


def _count(sent: dict[tuple[int, str], list[int]], emitter: int, frame: Frame, new: int) -> None:
    """Add a frame to what its emitter is known to have sent."""
    closed = frame.closed_ns
    total = sent.setdefault((emitter, frame.kind), [0, 0, 0, 0, 0, closed, closed])
    total[0] += new
    total[1] = max(total[1], frame.seq)
    total[2] = max(total[2], frame.accepted)
    total[3] = max(total[3], frame.dropped)
    total[4] = max(total[4], int(frame.end))
    total[5] = min(total[5], closed)
    total[6] = max(total[6], closed)


def _reject(record: Record, positions: Sequence[int], reason: str, message: str) -> list[Rejected]:
    wanted = set(positions)
    return [
        Rejected(envelope, reason, message)
        for envelope in record.envelopes()
        if envelope.position in wanted
    ]
