"""The tables of the SQLite store, and the guard that only a known schema is used.

docs/sinks.md describes them for people who query the file.
"""

import sqlite3
from pathlib import Path

from mlops_events.sinks.base import SinkBroken

__all__ = ["APPLICATION_ID", "INDEX_BITS", "SCHEMA_VERSION", "connect_writer", "prepare"]

APPLICATION_ID = 0x6D6C6576
"""Marks our files, so that no other program's database is written to by mistake."""

SCHEMA_VERSION = 1

INDEX_BITS = 12
"""events.id = frame << INDEX_BITS | index: a frame holds fewer than 4,096 events."""

_TABLES = f"""
CREATE TABLE emitters (
  id INTEGER PRIMARY KEY,
  emitter BLOB NOT NULL UNIQUE,
  run TEXT NOT NULL,
  project TEXT NOT NULL,
  role TEXT NOT NULL,
  uid TEXT NOT NULL,
  rank INTEGER,
  node TEXT NOT NULL,
  version TEXT NOT NULL,
  origin TEXT NOT NULL,
  status TEXT,
  derived INTEGER NOT NULL
) STRICT;
CREATE INDEX emitters_by_run ON emitters (run, role, uid);

CREATE TABLE sent (
  emitter INTEGER NOT NULL REFERENCES emitters (id),
  kind TEXT NOT NULL,
  stored INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  accepted INTEGER NOT NULL,
  dropped INTEGER NOT NULL,
  ended INTEGER NOT NULL,
  first_ns INTEGER NOT NULL,
  last_ns INTEGER NOT NULL,
  PRIMARY KEY (emitter, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE frames (
  id INTEGER PRIMARY KEY,
  emitter INTEGER NOT NULL REFERENCES emitters (id),
  kind TEXT NOT NULL,
  seq INTEGER NOT NULL,
  logged_ms INTEGER NOT NULL,
  tags TEXT,
  UNIQUE (emitter, kind, seq)
) STRICT;

CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  emitter INTEGER NOT NULL REFERENCES emitters (id),
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  fields TEXT NOT NULL,
  UNIQUE (emitter, kind, name, fields)
) STRICT;

CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  series INTEGER NOT NULL REFERENCES series (id),
  ts INTEGER NOT NULL,
  step INTEGER,
  body TEXT NOT NULL,
  tags TEXT
) STRICT;
CREATE INDEX event_by_series ON event (series, ts);

CREATE TABLE stats (
  emitter INTEGER NOT NULL REFERENCES emitters (id),
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  field TEXT NOT NULL,
  by TEXT NOT NULL,
  size INTEGER NOT NULL,
  start INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  final INTEGER NOT NULL,
  count INTEGER NOT NULL,
  mean REAL,
  min REAL,
  max REAL,
  median REAL,
  nonfinite INTEGER NOT NULL,
  first_nonfinite_step INTEGER,
  last_finite REAL,
  closed_by TEXT NOT NULL,
  nodes INTEGER,
  nodes_missing INTEGER,
  median_of_medians REAL,
  logged_ms INTEGER NOT NULL,
  PRIMARY KEY (emitter, kind, name, field, by, size, start)
) STRICT, WITHOUT ROWID;
CREATE INDEX stats_by_age ON stats (logged_ms);

CREATE TABLE runs (
  run TEXT PRIMARY KEY,
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  "group" TEXT NOT NULL,
  job_type TEXT NOT NULL,
  started_ns INTEGER,
  ended_ns INTEGER,
  config TEXT NOT NULL,
  config_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIEW events AS
SELECT
  m.emitter, f.kind, f.seq, e.id & {(1 << INDEX_BITS) - 1} AS idx,
  m.run, m.role, m.uid, m.rank, m.version,
  e.ts, e.step, s.name,
  CASE WHEN s.fields = '' THEN e.body ELSE (
    SELECT json_group_object(n.value, CASE v.type
      WHEN 'true' THEN json('true') WHEN 'false' THEN json('false')
      WHEN 'array' THEN json(v.value) WHEN 'object' THEN json(v.value) ELSE v.value END)
    FROM json_each(s.fields) n JOIN json_each(e.body) v ON v.key = n.key
  ) END AS fields,
  e.tags, f.tags AS stream_tags, e.id
FROM emitters m
JOIN series s ON s.emitter = m.id
JOIN event e ON e.series = s.id
JOIN frames f ON f.id = e.id >> {INDEX_BITS};
"""  # noqa: S608 - constants

_MIGRATIONS: dict[int, str] = {}
"""What turns version n into n + 1; written when there is a version 2."""


def connect_writer(path: Path, *, busy_s: float = 5.0) -> sqlite3.Connection:
    """Open the file for writing, and make its tables if it is new.

    Args:
        path: the file.
        busy_s: how long to wait for somebody else's lock.

    Raises:
        SinkBroken: it holds another program's tables, or those of a newer version.
        sqlite3.Error: it cannot be opened.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=busy_s, check_same_thread=False
    )
    try:
        prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set the file's modes and bring its schema to the newest version.

    Raises:
        SinkBroken: it holds another program's tables, or those of a newer version.
        sqlite3.Error: it cannot be read or written.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner != APPLICATION_ID and tables:
        raise SinkBroken(f"{path} is another program's database; give the sink a file of its own")
    if version > SCHEMA_VERSION:
        raise SinkBroken(
            f"{path} has schema {version}, this version of mlops-events knows {SCHEMA_VERSION}; "
            "upgrade it, or give the sink another file"
        )
    if owner != APPLICATION_ID:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -32000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    if owner != APPLICATION_ID:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_TABLES}"
            f"PRAGMA application_id = {APPLICATION_ID};"
            f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    for old in range(version, SCHEMA_VERSION) if owner == APPLICATION_ID else ():
        connection.executescript(
            f"BEGIN IMMEDIATE; {_MIGRATIONS[old]} PRAGMA user_version = {old + 1}; COMMIT;"
        )
