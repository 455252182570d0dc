"""Which batches of the embedded broker are deleted: by age, number and size, oldest first.

The broker itself keeps everything for ever. Its objects are `clusters/<id>/meta.json`, which holds
the settings of the topics, and `.../topics/<topic>/partitions/<n>/records/<offset>.batch`; only
the latter are ever deleted, and never the newest of a partition, which tells where its log ends.
"""

import heapq
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from mlops_events.control.segments import ObjectLog

__all__ = ["Retention", "excess"]

_RECORDS = re.compile(r"clusters/[^/]+/topics/([^/]+)/partitions/\d+/records/")
_CLUSTER = re.compile(r"clusters/[^/]+/")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds. `max_age_ms` is for topics that set no `retention.ms` of their own.

    A fetch lists the whole partition twice, so a partition keeps `few_batches` where it can: so
    many, and those of the last `min_age_ms`, which a reader that was away may still want, but
    never more than `max_batches`. `max_bytes` is for all partitions together.
    """

    max_age_ms: Annotated[int, msgspec.Meta(ge=1)] = 7 * 86_400_000
    min_age_ms: Annotated[int, msgspec.Meta(ge=0)] = 600_000
    few_batches: Annotated[int, msgspec.Meta(ge=1)] = 2_000
    max_batches: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 2 << 30


def excess(log: ObjectLog, limits: Retention, *, now_ms: int) -> dict[str, int]:
    """Return how many of the oldest batches of which folder are beyond the limits."""
    ages = _topic_ages(log)
    found: dict[str, int] = {}
    spare: list[tuple[str, int]] = []
    for folder in log.folders():
        match = _RECORDS.fullmatch(folder)
        if match is None:
            continue
        keys = log.keys(folder)
        oldest_ms = now_ms - ages.get(match[1], limits.max_age_ms)
        count = max(0, len(keys) - limits.few_batches)
        if count:
            young_ms = now_ms - limits.min_age_ms
            young = bisect_left(keys, young_ms, key=lambda key: log[key].modified_ms)
            count = max(min(count, young), len(keys) - limits.max_batches)
        while count < len(keys) - 1 and log[keys[count]].modified_ms < oldest_ms:
            count += 1
        if count:
            found[folder] = count
        spare.append((folder, count))
    over = log.live_bytes - limits.max_bytes
    if over > 0:
        # A tenth more than it must be, so that the next write is not over again.
        _drop_bytes(log, spare, over + limits.max_bytes // 10, found)
    return found


def _drop_bytes(
    log: ObjectLog, folders: list[tuple[str, int]], need: int, found: dict[str, int]
) -> None:
    for folder, count in folders:
        need -= sum(log[key].size for key in log.keys(folder)[:count])
    by_age = heapq.merge(*(_ages(log, folder, count) for folder, count in folders))
    for _, folder, size in by_age:
        if need <= 0:
            break
        need -= size
        found[folder] = found.get(folder, 0) + 1


def _ages(log: ObjectLog, folder: str, count: int) -> Iterator[tuple[int, str, int]]:
    for key in log.keys(folder)[count:-1]:
        entry = log[key]
        yield entry.modified_ms, folder, entry.size


class _Setting(msgspec.Struct):
    name: str
    value: str | None = None


class _Topic(msgspec.Struct):
    configs: list[_Setting] = []


class _TopicMeta(msgspec.Struct):
    topic: _Topic


class _Meta(msgspec.Struct):
    topics: Mapping[str, _TopicMeta] = {}


def _topic_ages(log: ObjectLog) -> dict[str, int]:
    ages: dict[str, int] = {}
    for folder in log.folders():
        entry = log.get(folder + "meta.json") if _CLUSTER.fullmatch(folder) else None
        if entry:
            meta = msgspec.json.decode(log.read(entry), type=_Meta)
            for name, found in meta.topics.items():
                for setting in found.topic.configs:
                    if setting.name == "retention.ms" and (setting.value or "").isdigit():
                        ages[name] = int(setting.value or 0)
    return ages
