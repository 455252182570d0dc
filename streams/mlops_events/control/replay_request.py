"""What a replay is asked for: which events, of which time, into which sink."""

import hashlib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import msgspec

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Kind, Origin, RawKind
from mlops_events.schemas.text import duration_ns
from mlops_events.streams.route import ALL_KINDS, DEFAULT_ROUTES
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.tag import normalise_version

__all__ = ["WINDOWED", "ReplayRequest", "parse_kinds", "parse_time", "show_time", "taken_kinds"]

WINDOWED: Final[tuple[RawKind, ...]] = ("observation", "profile")
"""The kinds that Stats are made of."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NS: Final = 2**62


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of events whose time lies in [since, until); times in nanoseconds.

    A record is looked for from `margin` before `since` to `slack` after `until`, by the time of its
    arrival. `run` and `version` are None where all are wanted; a version is normalised.
    """

    kinds: tuple[Kind, ...]
    sink: str
    since_ns: int
    until_ns: int
    slack_ns: int
    margin_ns: int
    run: str | None = None
    version: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.since_ns >= self.until_ns:
            raise ValueError(
                f"--since {show_time(self.since_ns)} is not before "
                f"--until {show_time(self.until_ns)}"
            )

    @property
    def sources(self) -> tuple[RawKind, ...]:
        """The kinds of the raw topics to read."""
        wanted = {kind for kind in self.kinds if kind != "stats"}
        if "stats" in self.kinds:
            wanted.update(WINDOWED)
        return tuple(kind for kind in get_args(RawKind) if kind in wanted)

    def is_about(self, origin: Origin) -> bool:
        """Whether events of this origin are wanted."""
        if self.run is not None and origin.run != self.run:
            return False
        return self.version is None or normalise_version(origin.version) == self.version

    def name(self, number: int) -> str:
        """Return the replay's id: what, from when to when, where to, and the how-many-th time."""
        what = msgspec.json.encode(msgspec.structs.replace(self, dry_run=False))
        return f"{hashlib.blake2b(what, digest_size=4).hexdigest()}-{number}"


def parse_time(text: str, *, now_ns: int, option: str) -> int:
    """Return the nanoseconds since the epoch of a time that somebody wrote.

    It is ISO 8601, in UTC if it names no zone, or `now`, or how long ago: `-2h`.

    Raises:
        ConfigError: it is none of them.
    """
    found = _time(text.strip(), now_ns)
    if found is None or not 0 <= found < _MAX_NS:
        raise ConfigError(
            f"{option} {text!r} is no time; write one such as 2026-01-31T12:00:00Z, "
            "2026-01-31 12:00 (UTC), -2h or now"
        )
    return found


def _time(text: str, now_ns: int) -> int | None:
    if text == "now":
        return now_ns
    try:
        if text.startswith("-"):
            return now_ns - duration_ns(text[1:])
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def show_time(time_ns: int) -> str:
    """Return a time as people read it, in UTC."""
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Return the kinds in a list separated by commas.

    Raises:
        ConfigError: one is unknown, or there is none.
    """
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(names.difference(ALL_KINDS))
    if unknown or not names:
        found = f"no kind {', '.join(unknown)}" if unknown else "no kind given"
        raise ConfigError(f"{found}; kinds: {', '.join(ALL_KINDS)}")
    return tuple(kind for kind in ALL_KINDS if kind in names)


def taken_kinds(sink: str, settings: StreamSettings, *, asked: Collection[Kind]) -> frozenset[Kind]:
    """Return those kinds that a replay writes: what the sink's routes take of what is asked for.

    Stats are replayed with the observations or profiles that they are made of.

    Raises:
        ConfigError: the sink takes none of them.
    """
    routes: Mapping[str, Collection[Kind]] = {**DEFAULT_ROUTES, **settings.routes}
    takes = frozenset(routes.get(sink, ALL_KINDS))
    wanted = set(asked)
    if wanted.intersection(WINDOWED):
        wanted.add("stats")
    if not takes & wanted:
        listed = ", ".join(kind for kind in ALL_KINDS if kind in takes)
        raise ConfigError(
            f"sink {sink!r} takes {listed or 'nothing'}, and none of {', '.join(asked)}; "
            "MLOPS_EVENTS_STREAM_ROUTES can change that"
        )
    return takes & frozenset(wanted)
