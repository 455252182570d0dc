"""Aggregates over all nodes: what they come to, when they are published, what is kept."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.schemas.events import Origin, Stats
from mlops_events.schemas.frame import StatsFrame
from mlops_events.streams.crew import Crews
from mlops_events.streams.figures import summarise
from mlops_events.streams.fleet import Fleet, FleetOut
from mlops_events.streams.fleetsettings import FleetStatsSettings

SECOND = 1_000_000_000
SIZE = 10 * SECOND
START = 1_000_000 * SECOND
WAIT = 15 * SECOND
NAN = math.nan


class Lab:
    """A fleet, and nodes whose Stats it takes."""

    def __init__(self, **settings: Any) -> None:
        found = FleetStatsSettings(**settings)
        self.crews = Crews(found)
        self.fleet = Fleet(found, self.crews)

    def take(
        self,
        uid: int | str | None,
        samples: Sequence[float],
        *,
        window: int = 0,
        at: float | None = None,
        process: int = 0,
        **more: Any,
    ) -> None:
        """Take the Stats of a window of a node; it arrives `at` seconds after the first window."""
        frame = report(uid, samples, window=window, process=process, **more)
        self.fleet.take(frame, log_ns=log_ns(window, at))

    def due(self, at: float) -> list[Stats]:
        """Return what is published at that time."""
        return [s for out in self.fleet.due(now_ns=log_ns(0, at)) for s in out.stats]

    def settle(self, at: float = 300.0) -> None:
        """Have it know its nodes for longer than it waits for new ones."""
        self.due(at)


def log_ns(window: int, at: float | None) -> int:
    since = 10.0 * window + 12 if at is None else at
    return START + round(since * SECOND)


def report(
    uid: int | str | None,
    samples: Sequence[float],
    *,
    window: int = 0,
    process: int = 0,
    version: str = "1.0",
    role: str = "miner",
    final: bool = True,
    field: str = "loss",
    **origin: Any,
) -> StatsFrame:
    finite = [x for x in samples if math.isfinite(x)]
    figures = summarise(finite)
    return StatsFrame(
        emitter=f"{uid}.{process}.{version}"[:16].ljust(16).encode(),
        origin=Origin(
            run="r", role=role, uid=uid, version=version, **{"node": f"host-{uid}", **origin}
        ),
        stats=[
            Stats(
                kind="observation",
                name="training",
                field=field,
                start=START + window * SIZE,
                size=SIZE,
                revision=len(samples),
                final=final,
                count=len(finite),
                mean=figures.mean,
                min=figures.min,
                max=figures.max,
                median=figures.median,
                nonfinite=len(samples) - len(finite),
                first_nonfinite_step=None if len(finite) == len(samples) else 7,
            )
        ],
    )


@pytest.fixture
def lab() -> Lab:
    """Return a fleet that has known the nodes 1, 2 and 3 for a while, and published all of it."""
    made = Lab()
    for window in range(4):
        for uid in (1, 2, 3):
            made.take(uid, [float(uid)], window=window)
    assert len(made.due(60)) == 4
    return made


def test_all_nodes_of_a_window_make_one_aggregate(lab: Lab) -> None:
    """Counts are added, the mean is weighted, the median is that of the nodes' medians."""
    for uid, samples in ((1, [1.0, 2.0, 30.0]), (2, [4.0]), (3, [5.0, 7.0])):
        lab.take(uid, samples, window=4)
    (found,) = lab.due(53)

    assert found == Stats(
        kind="observation",
        name="training",
        field="loss",
        start=START + 4 * SIZE,
        size=SIZE,
        revision=6,
        final=True,
        count=6,
        mean=49 / 6,
        min=1.0,
        max=30.0,
        nodes=3,
        nodes_missing=0,
        median_of_medians=4.0,
    )


