"""Retention: by age, number and size, oldest first, and never what the broker cannot do without."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlops_events.control.retention import Retention, excess
from mlops_events.control.segments import ObjectLog

CLUSTER = "clusters/c/"
Fill = Callable[..., str]


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[ObjectLog]:
    log = ObjectLog(tmp_path)
    yield log
    log.close()


@pytest.fixture
def fill(objects: ObjectLog) -> Fill:
    """Write batches of a partition, one a second from second 0, and return their folder."""

    def make(topic: str, *, count: int, size: int = 1) -> str:
        folder = f"{CLUSTER}topics/{topic}/partitions/0000000000/records/"
        for number in range(count):
            objects.put(f"{folder}{number:020d}.batch", bytes(size), modified_ms=number * 1000)
        return folder

    return make


def test_nothing_goes_within_the_limits(objects: ObjectLog, fill: Fill) -> None:
    """Ten small young batches."""
    fill("t", count=10)

    assert excess(objects, Retention(), now_ms=10_000) == {}


def test_old_batches_go_except_the_newest(objects: ObjectLog, fill: Fill) -> None:
    """A partition without a batch would forget where its log ends."""
    folder = fill("t", count=10)
    limits = Retention(max_age_ms=5_000)

    assert excess(objects, limits, now_ms=9_000) == {folder: 4}
    assert excess(objects, limits, now_ms=99_000) == {folder: 9}


def test_a_topic_that_sets_its_retention_keeps_to_it(objects: ObjectLog, fill: Fill) -> None:
    """The broker keeps the settings of topics in an object of its own."""
    short, plain = fill("short", count=10), fill("plain", count=10)
    objects.put(
        CLUSTER + "meta.json",
        b'{"producers":{},"topics":{"short":{"id":"1","topic":{"name":"short","configs":'
        b'[{"name":"cleanup.policy","value":"delete"},{"name":"retention.ms","value":"2000"}]}},'
        b'"plain":{"id":"2","topic":{"name":"plain","configs":[]}}}}',
        modified_ms=0,
    )

    found = excess(objects, Retention(max_age_ms=6_000), now_ms=9_000)

    assert found == {short: 7, plain: 3}


def test_a_partition_holds_few_batches_and_young_ones(objects: ObjectLog, fill: Fill) -> None:
    """The broker lists them all at each fetch; a reader that was away wants the last minutes."""
    folder = fill("t", count=10)
    limits = Retention(few_batches=3, min_age_ms=4_000)

    assert excess(objects, limits, now_ms=99_000) == {folder: 7}
    assert excess(objects, limits, now_ms=9_000) == {folder: 5}
    assert excess(objects, limits, now_ms=4_000) == {}


def test_a_partition_never_holds_too_many_batches(objects: ObjectLog, fill: Fill) -> None:
    """However young they are."""
    folder = fill("t", count=10)

    assert excess(objects, Retention(few_batches=3, max_batches=8), now_ms=0) == {folder: 2}


def test_the_oldest_of_all_partitions_go_when_it_is_too_much(
    objects: ObjectLog, fill: Fill
) -> None:
    """A quiet partition keeps what is as young as what a busy one keeps."""
    busy, quiet = fill("busy", count=100, size=1000), fill("quiet", count=10, size=1000)
    limits = Retention(max_bytes=80_000)

    found = excess(objects, limits, now_ms=0)
    for folder, count in found.items():
        objects.drop_oldest(folder, count)

    assert found[quiet] == 9
    assert 25 <= found[busy] <= 50
    assert objects.live_bytes <= limits.max_bytes
    assert excess(objects, limits, now_ms=0) == {}


def test_only_batches_are_ever_deleted(objects: ObjectLog) -> None:
    """Groups, offsets, watermarks and whatever else the broker keeps stay for ever."""
    for key in ("groups/consumers/g.json", "topics/t/partitions/0000000000/watermark.json"):
        objects.put(CLUSTER + key, bytes(100), modified_ms=0)

    assert (
        excess(
            objects, Retention(max_age_ms=1, min_age_ms=0, max_bytes=1, few_batches=1), now_ms=99
        )
        == {}
    )
