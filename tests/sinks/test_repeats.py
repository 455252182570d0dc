"""What is known of a partition: frames and Stats that were there before."""

from hypothesis import given
from hypothesis import strategies as st

from mlops_events.schemas.events import Stats
from mlops_events.sinks.repeats import Repeats, SeenFrames

A, B = b"a" * 16, b"b" * 16

frames = st.tuples(st.sampled_from([A, B]), st.sampled_from(["log", "run"]), st.integers(0, 40))


def stats(revision: int, *, final: bool = False, start: int = 0) -> Stats:
    """Stats of one window at some revision."""
    return Stats(
        kind="observation",
        name="training",
        field="loss",
        start=start,
        size=10,
        revision=revision,
        final=final,
        count=revision,
    )


@given(st.lists(frames))
def test_a_frame_is_known_once_it_was_added(shown: list[tuple[bytes, str, int]]) -> None:
    """In any order, whatever gaps there are, it is what a set would say."""
    seen, reference = SeenFrames(), set[tuple[bytes, str, int]]()
    for frame in shown:
        assert (frame in seen) == (frame in reference)
        seen.add(*frame)
        reference.add(frame)

    assert all(frame in seen for frame in reference)


@given(st.lists(frames), st.integers(1, 8))
def test_a_full_memory_forgets_but_never_invents(
    shown: list[tuple[bytes, str, int]], limit: int
) -> None:
    """Beyond its limit a repeat may pass; a frame that was never there is never known."""
    seen, reference = SeenFrames(limit), set[tuple[bytes, str, int]]()
    for frame in shown:
        if frame in seen:
            assert frame in reference
        seen.add(*frame)
        reference.add(frame)

    assert seen.runs <= limit


def test_frames_in_order_take_one_run() -> None:
    """A long life of an emitter costs no memory."""
    seen = SeenFrames()
    for seq in range(10_000):
        seen.add(A, "log", seq)

    assert seen.runs == 1


def test_frames_with_gaps_are_all_remembered() -> None:
    """A route that leaves frames out makes none of the others known."""
    seen = SeenFrames()
    for seq in range(0, 10_000, 2):
        seen.add(A, "log", seq)

    assert (A, "log", 0) in seen
    assert (A, "log", 5_001) not in seen


def test_whoever_was_silent_longest_is_forgotten_first() -> None:
    """What arrives now is most likely to come again."""
    seen = SeenFrames(limit=2)
    for emitter, seq in ((A, 0), (B, 0), (A, 1), (b"c" * 16, 0)):
        seen.add(emitter, "log", seq)

    assert (A, "log", 1) in seen
    assert (B, "log", 0) not in seen


def test_stats_are_new_only_above_what_is_known() -> None:
    """A higher revision passes, a final one above an open one of the same revision too."""
    repeats = Repeats()
    shown = [stats(1), stats(1), stats(3), stats(2), stats(3, final=True), stats(3)]
    passed = [bool(repeats.new_stats(A, [one])) for one in shown]

    assert passed == [True, False, True, False, True, False]


def test_stats_of_another_emitter_or_window_are_another_key() -> None:
    """Two processes of one origin have windows of their own."""
    repeats = Repeats()
    repeats.new_stats(A, [stats(5)])

    assert repeats.new_stats(B, [stats(1)])
    assert repeats.new_stats(A, [stats(1, start=10)])


def test_of_several_stats_only_the_new_ones_are_left() -> None:
    """A record may repeat some of its windows."""
    repeats = Repeats()
    repeats.new_stats(A, [stats(5), stats(5, start=10)])
    new = repeats.new_stats(A, [stats(5), stats(6, start=10)])

    assert new == [stats(6, start=10)]


def test_the_memory_of_stats_is_bounded() -> None:
    """Keys that were heard long ago are forgotten."""
    repeats = Repeats(limit=10)
    for start in range(30):
        repeats.new_stats(A, [stats(1, start=start)])

    assert repeats.new_stats(A, [stats(1, start=0)])
    assert not repeats.new_stats(A, [stats(1, start=29)])
