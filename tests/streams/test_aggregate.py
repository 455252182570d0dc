"""Windows: which events go into them, when they close, and what their Stats say."""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.schemas.events import Log, Origin, Profile, RawKind, Stats
from mlops_events.schemas.frame import Frame, FrameEncoder, Series, decode_frame
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.aggregate import EmitterWindows, Refused, Rules, Windows
from mlops_events.streams.by import By
from mlops_events.streams.figures import summarise

RULES = Rules("observation", by=(By("time", 10),), lateness=5, keep=1000, ahead=100)
PROFILES = RULES._replace(kind="profile")
EMITTER = bytes(16)
NAN, INF = math.nan, math.inf


def frame(
    events: Sequence[Any],
    *,
    fields: Sequence[str] = ("loss",),
    seq: int = 0,
    closed: int = 10_000,
    kind: RawKind = "observation",
) -> Frame:
    """Return a frame; of observations a row is (ts, value, ...), a free one [ts, {field: value}]."""
    table = [Series(0, "training", list(fields))]
    wire = [e if isinstance(e, Profile | Log) else _wire(e) for e in events]
    data = FrameEncoder(emitter=EMITTER, kind=kind, origin=Origin()).encode(
        [ENCODER.encode(e) for e in wire],
        seq=seq,
        closed_ns=closed,
        accepted=len(events),
        dropped=0,
        series=table if kind == "observation" else (),
    )
    return decode_frame(data)


def _wire(event: Any) -> tuple[Any, ...]:
    ts, *values = event
    if isinstance(event, list):
        return ("m", ts, ts * 100, "training", *values)
    return ("r", 0, ts, ts * 100, values)


def windows_at(watermark: int) -> EmitterWindows:
    """Return the windows of an emitter with this watermark."""
    return EmitterWindows(each=[Windows(watermark=watermark)])


def taken(*frames: Frame, log: int = 1000, rules: Rules = RULES) -> EmitterWindows:
    """Return the windows that these frames fill."""
    windows = EmitterWindows()
    for one in frames:
        windows.take(one, log_ns=log, rules=rules)
    return windows


def stats_of(*frames: Frame, log: int = 1000, rules: Rules = RULES) -> dict[tuple[str, int], Stats]:
    """Return the Stats of all windows that these frames fill, by field and start."""
    stats = taken(*frames, log=log, rules=rules).close_all(rules, closed_by="end")
    return {(s.field, s.start): s for s in stats}


# --- what is a sample -----------------------------------------------------------------------------


@pytest.mark.parametrize("row", [True, False], ids=["row", "free"])
@pytest.mark.parametrize(
    ("values", "numbers", "nonfinite"),
    [
        ([1.5, 2.5], [1.5, 2.5], 0),
        ([1, 2.5], [1.0, 2.5], 0),
        ([2**64 - 1, -(2**63)], [1.8446744073709552e19, -9.223372036854775808e18], 0),
        ([True, 2.0], [2.0], 0),
        ([False, True], None, 0),
        (["x", 2.0], [2.0], 0),
        ([None, 2.0], [2.0], 0),
        ([None, None], None, 0),
        ([{"a": 1.0}, 2.0], [2.0], 0),
        ([b"x", 2.0], [2.0], 0),
        ([[1.0, 2], 3.0], [1.0, 2.0, 3.0], 0),
        ([[], 3.0], [3.0], 0),
        ([[], []], None, 0),
        ([[1.0, "x", True, None, [5.0]], 3.0], [1.0, 3.0], 0),
        ([[1.0, NAN], 3.0], [1.0, 3.0], 1),
        ([NAN, 3.0], [3.0], 1),
        ([NAN, -INF], [], 2),
        ([sys.float_info.max, sys.float_info.max], [sys.float_info.max] * 2, 0),
    ],
    ids=str,
)
def test_numbers_are_samples(
    row: bool, values: list[Any], numbers: list[float] | None, nonfinite: int
) -> None:
    """Also those in lists; bools, text, None, mappings and bytes are not."""
    events = [(k, v) if row else [k, {"loss": v}] for k, v in enumerate(values)]
    found = stats_of(frame(events))

    if numbers is None:
        assert not found
        return
    stats = found["loss", 0]
    assert (stats.count, stats.nonfinite) == (len(numbers), nonfinite)
    assert stats.revision == len(numbers) + nonfinite
    if numbers:
        assert (stats.min, stats.max) == (min(numbers), max(numbers))
    else:
        assert stats.mean is stats.min is stats.max is stats.median is stats.last_finite is None