def test_the_origin_is_what_the_nodes_share() -> None:
    """Nothing of one node alone is in it; the emitter is the same wherever it is made."""
    outs: list[list[FleetOut]] = []
    for order in ((1, 2), (2, 1)):
        lab = Lab()
        for uid in order:
            lab.take(
                uid,
                [1.0],
                hotkey=f"5F{uid}",
                rank=None,
                project="p",
                netuid=3,
                group=f"g{uid}",
                version=" v1.0",
                tags={"region": "eu", "rack": str(uid)},
            )
        outs.append(lab.fleet.due(now_ns=log_ns(0, 40)))
    (first,), (second,) = outs

    assert first.origin == Origin(
        run="r", role="miner", project="p", netuid=3, version="1.0", tags={"region": "eu"}
    )
    assert (second.origin, second.emitter) == (first.origin, first.emitter)
    assert len(first.emitter) == 16


def test_a_window_waits_for_those_who_are_expected(lab: Lab) -> None:
    """Until the last report is 15 seconds old; then the missing are counted, and it isn't final."""
    lab.take(1, [1.0], window=4, at=52)
    lab.take(2, [2.0], window=4, at=54)

    assert lab.due(68) == []
    (found,) = lab.due(69)
    assert (found.nodes, found.nodes_missing, found.final, found.revision) == (2, 1, False, 2)


def test_what_comes_later_is_published_with_a_higher_revision(lab: Lab) -> None:
    """At once if that was the last one; nothing is published twice."""
    lab.take(1, [1.0], window=4)
    lab.due(80)
    lab.take(2, [2.0], window=4, at=81)
    lab.take(3, [3.0], window=4, at=81)
    (found,) = lab.due(82)
    lab.take(3, [3.0], window=4, at=83)

    assert (found.nodes, found.nodes_missing, found.final, found.revision) == (3, 0, True, 3)
    assert lab.due(120) == []


def test_new_nodes_are_waited_for() -> None:
    """The first one to report is not the whole fleet: others may just be starting too."""
    lab = Lab()
    lab.take(1, [1.0], at=10)

    assert lab.due(24) == []
    lab.take(2, [2.0], at=24.5)
    assert lab.due(24.9) == []
    (found,) = lab.due(25)
    assert (found.nodes, found.final) == (2, True)


def test_a_node_that_joins_is_not_missing_in_windows_before_it(lab: Lab) -> None:
    """It is expected from its first window on."""
    for uid in (1, 2, 3):
        lab.take(uid, [1.0], window=4, at=52)
    lab.take(4, [1.0], window=5, at=52)
    (before,) = lab.due(53)
    lab.take(1, [1.0], window=5, at=62)
    (later,) = lab.due(80)

    assert (before.nodes, before.nodes_missing) == (3, 0)
    assert (later.nodes, later.nodes_missing) == (2, 2)


def test_a_node_is_expected_for_what_it_reports() -> None:
    """One without a GPU is not missing in the series of GPUs."""
    lab = Lab()
    for window in range(4):
        lab.take(1, [1.0], window=window)
        lab.take(2, [1.0], window=window)
        frame = report(1, [50.0], window=window, field="utilization")
        gpu = [Stats(**{**as_dict(frame.stats[0]), "name": "gpu"})]
        lab.fleet.take(
            StatsFrame(emitter=frame.emitter, origin=frame.origin, stats=gpu),
            log_ns=log_ns(window, None),
        )

    assert {(s.name, s.nodes, s.nodes_missing) for s in lab.due(60)} == {
        ("training", 2, 0),
        ("gpu", 1, 0),
    }


def as_dict(stats: Stats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in stats.__struct_fields__}


def test_a_node_that_was_not_heard_for_long_is_not_expected(lab: Lab) -> None:
    """After ten minutes it counts no more."""
    for window in range(4, 70):
        for uid in (1, 2):
            lab.take(uid, [1.0], window=window)
        lab.due(10.0 * window + 28)
    for uid in (1, 2):
        lab.take(uid, [1.0], window=70)
    (found,) = lab.due(713)

    assert (found.nodes, found.nodes_missing, found.final) == (2, 0, True)


