"""The protocol of sinks, and how they are found."""

from pathlib import Path

import pytest

from mlops_events.schemas import ConfigError, EventId
from mlops_events.sinks import Batch, SinkUnavailable, load_sink
from mlops_events.sinks.base import installed_sinks
from mlops_events.sinks.testing import frame_record, sample_batch

THEIRS = '''
from mlops_events.sinks.testing import SinkContract

class Pigeons:
    """Somebody else's sink."""

    name = "pigeons"

    async def check(self): ...
    async def open(self): ...
    async def write(self, batch):
        self.sent = list(batch)
        return ()
    async def close(self): ...

def nothing():
    return object()
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's distribution, with sinks of its own."""
    (tmp_path / "pigeon_post.py").write_text(THEIRS)
    info = tmp_path / "pigeon_post-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mlops_events.sinks]\n"
        "pigeons = pigeon_post:Pigeons\n"
        "nothing = pigeon_post:nothing\n"
        "uninstalled = pigeon_post_client:Sink\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_our_sinks_are_found_by_name() -> None:
    """The sinks of this distribution load with their defaults."""
    assert {"console", "sqlite"} <= set(installed_sinks())
    for name in ("console", "sqlite"):
        assert load_sink(name).name == name


@pytest.mark.usefixtures("installed")
async def test_somebody_elses_sink_is_found_the_same_way() -> None:
    """A distribution that registers an entry point needs nothing else."""
    sink = load_sink("pigeons")
    batch = sample_batch()

    assert not await sink.write(batch)
    assert sink.sent == list(batch)  # type: ignore[attr-defined]


def test_an_unknown_name_says_which_ones_there_are() -> None:
    """A typing mistake is answered with the list."""
    with pytest.raises(ConfigError, match=r"no sink named 'sqlight'; installed sinks: .*sqlite"):
        load_sink("sqlight")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "makes no Sink"),
        ("uninstalled", r"No module named 'pigeon_post_client'; is its client installed"),
    ],
)
def test_a_sink_that_does_not_load_says_why(name: str, message: str) -> None:
    """What is registered wrongly, or lacks its client library, is named."""
    with pytest.raises(ConfigError, match=message):
        load_sink(name)


def test_a_batch_yields_every_event_with_its_place() -> None:
    """Sinks that are in no hurry just iterate."""
    envelopes = list(sample_batch())

    assert len(envelopes) == len(sample_batch()) == 8
    assert [e.offset for e in envelopes] == [0, 1, 1, 1, 1, 2, 3, 4]
    assert [e.position for e in envelopes] == [0, 0, 1, 2, 3, 0, 0, 0]
    assert envelopes[2].id == EventId(bytes(range(16)), "observation", 0, 1)
    assert envelopes[-1].id == (
        bytes(range(16)),
        "observation",
        "training",
        "loss",
        "time",
        1_700_000_000_000_000_000,
        10_000_000_000,
    )


def test_an_index_is_not_a_position() -> None:
    """Of a filtered frame the ids stay, and positions are those of what is left."""
    from mlops_events.schemas import decode_frame
    from mlops_events.schemas.frame import Free
    from mlops_events.sinks.base import FrameRecord

    whole = frame_record([Free(k, None, "a", {"x": k}) for k in range(5)])
    some = decode_frame(whole.frame.encode(only=[1, 4]))
    record = FrameRecord(frame=some, topic="t", partition=0, offset=0)

    assert [(e.id.index, e.position) for e in Batch([record]) if isinstance(e.id, EventId)] == [
        (1, 0),
        (4, 1),
    ]


def test_unavailable_may_say_when_to_try_again() -> None:
    """What the destination asked for reaches the delivery loop."""
    assert SinkUnavailable("busy", retry_after=3.0).retry_after == 3.0
    assert SinkUnavailable("busy").retry_after is None
