"""Compares Stats over all nodes with what the nodes emitted, put together by numpy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mlops_events.schemas.events import Origin, Stats, StatsKey
from mlops_events.sinks.sqlite_store import SQLiteStore
from mlops_events.streams.crew import Group, Node
from mlops_events.streams.fleet import fleet_emitter

__all__ = ["FleetFindings", "fleet_has_arrived", "verify_fleet"]

_TOLERANCE = 1e-12
"""Of the largest sample, as for the windows of one node; twice, since means are put together."""


class FleetFindings(msgspec.Struct, kw_only=True):
    """What was found: windows that are right or `wrong`, and `partial` ones, where a node lacks."""

    checked: int = 0
    partial: int = 0
    wrong: list[str] = []


def fleet_has_arrived(store: SQLiteStore) -> bool:
    """Whether every window of a node that is stored is in one of its fleet."""
    expected: defaultdict[StatsKey, int] = defaultdict(int)
    for found in store.windows(final=True):
        expected[found.stats.key(fleet_emitter(Group.of(found.origin)))] += found.stats.revision
    stored = {f.stats.key(f.emitter): f.stats.revision for f in store.windows(fleet=True)}
    return all(stored.get(key, 0) >= revision for key, revision in expected.items())


def verify_fleet(store: SQLiteStore, samples: Mapping[StatsKey, Sequence[float]]) -> FleetFindings:
    """Compare the Stats of fleets that are stored.

    Args:
        store: where they are.
        samples: of every window of every emitter, as they were emitted.
    """
    origins = {found.emitter: found.origin for found in store.emitters()}
    parts: defaultdict[StatsKey, list[tuple[Origin, Sequence[float]]]] = defaultdict(list)
    for key, numbers in samples.items():
        origin = origins.get(key.emitter)
        if origin is not None:
            place = key._replace(emitter=fleet_emitter(Group.of(origin)))
            parts[place].append((origin, numbers))
    findings = FleetFindings(partial=len(parts))
    for found in store.windows(fleet=True):
        key = found.stats.key(found.emitter)
        if key not in parts:  # of other emitters
            continue
        if found.stats.revision != sum(len(numbers) for _, numbers in parts[key]):
            continue
        findings.partial -= 1
        findings.checked += 1
        wrong = _differences(found.stats, parts[key])
        if wrong:
            name = f"{found.stats.name}.{found.stats.field} at {found.stats.start}"
            where = f"{found.origin.role} {found.origin.version}"
            findings.wrong = [*findings.wrong, f"wrong: {name} of {where}: {', '.join(wrong)}"]
    return findings


def _differences(stats: Stats, parts: Sequence[tuple[Origin, Sequence[float]]]) -> list[str]:
    """Return what is not as numpy has it."""
    largest: dict[Node, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    finite: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    for origin, numbers in parts:
        part = np.array(numbers, dtype=np.float64)
        part = part[np.isfinite(part)]
        finite.append(part)
        node = Node.of(origin)
        if node not in largest or _weight(part) > _weight(largest[node]):
            largest[node] = part
    whole = np.concatenate(finite)
    medians = [float(np.median(part)) for part in largest.values() if part.size]
    right: dict[str, float | int | None] = {
        "nodes": len(largest),
        "count": int(whole.size),
        "min": float(whole.min()) if whole.size else None,
        "max": float(whole.max()) if whole.size else None,
        "mean": float(np.mean(whole, dtype=np.longdouble)) if whole.size else None,
        "median_of_medians": float(np.median(medians)) if medians else None,
        "median": None,
    }
    slack = 2 * _TOLERANCE * float(np.max(np.abs(whole))) if whole.size else 0.0
    wrong: list[str] = []
    for name, value in right.items():
        found = getattr(stats, name)
        same = found == value
        if not same and name in ("mean", "median_of_medians") and found is not None:
            same = value is not None and abs(found - value) <= slack
        if not same:
            wrong.append(f"{name} is {found}, numpy has {value}")
    return wrong


def _weight(part: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[int, float]:
    return part.size, float(np.median(part)) if part.size else 0.0