def test_fields_that_say_where_training_stands_are_no_samples() -> None:
    """A mean of steps says nothing; the rest of the row is taken all the same."""
    fields = ["loss", "global_step", "train/epoch", "lr"]
    found = stats_of(frame([(1, 0.5, 7, 1.0, 0.1), (2, 0.25, 8, 1.0, 0.2)], fields=fields))

    assert {field for field, _ in found} == {"loss", "lr"}
    assert found["lr", 0].max == 0.2


def test_columns_of_other_types_do_not_spoil_the_row() -> None:
    """Text beside numbers, in frames one after the other, and then a NaN in one of them."""
    fields = ["loss", "phase", "lr"]
    found = stats_of(
        frame([(1, 0.5, "train", 0.1), (2, 0.75, "train", 0.3)], fields=fields),
        frame([(3, 0.25, "eval", 0.2)], fields=fields, seq=1),
        frame([(4, NAN, "eval", 0.4)], fields=fields, seq=2),
    )

    assert {field for field, _ in found} == {"loss", "lr"}
    assert (found["loss", 0].mean, found["loss", 0].revision) == (0.5, 4)
    assert (found["lr", 0].mean, found["lr", 0].median) == (0.25, 0.25)


def test_the_same_field_of_rows_and_free_events_is_one_series() -> None:
    """A field has one Stats in a window, however its values came."""
    found = stats_of(
        frame([(1, 1.0, 10.0), [2, {"loss": 3.0}]], fields=["loss", "lr"]),
        frame([(3, 2.0)], fields=["loss"], seq=1),
    )

    assert found["loss", 0].count == 3
    assert found["loss", 0].median == 2.0
    assert found["lr", 0].count == 1


def test_profiles_have_their_duration_in_seconds() -> None:
    """One series for each name."""
    events = [
        Profile(ts=1, name="forward", duration_ns=1_500_000_000),
        Profile(ts=2, name="backward", duration_ns=2_000_000_000, failed=True),
        Profile(ts=3, name="forward", duration_ns=500_000_000),
    ]
    windows = taken(frame(events, kind="profile"), rules=PROFILES)
    stats = {s.name: s for s in windows.close_all(PROFILES, closed_by="end")}

    assert {s.field for s in stats.values()} == {"duration"}
    assert {s.kind for s in stats.values()} == {"profile"}
    assert (stats["forward"].mean, stats["forward"].count) == (1.0, 2)
    assert stats["backward"].last_finite == 2.0


def test_the_first_bad_step_and_the_newest_finite_value_go_by_event_time() -> None:
    """Whichever order the frames came in, and also inside a frame."""
    early = frame([(3, 7.0), (1, NAN), (2, INF)], seq=0)
    late = frame([(6, 9.0), (5, 8.0), (4, NAN)], seq=1)
    one = stats_of(early, late)["loss", 0]

    assert one == stats_of(late, early)["loss", 0]
    assert (one.nonfinite, one.first_nonfinite_step, one.last_finite) == (3, 100, 9.0)
    assert (one.count, one.mean, one.min, one.max, one.median) == (3, 8.0, 7.0, 9.0, 8.0)


