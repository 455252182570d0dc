"""Reads the SQLite store, for pages, terminals and checks."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from mlops_events.schemas.events import AnyEvent, EventId, Log, Origin, RawKind, Stats
from mlops_events.sinks.base import SinkBroken, SinkUnavailable
from mlops_events.sinks.jsontext import from_json
from mlops_events.sinks.sqlite_rows import FREE, event_of
from mlops_events.sinks.sqlite_schema import APPLICATION_ID, INDEX_BITS, SCHEMA_VERSION

__all__ = [
    "Point",
    "SQLiteStore",
    "Sent",
    "SeriesName",
    "StoredEmitter",
    "StoredEvent",
    "StoredRun",
    "StoredStats",
]

_PAGE = 2000
_LOOK_BACK = 8
_MASK = (1 << INDEX_BITS) - 1


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What an emitter sent of one kind.

    `accepted` and `dropped` are its own counts, as of its last frame here; `stored` is how many of
    its events were written, retention aside. With `ended` no more will come.
    """

    stored: int
    last_seq: int
    accepted: int
    dropped: int
    ended: bool
    first_ns: int
    last_ns: int

    @property
    def missing(self) -> int:
        """Events that it put into frames and that are not here."""
        return self.accepted - self.stored


class StoredEmitter(msgspec.Struct, frozen=True, kw_only=True):
    """An emitter. `status` is running, finished or crashed; None if it sent no Run."""

    emitter: bytes
    origin: Origin
    status: str | None
    sent: dict[str, Sent]

    @property
    def last_ns(self) -> int:
        """When its last frame here was closed, by its own clock."""
        return max((s.last_ns for s in self.sent.values()), default=0)


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run: what its emitters said about it, put together. Later config wins."""

    run: str
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    started_ns: int | None = None
    ended_ns: int | None = None
    config: dict[str, Any] = {}
    emitters: int = 0
    status: str | None = None


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it was emitted. `tags` are the streams'; `cursor` grows in order of arrival."""

    cursor: int
    id: EventId
    origin: Origin
    event: AnyEvent
    tags: dict[str, str]


class StoredStats(msgspec.Struct, frozen=True, kw_only=True):
    """The Stats of one window."""

    emitter: bytes
    origin: Origin
    stats: Stats


class SeriesName(msgspec.Struct, frozen=True, order=True):
    """What events of one kind are called, and a field that they have."""

    kind: str
    name: str
    field: str


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A field's value at a moment."""

    emitter: bytes
    ts: int
    step: int | None
    value: Any


