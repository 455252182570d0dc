"""How long a frame stays open."""

from mlops_events.producers.worker import Pace

PACE = Pace(linger_s=1.0, most_s=5.0, little=500)


def test_the_wait_grows_while_there_is_little_to_send() -> None:
    """From one second to five, and not beyond."""
    waits = [1.0]
    for _ in range(6):
        waits.append(PACE.next(waits[-1], 10))

    assert waits == [1.0, 1.5, 2.25, 3.375, 5.0, 5.0, 5.0]


def test_a_frames_worth_brings_the_short_wait_back() -> None:
    """As soon as a frame's worth came in one round."""
    assert PACE.next(5.0, 500) == 1.0


def test_the_wait_is_never_shorter_than_the_setting() -> None:
    """Also where the longest wait is set below the shortest."""
    assert Pace(linger_s=2.0, most_s=1.0, little=500).next(2.0, 0) == 2.0