# --- figures --------------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=300), st.randoms(use_true_random=False))
def test_figures_are_numpys(numbers: list[float], random: Any) -> None:
    """Exact minimum, maximum and median; the mean is that of exact sums, in any order the same."""
    figures = summarise(numbers)
    shuffled = numbers[:]
    random.shuffle(shuffled)
    mean = float(sum(map(Fraction, numbers)) / len(numbers))

    assert repr(summarise(shuffled)) == repr(figures)
    assert figures.min == np.min(numbers)
    assert figures.max == np.max(numbers)
    assert figures.mean == pytest.approx(mean, rel=1e-12, abs=5e-324)
    middle = sorted(numbers)[(len(numbers) - 1) // 2], sorted(numbers)[len(numbers) // 2]
    assert figures.median is not None
    assert middle[0] <= figures.median <= middle[1]
    if abs(middle[0]) < 1e300 and abs(middle[1]) < 1e300:
        assert figures.median == np.median(numbers)


@pytest.mark.parametrize(
    ("numbers", "mean", "median"),
    [
        ([1e308, 1e308, 1e308], 1e308, 1e308),
        ([1.7e308, 1.7e308], 1.7e308, 1.7e308),
        ([-1.7e308, 1.7e308], 0.0, 0.0),
        ([0.1] * 3, 0.1, 0.1),
        ([-0.0], 0.0, 0.0),
        ([5e-324, 5e-324], 5e-324, 5e-324),
        ([1e16, 1.0, -1e16], 1 / 3, 1.0),
    ],
)
def test_figures_of_awkward_numbers(numbers: list[float], mean: float, median: float) -> None:
    """Sums beyond the largest float, means outside of their numbers, a zero with a sign."""
    figures = summarise(numbers)

    assert (figures.mean, figures.median) == (mean, median)
    assert math.copysign(1, figures.min or 1.0) == math.copysign(1, min(numbers) or 1.0)


# --- which events go in ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "closed", "refused", "starts"),
    [
        ([100, 109, 110], 10_000, Refused(), [100, 110]),
        ([90], 10_000, Refused(), [90]),
        ([89], 10_000, Refused(late=1), []),
        ([-1000, 89, 90], 10_000, Refused(late=2), [90]),
        ([200, 205], 200, Refused(), [200]),
        ([200, 206], 200, Refused(ahead=1), [200]),
        ([1100, 1101], 10_000, Refused(ahead=1), [1100]),
        ([10**16], 2**62, Refused(ahead=1), []),
    ],
)
def test_the_watermark_from_before_the_frame_decides(
    times: list[int], closed: int, refused: Refused, starts: list[int]
) -> None:
    """Log time is 1000 and the watermark 95: a window that ends at 100 is open, one at 90 is not."""
    windows = windows_at(95)
    one = frame([(ts, 1.0) for ts in times], seq=1, closed=closed)

    assert windows.take(one, log_ns=1000, rules=RULES).refused == refused
    assert sorted(windows.each[0].open) == starts


@pytest.mark.parametrize(("ts", "old"), [(700, False), (699, True), (705, False), (-5, True)])
def test_a_window_may_start_as_early_as_log_time_less_the_retention(ts: int, old: bool) -> None:
    """Log time is 1000, the retention 300; without a watermark nothing is late."""
    rules = RULES._replace(keep=300)
    refused = EmitterWindows().take(frame([(ts, 1.0)]), log_ns=1000, rules=rules).refused

    assert refused == Refused(too_old=int(old))


def test_the_order_inside_a_frame_means_nothing() -> None:
    """A jump ahead at the frame's beginning makes its other events not late."""
    windows = EmitterWindows()
    refused = windows.take(
        frame([(500, 1.0), (100, 1.0)], closed=600), log_ns=390, rules=RULES
    ).refused

    assert refused == Refused(ahead=1)
    assert windows.each[0].watermark == 95
    refused = windows.take(frame([(480, 1.0), (100, 1.0)], seq=1), log_ns=390, rules=RULES).refused
    assert refused == Refused()
    assert windows.each[0].watermark == 475


def test_a_refused_event_moves_no_watermark() -> None:
    """A node's clock that jumps a year ahead closes none of its windows."""
    windows = taken(frame([(500, 1.0)], closed=100))

    assert windows.each[0].watermark < 0
    assert not windows.each[0].open


def test_the_watermark_never_goes_back() -> None:
    """A late frame leaves it where it is."""
    windows = taken(frame([(500, 1.0)]), frame([(490, 1.0)], seq=1))

    assert windows.each[0].watermark == 495
    assert windows.newest == 500


def test_other_kinds_have_no_windows() -> None:
    """Logs and runs are not aggregated, and never late."""
    rules = RULES._replace(kind="log", by=())
    lines = [Log(ts=ts, level="info", message="m", fields={"n": 1.0}) for ts in (500, 1, 10**16)]
    windows = windows_at(95)
    refused = windows.take(frame(lines, kind="log"), log_ns=1000, rules=rules).refused

    assert windows == windows_at(95)
    assert refused == Refused()


# --- closing --------------------------------------------------------------------------------------


def test_a_window_closes_when_the_watermark_passes_its_end() -> None:
    """Not a moment before; it says what closed it."""
    windows = taken(frame([(1, 1.0), (14, 2.0)]))
    assert windows.close_passed(RULES) == []

    windows.take(frame([(15, 3.0)], seq=1), log_ns=1000, rules=RULES)
    (stats,) = windows.close_passed(RULES)
    assert (stats.start, stats.size, stats.count, stats.by) == (0, 10, 1, "time")
    assert (stats.final, stats.closed_by) == (True, "watermark")
    assert sorted(windows.each[0].open) == [10]