def test_a_replaced_process_and_its_successor_are_one_node(lab: Lab) -> None:
    """Counts and means are put together, the median is that of the one with more samples."""
    lab.take(1, [1.0, 2.0], window=4)
    lab.take(1, [10.0, 20.0, 60.0], window=4, process=1)
    lab.take(2, [20.0], window=4)
    lab.take(3, [30.0], window=4)
    (found,) = lab.due(53)

    assert (found.nodes, found.count, found.revision) == (3, 7, 7)
    assert found.mean == pytest.approx(143 / 7)
    assert found.median_of_medians == 20.0


def test_an_upgrade_in_the_middle_of_a_window(lab: Lab) -> None:
    """The node counts in both versions there, and is missing in the old one no more."""
    lab.take(1, [1.0], window=4)
    lab.take(2, [2.0], window=4)
    lab.take(3, [3.0], window=4)
    lab.take(3, [4.0, 5.0], window=4, version="2.0", process=1, at=55)
    both = {s.count: s for s in lab.due(75)}
    for uid in (1, 2):
        lab.take(uid, [1.0], window=5, at=75)
    lab.take(3, [1.0], window=5, version="2.0", process=1, at=75)
    after = lab.due(76)

    assert sorted((s.nodes, s.nodes_missing) for s in both.values()) == [(1, 0), (3, 0)]
    assert sorted((s.nodes, s.nodes_missing) for s in after) == [(1, 0), (2, 0)]


def test_roles_and_versions_are_groups_of_their_own() -> None:
    """Spellings of a version are one."""
    lab = Lab()
    lab.take(1, [1.0], version="1.0")
    lab.take(2, [1.0], version="v1.0")
    lab.take(3, [1.0], version="1.1")
    lab.take(4, [1.0], role="validator")
    outs = lab.fleet.due(now_ns=log_ns(0, 40))

    assert {(o.origin.role, o.origin.version, o.stats[0].nodes) for o in outs} == {
        ("miner", "1.0", 2),
        ("miner", "1.1", 1),
        ("validator", "1.0", 1),
    }
    assert len({o.emitter for o in outs}) == 3


def test_ranks_are_nodes_and_so_are_hosts_without_a_uid() -> None:
    """A node is its uid, else its host, and its rank."""
    lab = Lab()
    lab.take(1, [1.0], rank=0)
    lab.take(1, [1.0], rank=1, process=1)
    lab.take(None, [1.0], node="a", process=2)
    lab.take(None, [1.0], node="b", process=3)
    (found,) = lab.due(40)

    assert found.nodes == 4


def test_values_that_are_not_finite_are_counted() -> None:
    """A node that has nothing else reported all the same."""
    lab = Lab()
    lab.take(1, [NAN, NAN])
    lab.take(2, [NAN])
    (found,) = lab.due(40)

    assert (found.nodes, found.revision, found.count, found.nonfinite) == (2, 3, 0, 3)
    assert (found.mean, found.min, found.median_of_medians) == (None, None, None)
    assert found.first_nonfinite_step == 7


def test_means_whose_sum_is_too_large() -> None:
    """The mean of large numbers is one of them."""
    lab = Lab()
    for uid in (1, 2, 3):
        lab.take(uid, [1.6e308] * 3)
    (found,) = lab.due(40)

    assert found.mean == 1.6e308


@pytest.mark.parametrize("roster", [{"miner": ("1-3",)}, {"r/miner": (1, 2, 3), "miner": (9,)}])
def test_the_roster_says_who_is_expected(roster: dict[str, Any]) -> None:
    """Those who were never heard too; others count where they report, and are never missing."""
    lab = Lab(roster=roster)
    for window in range(4):
        lab.take(1, [1.0], window=window)
        lab.take(7, [1.0], window=window)
    lab.settle(60)
    lab.take(1, [1.0], window=4)
    lab.take(7, [1.0], window=4)

    assert lab.due(53) == []
    (found,) = lab.due(70)
    assert (found.nodes, found.nodes_missing) == (2, 2)


