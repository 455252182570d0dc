"""Puts together what the nodes of a fleet reported: their Stats, and what their origins share."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from math import fsum, isfinite
from typing import Final

import msgspec

from mlops_events.schemas.events import Origin, Stats, StatsKey
from mlops_events.streams.crew import Group, Node
from mlops_events.streams.figures import summarise

__all__ = ["Report", "combine", "share"]


class Report(msgspec.Struct, frozen=True, gc=False):
    """What of one process's Stats goes into the fleet's."""

    node: Node
    revision: int
    count: int
    mean: float | None
    min: float | None
    max: float | None
    median: float | None
    nonfinite: int
    first_nonfinite_step: int | None

    @classmethod
    def of(cls, stats: Stats, node: Node) -> "Report":
        """Return what a process of a node reported."""
        return cls(
            node=node,
            revision=stats.revision,
            count=stats.count,
            mean=stats.mean,
            min=stats.min,
            max=stats.max,
            median=stats.median,
            nonfinite=stats.nonfinite,
            first_nonfinite_step=stats.first_nonfinite_step,
        )


def combine(key: StatsKey, reports: Collection[Report], *, missing: int) -> Stats:
    """Return the Stats of a window over all nodes; the order of the reports means nothing.

    The processes of one node in a window, two only where it was replaced, are one node: its median
    is that of the one with most samples.

    Args:
        key: of the window, with the group's emitter.
        reports: of every process.
        missing: how many nodes are expected and did not report.
    """
    largest: dict[Node, Report] = {}
    for report in reports:
        other = largest.get(report.node)
        if other is None or _weight(report) > _weight(other):
            largest[report.node] = report
    smallest = [r.min for r in reports if r.min is not None]
    highest = [r.max for r in reports if r.max is not None]
    steps = [r.first_nonfinite_step for r in reports if r.first_nonfinite_step is not None]
    count = sum(r.count for r in reports)
    low, high = min(smallest, default=None), max(highest, default=None)
    mean = _mean(reports, count)
    if mean is not None and low is not None and high is not None:
        mean = min(max(mean, low), high)
    return Stats(
        kind=key.kind,
        name=key.name,
        field=key.field,
        start=key.start,
        size=key.size,
        revision=sum(r.revision for r in reports),
        final=missing == 0,
        count=count,
        mean=mean,
        min=low,
        max=high,
        nonfinite=sum(r.nonfinite for r in reports),
        first_nonfinite_step=min(steps, default=None),
        by=key.by,
        nodes=len(largest),
        nodes_missing=missing,
        median_of_medians=summarise(
            [r.median for r in largest.values() if r.median is not None]
        ).median,
    )


def _weight(report: Report) -> tuple[int, float]:
    """What decides whose median stands for a node; by the median itself where counts are equal."""
    return report.count, 0.0 if report.median is None else report.median


def _mean(reports: Iterable[Report], count: int) -> float | None:
    """Return the mean of all samples from the means of parts, None if there are no samples."""
    parts = [(r.mean, r.count) for r in reports if r.mean is not None]
    if not parts:
        return None
    sums = [mean * part for mean, part in parts]
    if all(map(isfinite, sums)):
        with suppress(OverflowError):  # finite numbers whose sum is not
            return fsum(sums) / count
    return fsum(mean * (part / count) for mean, part in parts)


def share(known: Origin | None, origin: Origin, group: Group) -> Origin:
    """Return what all nodes of a group have in common; nothing that is one node's alone.

    Args:
        known: what those before have in common, None if there are none.
        origin: the next one's.
        group: theirs.
    """
    if known is None:
        return msgspec.structs.replace(
            origin, uid=None, hotkey="", rank=None, node="", version=group.version
        )
    if known.tags == origin.tags and all(
        getattr(known, name) == getattr(origin, name) for name in _SHARED
    ):
        return known
    same = {
        name: getattr(known, name)
        for name in _SHARED
        if getattr(known, name) == getattr(origin, name)
    }
    tags = {k: v for k, v in known.tags.items() if origin.tags.get(k) == v}
    return Origin(run=group.run, role=group.role, version=group.version, tags=tags, **same)


_SHARED: Final = ("project", "world_size", "environment", "group", "job_type", "netuid")