class SQLiteStore:
    """A reader of the file that the sqlite sink writes, at the same time or later.

    One thread at a time may use it. Every call sees what was committed when it began.

    Args:
        path: the file.

    Raises:
        SinkUnavailable: there is no such file, or no tables in it, yet.
        SinkBroken: it is no store, or one of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.exists():
            raise SinkUnavailable(f"no store at {path}; the sqlite sink makes it when it starts")
        self._origins: dict[int, tuple[bytes, Origin]] = {}
        self._fields: dict[str, list[str] | None] = {FREE: None}
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, check_same_thread=False
        )
        try:
            self._db.execute("BEGIN")  # all three of one moment: the sink may just be making it
            owner = self._one("PRAGMA application_id")
            version = self._one("PRAGMA user_version")
            tables = self._one("SELECT count(*) FROM sqlite_schema")
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self.close()
            raise SinkUnavailable(f"{path} cannot be read at present: {error}") from error
        except sqlite3.DatabaseError as error:
            self.close()
            raise SinkBroken(f"{path} cannot be read as a database: {error}") from error
        if owner == 0 and not tables:
            self.close()
            raise SinkUnavailable(f"{path} has no tables yet")
        if owner != APPLICATION_ID or version != SCHEMA_VERSION:
            self.close()
            raise SinkBroken(f"{path} has schema {version}; this version reads {SCHEMA_VERSION}")

    def __enter__(self) -> "SQLiteStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        self._db.close()

    def runs(self) -> list[StoredRun]:
        """Return all runs, the one that was heard last first."""
        rows = self._db.execute(
            """
            SELECT m.run, coalesce(r.project, ''), coalesce(r.name, ''), coalesce(r."group", ''),
              coalesce(r.job_type, ''), r.started_ns, r.ended_ns, coalesce(r.config, '{}'),
              count(*), sum(m.status = 'running'), sum(m.status = 'crashed'), count(m.status),
              max((SELECT max(last_ns) FROM sent WHERE emitter = m.id)) AS heard
            FROM emitters m LEFT JOIN runs r ON r.run = m.run WHERE NOT m.derived GROUP BY m.run ORDER BY heard DESC
            """
        )
        return [
            StoredRun(
                run=row[0],
                project=row[1],
                name=row[2],
                group=row[3],
                job_type=row[4],
                started_ns=row[5],
                ended_ns=row[6],
                config=from_json(row[7]),
                emitters=row[8],
                status="running"
                if row[9]
                else "crashed"
                if row[10]
                else "finished"
                if row[11]
                else None,
            )
            for row in rows
        ]

    def emitters(self, *, run: str | None = None) -> list[StoredEmitter]:
        """Return all emitters with what they sent, by run, role and uid.

        Those that the streams made up, for what they say themselves, are left out.
        """
        sent: dict[int, dict[str, Sent]] = {}
        for (
            emitter,
            kind,
            stored,
            last_seq,
            accepted,
            dropped,
            ended,
            first,
            last,
        ) in self._db.execute(
            "SELECT emitter, kind, stored, last_seq, accepted, dropped, ended, first_ns, last_ns "
            "FROM sent"
        ):
            sent.setdefault(emitter, {})[kind] = Sent(
                stored=stored,
                last_seq=last_seq,
                accepted=accepted,
                dropped=dropped,
                ended=bool(ended),
                first_ns=first,
                last_ns=last,
            )
        rows = self._db.execute(
            "SELECT id, emitter, origin, status FROM emitters "
            "WHERE NOT derived AND (?1 IS NULL OR run = ?1) ORDER BY run, role, uid, rank, id",
            (run,),
        )
        return [
            StoredEmitter(
                emitter=emitter, origin=_origin(origin), status=status, sent=sent.get(key, {})
            )
            for key, emitter, origin, status in rows
        ]

    def counts(self, *, run: str | None = None) -> dict[str, int]:
        """Return how many events of each kind were stored, retention aside, and Stats there are."""
        found = dict(
            self._db.execute(
                "SELECT s.kind, sum(s.stored) FROM sent s JOIN emitters m ON m.id = s.emitter "
                "WHERE ?1 IS NULL OR m.run = ?1 GROUP BY s.kind",
                (run,),
            )
        )
        found["stats"] = self._one(
            "SELECT count(*) FROM stats WHERE ?1 IS NULL "
            "OR emitter IN (SELECT id FROM emitters WHERE run = ?1)",
            run,
        )
        return found

    def series(self, *, run: str | None = None) -> list[SeriesName]:
        """Return which names there are with which fields, sorted."""
        rows = self._db.execute(
            "SELECT DISTINCT s.kind, s.name, s.fields FROM series s "
            "JOIN emitters m ON m.id = s.emitter WHERE ?1 IS NULL OR m.run = ?1",
            (run,),
        )
        return sorted(
            {
                SeriesName(kind, name, f)
                for kind, name, text in rows
                for f in self._names(text) or ()
            }
        )

    def latest(
        self, *, run: str | None = None, kind: RawKind = "observation", name: str | None = None
    ) -> list[StoredEvent]:
        """Return the newest event of each emitter and name."""
        rows = self._db.execute(
            f"""
            SELECT {_EVENT}, max(e.ts) FROM series s
            JOIN emitters m ON m.id = s.emitter
            JOIN event e ON e.id = (
              SELECT id FROM event WHERE series = s.id ORDER BY ts DESC, id DESC LIMIT 1)
            JOIN frames f ON f.id = e.id >> {INDEX_BITS}
            WHERE s.kind = ?1 AND (?2 IS NULL OR m.run = ?2) AND (?3 IS NULL OR s.name = ?3)
            GROUP BY s.emitter, s.name ORDER BY m.run, m.role, m.uid, m.rank, m.id, s.name
            """,  # noqa: S608 - constants
            (kind, run, name),
        )
        return [self._event(row[:-1]) for row in rows]

    def points(
        self,
        *,
        run: str,
        name: str,
        field: str,
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int = 100_000,
    ) -> list[Point]:
        """Return a field's values over time, the newest `limit` of them in order of time.

        Args:
            run: the run.
            name: the observations' or sections' name.
            field: the field; `duration_ns` of a section.
            since_ns: the first time wanted.
            until_ns: the first time not wanted.
            limit: how many at most.
        """
        points: list[Point] = []
        for key, text, emitter in self._db.execute(
            "SELECT s.id, s.fields, m.emitter FROM series s JOIN emitters m ON m.id = s.emitter "
            "WHERE m.run = ? AND s.name = ? AND s.kind IN ('observation', 'profile')",
            (run, name),
        ).fetchall():
            names = self._names(text)
            if names is not None and field not in names:
                continue
            place: Any = field if names is None else names.index(field)
            for ts, step, body in self._db.execute(
                "SELECT ts, step, body FROM event WHERE series = ? AND ts >= ? AND ts < ? "
                "ORDER BY ts DESC, id DESC LIMIT ?",
                (key, *_range(since_ns, until_ns), limit),
            ):
                values = from_json(body)
                if names is None and field not in values:
                    continue
                points.append(Point(emitter=emitter, ts=ts, step=step, value=values[place]))
        points.sort(key=lambda p: p.ts)
        return points[-limit:]

    def windows(
        self,
        *,
        run: str | None = None,
        name: str | None = None,
        field: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        final: bool | None = None,
        fleet: bool = False,
    ) -> Iterator[StoredStats]:
        """Yield Stats by emitter, series and time.

        Args:
            run: only this run's.
            name: only of events of this name.
            field: only of this field.
            since_ns: the first start of a window that is wanted.
            until_ns: the first start that is not wanted.
            final: only windows that are closed, or only those that are not.
            fleet: those over all nodes of a role and version, not those of each node.
        """
        rows = self._db.execute(
            f"""
            SELECT {_STATS} FROM emitters m JOIN stats s ON s.emitter = m.id
            WHERE (?1 IS NULL OR m.run = ?1) AND (?2 IS NULL OR s.name = ?2)
              AND (?3 IS NULL OR s.field = ?3) AND s.start >= ?4 AND s.start < ?5
              AND (?6 IS NULL OR s.final = ?6) AND (s.nodes IS NOT NULL) = ?7
            ORDER BY s.emitter, s.kind, s.name, s.field, s.by, s.size, s.start
            """,  # noqa: S608 - constants
            (run, name, field, *_range(since_ns, until_ns), final, fleet),
        )
        return map(self._stats, rows)

    def fleet(self, *, run: str | None = None) -> list[StoredStats]:
        """Return the newest Stats over all nodes, of each role, version and field.

        That is the newest window that all nodes reported, or the newest one if none of the last
        few is such a one: nodes whose clocks are fast report windows long before the others.

        Args:
            run: only this run's.
        """
        found: list[StoredStats] = []
        for (emitter,) in self._db.execute(
            "SELECT id FROM emitters WHERE derived AND uid = '' AND (?1 IS NULL OR run = ?1) "
            "ORDER BY run, role, version, id",
            (run,),
        ).fetchall():
            series = ("", "", "", "", 0)
            while True:  # from one series to the next, over all its windows
                after = self._db.execute(
                    "SELECT kind, name, field, by, size FROM stats WHERE emitter = ? "
                    "AND (kind, name, field, by, size) > (?, ?, ?, ?, ?) "
                    "ORDER BY kind, name, field, by, size LIMIT 1",
                    (emitter, *series),
                ).fetchone()
                if after is None:
                    break
                series = after
                rows = self._db.execute(
                    f"SELECT {_STATS} FROM stats s WHERE emitter = ? AND kind = ? AND name = ? "  # noqa: S608 - constants
                    "AND field = ? AND by = ? AND size = ? ORDER BY start DESC LIMIT ?",
                    (emitter, *series, _LOOK_BACK),
                ).fetchall()
                windows = [self._stats(row) for row in rows]
                found.append(next((w for w in windows if w.stats.final), windows[0]))
        return found

    def newest_windows(self, *, limit: int) -> list[StoredStats]:
        """Return the Stats of nodes that arrived last, the newest first."""
        rows = self._db.execute(
            f"SELECT {_STATS} FROM stats s WHERE s.nodes IS NULL "  # noqa: S608 - as above
            "ORDER BY s.logged_ms DESC LIMIT ?",
            (limit,),
        )
        return [self._stats(row) for row in rows]

    def logs(
        self,
        *,
        run: str | None = None,
        levels: Sequence[str] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int = 100,
    ) -> list[tuple[StoredEvent, Log]]:
        """Return the newest lines of log in order of time.

        Args:
            run: only this run's.
            levels: only of these levels, such as ("warning", "error").
            since_ns: the first time wanted.
            until_ns: the first time not wanted.
            limit: how many at most.
        """
        found: list[StoredEvent] = []
        for key, level in self._db.execute(
            "SELECT s.id, s.name FROM series s JOIN emitters m ON m.id = s.emitter "
            "WHERE s.kind = 'log' AND (?1 IS NULL OR m.run = ?1)",
            (run,),
        ).fetchall():
            if levels is not None and level not in levels:
                continue
            rows = self._db.execute(
                f"{_SELECT} WHERE e.series = ? AND e.ts >= ? AND e.ts < ? "
                "ORDER BY e.ts DESC, e.id DESC LIMIT ?",
                (key, *_range(since_ns, until_ns), limit),
            )
            found += map(self._event, rows)
        lines = [(stored, stored.event) for stored in found if isinstance(stored.event, Log)]
        lines.sort(key=lambda line: (line[1].ts, line[0].cursor))
        return lines[-limit:]

    def events(
        self,
        *,
        run: str | None = None,
        kinds: Iterable[RawKind] | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[StoredEvent]:
        """Yield events in order of arrival; events that arrive meanwhile are yielded too.

        Args:
            run: only this run's.
            kinds: only of these kinds.
            after: the cursor of the last event that is known.
            limit: how many at most.
        """
        wanted = None if kinds is None else frozenset(kinds)
        left = limit
        while left is None or left > 0:
            rows = self._db.execute(
                f"{_SELECT} WHERE e.id > ? ORDER BY e.id LIMIT ?", (after, _PAGE)
            ).fetchall()
            for row in rows:
                if wanted is not None and row[2] not in wanted:
                    continue
                stored = self._event(row)
                if run is not None and stored.origin.run != run:
                    continue
                yield stored
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def last_cursor(self) -> int:
        """Return the cursor of the event that arrived last, 0 if there is none."""
        return int(self._one("SELECT coalesce(max(id), 0) FROM event"))

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, values).fetchone()[0]

    def _event(self, row: Sequence[Any]) -> StoredEvent:
        cursor, key, kind, name, fields, ts, step, body, tags, seq, attached = row
        emitter, origin = self._emitter(key)
        return StoredEvent(
            cursor=cursor,
            id=EventId(emitter, kind, seq, cursor & _MASK),
            origin=origin,
            event=event_of(kind, name, self._names(fields), ts=ts, step=step, body=body, tags=tags),
            tags={} if attached is None else from_json(attached),
        )

    def _stats(self, row: Sequence[Any]) -> StoredStats:
        emitter, origin = self._emitter(row[0])
        return StoredStats(
            emitter=emitter,
            origin=origin,
            stats=Stats(
                kind=row[1],
                name=row[2],
                field=row[3],
                start=row[4],
                size=row[5],
                revision=row[6],
                final=bool(row[7]),
                count=row[8],
                mean=row[9],
                min=row[10],
                max=row[11],
                median=row[12],
                nonfinite=row[13],
                first_nonfinite_step=row[14],
                last_finite=row[15],
                by=row[16],
                closed_by=row[17],
                nodes=row[18],
                nodes_missing=row[19],
                median_of_medians=row[20],
            ),
        )

    def _emitter(self, key: int) -> tuple[bytes, Origin]:
        known = self._origins.get(key)
        if known is None:
            emitter, origin = self._db.execute(
                "SELECT emitter, origin FROM emitters WHERE id = ?", (key,)
            ).fetchone()
            known = self._origins[key] = (emitter, _origin(origin))
        return known

    def _names(self, text: str) -> list[str] | None:
        """The fields of a series; None if its bodies bring their own names."""
        if text not in self._fields:
            self._fields[text] = from_json(text)
        return self._fields[text]


_EVENT = "e.id, s.emitter, s.kind, s.name, s.fields, e.ts, e.step, e.body, e.tags, f.seq, f.tags"
_SELECT = (
    f"SELECT {_EVENT} FROM event e JOIN series s ON s.id = e.series "  # noqa: S608 - constants
    f"JOIN frames f ON f.id = e.id >> {INDEX_BITS}"
)
_STATS = (
    "s.emitter, s.kind, s.name, s.field, s.start, s.size, s.revision, s.final, s.count, s.mean, "
    "s.min, s.max, s.median, s.nonfinite, s.first_nonfinite_step, s.last_finite, s.by, s.closed_by, "
    "s.nodes, s.nodes_missing, s.median_of_medians"
)
_ORIGIN = msgspec.json.Decoder(Origin)


def _origin(text: str) -> Origin:
    return _ORIGIN.decode(text)


def _range(since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
    last = 2**63 - 1
    return (-(2**63) if since_ns is None else since_ns, last if until_ns is None else until_ns)