def test_a_node_of_the_roster_is_missing_in_the_version_it_ran_last() -> None:
    """One that was never heard, in the version that came up last."""
    lab = Lab(roster={"miner": (1, 2, 3, 4)})
    lab.take(1, [1.0], version="1.0", at=12)
    lab.take(2, [1.0], version="1.0", at=12)
    lab.take(3, [1.0], version="2.0", at=14)
    outs = lab.fleet.due(now_ns=log_ns(0, 40))
    lab.take(1, [1.0], version="1.0", window=200)
    lab.take(3, [1.0], version="2.0", window=200)
    later = lab.fleet.due(now_ns=log_ns(200, None) + WAIT)

    def missing(found: list[FleetOut]) -> dict[str, int | None]:
        return {o.origin.version: o.stats[0].nodes_missing for o in found}

    assert missing(outs) == {"1.0": 0, "2.0": 1}
    assert missing(later) == {"1.0": 1, "2.0": 1}


def test_a_program_that_ended_as_it_should_is_not_missed(lab: Lab) -> None:
    """Its last windows are waited for."""
    lab.crews.finish(b"3.0.1.0".ljust(16), log_ns=log_ns(0, 50))
    lab.take(1, [1.0], window=4, at=52)
    lab.take(2, [1.0], window=4, at=52)
    before = lab.due(53)
    (found,) = lab.due(67)

    assert before == []
    assert (found.nodes, found.nodes_missing, found.final) == (2, 0, True)


def test_open_windows_count_for_nothing(lab: Lab) -> None:
    """What a silent node's Stats say before they are final may change."""
    lab.take(1, [1.0], window=4, final=False)

    assert lab.due(90) == []


def test_old_windows_are_let_go_and_what_comes_for_them_is_counted() -> None:
    """By their end; those over steps by when they came."""
    lab = Lab(keep_s=100, seen_s=100)
    lab.take(1, [1.0])
    lab.due(40)
    lab.fleet.forget(now_ns=log_ns(0, 111))
    held = lab.fleet.held
    lab.take(2, [1.0], at=111)

    assert (held, lab.fleet.held, lab.fleet.late) == (0, 0, 1)
    assert lab.due(200) == []


def test_windows_over_steps_are_let_go_by_when_they_came() -> None:
    """Their start says nothing about the time."""
    lab = Lab(keep_s=100, seen_s=100)
    for uid, at in ((1, 12), (2, 50)):
        lab.fleet.take(by_steps(uid), log_ns=log_ns(0, at))
    kept = lab.due(80)
    lab.fleet.forget(now_ns=log_ns(0, 113))
    lab.fleet.take(by_steps(3), log_ns=log_ns(0, 114))

    assert [(s.by, s.start, s.size, s.nodes) for s in kept] == [("field:step", 300, 100, 2)]
    assert (lab.fleet.held, lab.fleet.late) == (0, 1)


def by_steps(uid: int) -> StatsFrame:
    frame = report(uid, [1.0])
    stats = Stats(**{**as_dict(frame.stats[0]), "by": "field:step", "start": 300, "size": 100})
    return StatsFrame(emitter=frame.emitter, origin=frame.origin, stats=[stats])


def test_the_oldest_windows_make_room() -> None:
    """They are published as they are, and counted."""
    lab = Lab(max_windows=4)
    for window in range(3):
        for uid in (1, 2):
            lab.take(uid, [1.0], window=window)

    assert (lab.fleet.held, lab.fleet.evicted) == (4, 1)
    found = lab.due(60)
    assert [(s.start - START, s.nodes) for s in found] == [(0, 2), (SIZE, 2), (2 * SIZE, 2)]


