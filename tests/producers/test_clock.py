"""The emitter's time."""

from mlops_events.producers.clock import Clock

EPOCH = 1_700_000_000_000_000_000


class Hands:
    """A monotonic clock and a wall clock that a test moves."""

    def __init__(self) -> None:
        self.raw = 5_000
        self.wall = EPOCH

    def clock(self) -> Clock:
        """Return a clock that follows them."""
        return Clock(lambda: self.raw, wall=lambda: self.wall)


def test_it_starts_at_the_wall_clock_and_moves_with_the_monotonic_one() -> None:
    """A wall clock that is set back later does not move it."""
    hands = Hands()
    clock = hands.clock()
    hands.raw += 100
    hands.wall -= 1_000_000

    assert clock.now() == EPOCH + 100


def test_it_follows_the_wall_clock_forward_only() -> None:
    """After a suspend it catches up; after a correction backward it goes on as before."""
    hands = Hands()
    clock = hands.clock()
    hands.wall += 1_000
    clock.follow()
    ahead = clock.now()
    hands.wall -= 500
    clock.follow()

    assert (ahead, clock.now()) == (EPOCH + 1_000, EPOCH + 1_000)


def test_a_clock_of_the_programs_own_is_the_time_itself() -> None:
    """Nothing is added to it, and it follows nothing."""
    clock = Clock(lambda: 42)
    clock.follow()

    assert clock.now() == 42
