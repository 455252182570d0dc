"""What simulated nodes say that they emitted, in a form that stored events can be compared with.

`mlops-emit simulate --truth FILE` writes it: a JSON line for each event, and at its end one for each
emitter. Numbers that are not finite are the texts "NaN", "Infinity" and "-Infinity".
"""

import math
import os
from array import array
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mlops_events.schemas.catalog import is_step_like
from mlops_events.schemas.events import Log, Observation, Profile, Run, StatsKey
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.streams.by import By

__all__ = [
    "Account",
    "Fingerprint",
    "TrueEvent",
    "Truth",
    "WindowRules",
    "Windows",
    "fingerprint",
    "give_up_large",
    "plain",
    "samples_of",
]

_GIVEN_UP = ".given-up"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Fingerprint(NamedTuple):
    """Two events with the same `content` are the same; `identity` leaves their values out."""

    identity: bytes
    content: bytes


class TrueEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it was emitted; `values` are its fields as JSON has them."""

    emitter: bytes
    kind: str
    values: dict[str, Any]

    def __str__(self) -> str:
        values = self.values
        name = values.get("name") or values.get("level") or values.get("state") or ""
        return f"{self.kind} {name} at step {values.get('step')} of {self.emitter.hex()[:8]}"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What an emitter says at its end: events by kind that got an id, and that never did.

    `sent` were acknowledged; `ended` says that no more will come of any kind.
    """

    emitter: str
    role: str = ""
    uid: int | str | None = None
    version: str = ""
    accepted: dict[str, int] = {}
    dropped: dict[str, int] = {}
    sent: dict[str, int] = {}
    ended: bool = False

    def absent(self, kind: str) -> int:
        """How many events of a kind need not have arrived."""
        accepted = self.accepted.get(kind, 0)
        return self.dropped.get(kind, 0) + accepted - self.sent.get(kind, accepted)


class WindowRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the streams make windows; `lateness` in nanoseconds."""

    by: tuple[By, ...]
    lateness: int


class Windows:
    """The windows that events belong to, with all their samples.

    Args:
        events: of any emitters.
        rules: how windows are made.
    """

    def __init__(self, events: Iterable[TrueEvent], rules: WindowRules) -> None:
        self.samples: defaultdict[StatsKey, array[float]] = defaultdict(lambda: array("d"))
        self._lateness = rules.lateness
        self._newest: dict[tuple[bytes, str, By], int] = {}
        for event in events:
            samples = list(samples_of(event))
            for by in rules.by if event.kind in ("observation", "profile") else ():
                value = event.values["ts"] if by.over_time else _whole_number(event, by.name)
                if value is None:
                    continue
                place = (event.emitter, event.kind, by)
                self._newest[place] = max(self._newest.get(place, value), value)
                start = value // by.size * by.size
                for name, field, numbers in samples:
                    key = StatsKey(event.emitter, event.kind, name, field, by.name, start, by.size)
                    self.samples[key].extend(numbers)

    def due(self, ended: Container[bytes]) -> set[StatsKey]:
        """Return those that must be final: their emitter has ended, or has gone past them."""
        return {key for key in self.samples if key.emitter in ended or self._is_passed(key)}

    def _is_passed(self, key: StatsKey) -> bool:
        by = By(key.by, key.size)
        newest = self._newest[key.emitter, key.kind, by]
        end = key.start + key.size
        if by.over_time:
            return end <= newest - self._lateness
        return end < newest // by.size * by.size


class Truth:
    """All that was emitted in the runs of one folder.

    Args:
        folder: of the files that simulated nodes wrote, one a run, named by its start in
            nanoseconds since the epoch.
        rules: how windows are made.
    """

    def __init__(self, folder: Path, rules: WindowRules) -> None:
        self.rules = rules
        self.accounts: dict[bytes, Account] = {}
        self._folder = folder
        emitters: set[bytes] = set()
        for found in _read(folder):
            if isinstance(found, Account):
                self.accounts[bytes.fromhex(found.emitter)] = found
            else:
                emitters.add(found.emitter)
        self.emitters = frozenset(emitters)
        starts = [int(path.stem) for path in folder.glob("*.jsonl")]
        self.began_ns = min(starts, default=0)
        self.ended = frozenset(e for e, account in self.accounts.items() if account.ended)
        self._due = Windows(self.events(), rules).due(self.ended)

    def events(self) -> Iterator[TrueEvent]:
        """Yield what was emitted."""
        return (found for found in _read(self._folder) if isinstance(found, TrueEvent))

    def has_arrived(self, store: SQLiteStore) -> bool:
        """Whether all that emitters say was acknowledged is stored, and all due windows are."""
        found = {emitter.emitter: emitter.sent for emitter in store.emitters()}
        for emitter, account in self.accounts.items():
            for kind, count in account.sent.items():
                sent = found.get(emitter, {}).get(kind)
                if sent is None or sent.stored < count or (account.ended and not sent.ended):
                    return False
        final = {window.stats.key(window.emitter) for window in store.windows(final=True)}
        return self._due <= final


def give_up_large(folder: Path, *, max_bytes: int) -> bool:
    """Bound the space that truth takes; return whether that of the run that goes on was given up.

    The oldest files go first. The newest is still written to: it is emptied now and then, under a
    name that nobody reads.
    """
    paths = sorted(folder.glob("*.jsonl"))
    sizes = [path.stat().st_size for path in paths]
    given_up = False
    while paths and sum(sizes) > max_bytes:
        given_up = len(paths) == 1
        path = paths.pop(0)
        del sizes[0]
        path.rename(path.with_suffix(_GIVEN_UP))
    for path in folder.glob(f"*{_GIVEN_UP}"):
        os.truncate(path, 0)
    return given_up


def fingerprint(
    kind: str, event: Mapping[str, Any] | Run | Observation | Profile | Log
) -> Fingerprint:
    """Return an event's fingerprint, from the truth or from a store."""
    values = event if isinstance(event, Mapping) else msgspec.structs.asdict(event)
    name = values.get("name") or values.get("level") or values.get("state")
    identity = (kind, values["ts"], name, values.get("step"))
    content = {key: plain(value) for key, value in values.items() if value not in (None, "", {})}
    return Fingerprint(_digest(identity, 8), _digest((kind, content), 16))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numbers that are not finite as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _read(folder: Path) -> Iterator[TrueEvent | Account]:
    """Yield all that was written, run by run; a line that was cut off by a kill is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                found = msgspec.json.decode(line)
                if found.pop("t") == "emitter":
                    yield msgspec.convert(found, Account)
                else:
                    emitter = bytes.fromhex(found.pop("emitter"))
                    yield TrueEvent(emitter=emitter, kind=found.pop("kind"), values=found)


def samples_of(event: TrueEvent) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the name, the field and the numbers that go into windows.

    These are the numbers in observations, and in lists there, unless they say where training
    stands; and the seconds of profiles.
    """
    values = event.values
    if event.kind == "profile":
        yield values["name"], "duration", [values["duration_ns"] / 1e9]
    elif event.kind == "observation":
        for field, value in values["fields"].items():
            numbers = [
                n for v in (value if isinstance(value, list) else [value]) for n in _number(v)
            ]
            if numbers and not is_step_like(field):
                yield values["name"], field, numbers


def _whole_number(event: TrueEvent, name: str) -> int | None:
    """Return the whole number that an event has in a field, a tag or, by its name, as its step."""
    values = event.values
    found: list[Any] = [
        place[name]
        for place in (values.get("fields"), values.get("tags"))
        if place and name in place
    ]
    if name in ("step", "global_step"):
        found.append(values.get("step"))
    value = found[0] if found else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> list[float]:
    if isinstance(value, str) and value in _NOT_FINITE:
        return [_NOT_FINITE[value]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [float(value)]
    return []


def _digest(value: Any, size: int) -> bytes:
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=size).digest()