def test_what_was_published_before_a_restart_is_not_published_again(lab: Lab) -> None:
    """It is in the Stats topic; what a node adds is."""
    old = Lab()
    for uid in (1, 2):
        old.take(uid, [1.0])
    (out,) = old.fleet.due(now_ns=log_ns(0, 40))
    new = Lab()
    own = StatsFrame(emitter=out.emitter, origin=out.origin, stats=out.stats)
    new.take(1, [1.0])
    new.fleet.take(own, log_ns=log_ns(0, 41))
    new.take(2, [1.0])
    again = new.due(60)
    new.take(3, [1.0], at=61)

    assert again == []
    assert [s.nodes for s in new.due(80)] == [3]


def test_a_stop_publishes_what_waits(lab: Lab) -> None:
    """With whom it lacks."""
    lab.take(1, [1.0], window=4, at=52)
    (out,) = lab.fleet.rest(now_ns=log_ns(0, 53))

    assert (out.stats[0].nodes, out.stats[0].nodes_missing) == (1, 2)
    assert lab.fleet.rest(now_ns=log_ns(0, 53)) == []


SAMPLES = st.lists(
    st.one_of(st.floats(-1e300, 1e300), st.sampled_from([NAN, math.inf, 0.0, -0.0])), min_size=1
)


@given(
    reports=st.dictionaries(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 1)), SAMPLES, min_size=1
    ),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_of_arrival_means_nothing(
    reports: dict[tuple[int, int, int], list[float]], shuffle: Any
) -> None:
    """Whoever publishes when: what is published last of a window is the same, and it is right."""

    def last(order: list[tuple[int, int, int]], every: int) -> dict[int, Stats]:
        lab = Lab()
        found: dict[int, Stats] = {}
        for number, (uid, window, process) in enumerate(order):
            at = 40.0 + number
            lab.take(uid, reports[uid, window, process], window=window, process=process, at=at)
            if number % every == 0:
                keep(found, lab.due(at + 20))
        keep(found, lab.due(1000))
        return found

    def keep(found: dict[int, Stats], published: list[Stats]) -> None:
        for one in published:
            known = found.get(one.start)
            assert known is None or known.revision < one.revision
            found[one.start] = one

    straight = sorted(reports)
    mixed = list(straight)
    shuffle.shuffle(mixed)
    first, second = last(straight, 1), last(mixed, 3)

    neutral = {"nodes_missing": None, "final": True}  # who is expected grows with who came
    assert {k: {**as_dict(s), **neutral} for k, s in first.items()} == {
        k: {**as_dict(s), **neutral} for k, s in second.items()
    }
    for start, stats in first.items():
        window = (start - START) // SIZE
        parts = [x for (_, w, _), x in reports.items() if w == window]
        everything = np.array([x for part in parts for x in part])
        finite = everything[np.isfinite(everything)]
        assert stats.revision == everything.size
        assert stats.count == finite.size
        assert stats.nodes == len({uid for uid, w, _ in reports if w == window})
        if finite.size:
            assert (stats.min, stats.max) == (finite.min(), finite.max())
            slack = 1e-12 * float(np.max(np.abs(finite)))
            assert stats.mean == pytest.approx(
                float(np.mean(finite.astype(np.longdouble))), abs=slack
            )
        else:
            assert (stats.min, stats.mean) == (None, None)


def test_an_empty_record_is_no_report() -> None:
    """Nor does it make a node known."""
    lab = Lab()
    lab.fleet.take(
        StatsFrame(emitter=bytes(16), origin=Origin(run="r"), stats=[]), log_ns=log_ns(0, None)
    )

    assert list(lab.crews) == []


def test_memory_is_let_go(lab: Lab) -> None:
    """When nothing is heard of a fleet any more."""
    before = (lab.fleet.held, len(list(lab.crews)))
    later = log_ns(0, 100_000)
    lab.fleet.forget(now_ns=later)
    lab.crews.forget(now_ns=later)

    assert before == (12, 3)
    assert (lab.fleet.held, list(lab.crews)) == (0, [])
