"""What keeps a replay from going up to the present."""

import pytest

from mlops_events.control.replay_limit import find_open
from mlops_events.control.replay_request import ReplayRequest
from mlops_events.schemas import FrameEncoder, Origin
from mlops_events.schemas.frame import Free
from mlops_events.schemas.topics import Topics
from mlops_events.schemas.values import ENCODER
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import PartitionState

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND
SETTINGS = StreamSettings(hold_s=600.0, by=("time:10s", "field:window"))


def frame(uid: int, seq: int, *seconds: int, end: bool = False) -> bytes:
    """Return a frame of a node with events of these times."""
    encoder = FrameEncoder(
        emitter=bytes([uid]) * 16,
        kind="observation",
        origin=Origin(run=f"r{uid}", role="miner", uid=uid, version="v1"),
    )
    events = [
        ENCODER.encode(Free(BASE + s * SECOND, None, "training", {"loss": 1.0, "window": uid}))
        for s in seconds
    ]
    return encoder.encode(
        events, seq=seq, closed_ns=BASE + 9000 * SECOND, accepted=0, dropped=0, end=end
    )


@pytest.fixture
def state() -> PartitionState:
    """Return a state with two nodes that have a window open each, and one that has ended."""
    state = PartitionState(SETTINGS, topics=Topics("t"), kind="observation", partition=0)
    frames = [frame(1, 0, 0, 100), frame(2, 0, 50), frame(3, 0, 0), frame(3, 1, end=True)]
    for offset, value in enumerate(frames):
        state.fold(offset, (BASE + 200 * SECOND) // 1_000_000, value)
    return state


@pytest.mark.parametrize(
    ("since", "now", "more", "limits", "uids"),
    [
        (0, 210, {}, [50, 100], {1, 2}),
        (60, 210, {}, [100], {1, 2}),  # an open window that ended before the range means nothing
        (0, 801, {}, [], set[int]()),  # both were silent for longer than hold
        (0, 210, {"run": "r2"}, [50], {2}),
        (0, 210, {"version": "2"}, [], set[int]()),
    ],
)
def test_the_oldest_open_window_of_each_node_limits_a_replay(
    state: PartitionState,
    since: int,
    now: int,
    more: dict[str, str],
    limits: list[int],
    uids: set[int],
) -> None:
    """Only of nodes that are asked for, and may still add to it; windows over fields are named."""
    request = ReplayRequest(
        kinds=("observation",),
        sink="sqlite",
        since_ns=BASE + since * SECOND,
        until_ns=BASE + 300 * SECOND,
        slack_ns=0,
        margin_ns=0,
        run=more.get("run"),
        version=more.get("version"),
    )
    found, over_fields = find_open(
        state, SETTINGS, request, kind="observation", now_ns=BASE + now * SECOND
    )

    assert sorted((one.limit_ns - BASE) // SECOND for one in found) == limits
    assert {one.start for one in over_fields} == uids
    assert {one[1:4] for one in over_fields} <= {("observation", "window", 1)}
    for one in found:
        assert one.why.startswith("r")
        assert "at the latest at 2023-11-14 22:26:40.000Z" in one.when