def test_closing_all_moves_the_watermark_to_the_last_end() -> None:
    """What comes later for these windows is late."""
    windows = taken(frame([(1, 1.0), (14, 2.0)]))
    stats = windows.close_all(RULES, closed_by="hold")

    assert [(s.start, s.closed_by) for s in stats] == [(0, "hold"), (10, "hold")]
    assert windows.each[0].watermark == 20
    assert windows.take(frame([(19, 1.0)], seq=1), log_ns=1000, rules=RULES).refused == Refused(
        late=1
    )
    assert windows.close_all(RULES, closed_by="hold") == []


def test_an_open_window_can_be_shown() -> None:
    """It is not final, and stays open."""
    windows = taken(frame([(1, 1.0), (2, 2.0)]))
    (stats,) = windows.show((0, 0), RULES)

    assert (stats.final, stats.closed_by, stats.revision) == (False, "", 2)
    assert windows.revisions() == {(0, 0): 2}


def test_windows_before_the_epoch_are_aligned_too() -> None:
    """-1 lies in [-10, 0)."""
    assert list(stats_of(frame([(-1, 1.0)]), log=0)) == [("loss", -10)]


# --- any order ------------------------------------------------------------------------------------

value = st.one_of(
    st.floats(width=32),
    st.integers(-1000, 1000),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
    st.lists(st.floats(width=32), max_size=3),
)
rows = st.lists(st.tuples(st.integers(0, 99), value, value), min_size=1, max_size=30)


def samples(rows: Sequence[tuple[int, Any, Any]]) -> dict[tuple[str, int], list[float]]:
    """Return the samples of each field and window, by the plain rule."""
    found: dict[tuple[str, int], list[float]] = {}
    for ts, *values in rows:
        for field, value in zip(("a", "b"), values, strict=True):
            for member in value if isinstance(value, list) else [value]:
                if isinstance(member, int | float) and not isinstance(member, bool):
                    found.setdefault((field, ts // 10 * 10), []).append(float(member))
    return found


@given(
    rows.flatmap(
        lambda r: st.tuples(
            st.just(r), st.lists(st.integers(0, 3), min_size=len(r), max_size=len(r))
        )
    ),
    st.permutations(range(4)),
)
def test_any_frames_in_any_order_give_the_same_stats(
    drawn: tuple[list[tuple[int, Any, Any]], list[int]], order: list[int]
) -> None:
    """As long as nothing is late: numpy's figures of all samples."""
    rows, places = drawn
    rules = RULES._replace(lateness=100)
    rows = [(ts, a, b) for ts, a, b in rows]
    frames = [
        frame([r for r, p in zip(rows, places, strict=True) if p == k], fields=["a", "b"], seq=k)
        for k in range(4)
    ]
    found = stats_of(*(frames[k] for k in order), log=200, rules=rules)
    expected = samples(rows)

    assert found == stats_of(*frames, log=200, rules=rules)
    assert set(found) == set(expected)
    for key, numbers in expected.items():
        stats, good = found[key], [n for n in numbers if math.isfinite(n)]
        assert (stats.revision, stats.count) == (len(numbers), len(good))
        if good:
            assert (stats.min, stats.max) == (np.min(good), np.max(good))
            assert stats.median == np.median(good)
            assert stats.mean == pytest.approx(np.mean(good), rel=1e-9, abs=1e-30)


# --- windows over fields --------------------------------------------------------------------------

STEPS = RULES._replace(by=(By("step", 10),))
BOTH = RULES._replace(by=(By("time", 10), By("step", 10), By("step", 1)))


def at(*steps: int, ts: int = 100, seq: int = 0) -> Frame:
    """Return a frame with an event at each step; its value is the step."""
    return frame([[ts, {"loss": float(s), "step": s}] for s in steps], seq=seq)


def open_of(windows: EmitterWindows) -> list[list[int]]:
    """Return the starts of the open windows by rule."""
    return [sorted(one.open) for one in windows.each]


@pytest.mark.parametrize(
    ("before", "steps", "late", "starts"),
    [
        (None, [5, 12], 0, [0, 10]),
        (None, [35, 5], 0, [0, 30]),
        (25, [9], 1, [20]),
        (25, [10], 0, [10, 20]),
        (25, [25, 9, 8], 2, [20]),
        (-1, [-15, -20], 0, [-20, -10]),
        (-1, [-21], 1, [-10]),
        (9, [-1], 0, [-10, 0]),
    ],
)
def test_a_window_over_a_field_closes_two_windows_further(
    before: int | None, steps: list[int], late: int, starts: list[int]
) -> None:
    """What the frames before showed decides; events in closed windows are counted on their own."""
    windows = EmitterWindows()
    if before is not None:
        windows.take(at(before), log_ns=1000, rules=STEPS)
        windows.close_passed(STEPS)
    refused = windows.take(at(*steps, seq=1), log_ns=1000, rules=STEPS).refused

    assert refused == Refused(late_by_field=late)
    assert open_of(windows) == [starts]


def test_stats_over_a_field_say_so_in_plain_numbers() -> None:
    """The field, the first value and how many there are."""
    windows = taken(at(5, 12, 31), rules=STEPS)
    (closed, *others), rest = windows.close_passed(STEPS), windows.close_all(STEPS, closed_by="end")

    assert [(s.by, s.start, s.size, s.count) for s in (closed, *others)] == [
        ("step", 0, 10, 1),
        ("step", 10, 10, 1),
    ]
    assert (closed.final, closed.closed_by, closed.max) == (True, "watermark", 5.0)
    assert [(s.by, s.start, s.closed_by) for s in rest] == [("step", 30, "end")]


def test_one_frame_fills_windows_by_every_rule() -> None:
    """Each rule has a watermark of its own; what is late for one goes into the others."""
    windows = taken(at(5, 12, ts=100), at(13, ts=109, seq=1), rules=BOTH)
    assert open_of(windows) == [[100], [0, 10], [5, 12, 13]]

    windows.close_passed(BOTH)
    assert open_of(windows) == [[100], [0, 10], [12, 13]]
    refused = windows.take(at(3, ts=130, seq=2), log_ns=1000, rules=BOTH).refused
    assert refused == Refused(late_by_field=1)
    assert open_of(windows) == [[100, 130], [0, 10], [12, 13]]
    refused = windows.take(at(13, ts=100, seq=3), log_ns=1000, rules=BOTH).refused
    assert refused == Refused(late=1)
    assert windows.show((2, 13), BOTH)[0].count == 2


@pytest.mark.parametrize(("ts", "refused"), [(-1, Refused(too_old=1)), (1101, Refused(ahead=1))])
def test_an_event_of_a_wrong_time_is_in_no_window_at_all(ts: int, refused: Refused) -> None:
    """Nor does its step close any."""
    windows = taken(at(5), rules=STEPS)

    assert windows.take(at(500, ts=ts, seq=1), log_ns=1000, rules=STEPS).refused == refused
    assert open_of(windows) == [[0]]
    assert windows.close_passed(STEPS) == []


def test_events_without_the_field_are_in_no_window_of_the_rule() -> None:
    """They are not late either, and need no time rule beside it."""
    events = [[1, {"loss": 1.0}], [2, {"loss": 2.0, "step": "x"}], [3, {"loss": 3.0, "step": 4}]]
    rules = RULES._replace(by=(By("step", 10),))
    windows = EmitterWindows()
    wire = [ENCODER.encode(("m", ts, None, "training", fields)) for ts, fields in events]
    one = FrameEncoder(emitter=EMITTER, kind="observation", origin=Origin()).encode(
        wire, seq=0, closed_ns=10_000, accepted=3, dropped=0
    )

    assert windows.take(decode_frame(one), log_ns=900, rules=rules).refused == Refused()
    (stats,) = windows.close_all(rules, closed_by="end")
    assert (stats.count, stats.mean) == (1, 3.0)
    assert windows.newest == 3


def test_profiles_have_windows_over_their_step() -> None:
    """Whatever their time is."""
    rules = PROFILES._replace(by=(By("global_step", 5),))
    events = [Profile(ts=k, name="f", duration_ns=10**9, step=k) for k in range(10)]
    stats = taken(frame(events, kind="profile"), rules=rules).close_all(rules, closed_by="end")

    assert [(s.by, s.start, s.size, s.count) for s in stats] == [
        ("global_step", 0, 5, 5),
        ("global_step", 5, 5, 5),
    ]


def test_windows_at_the_ends_of_64_bits_can_be_stored() -> None:
    """One that would start below is none."""
    rules = RULES._replace(by=(By("step", 10),))
    windows = taken(at(-(2**63), -(2**63) + 8), at(2**63 - 1, seq=1), rules=rules)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(windows), type=EmitterWindows)

    assert again == windows
    assert open_of(windows) == [[-(2**63) + 8, (2**63 - 1) // 10 * 10]]
    windows.close_all(rules, closed_by="end")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(windows), type=EmitterWindows) == windows
