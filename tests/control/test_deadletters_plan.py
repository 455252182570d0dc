"""Redriving a dead letter: what is sent, where to, and what must stay."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mlops_events.control.deadletters import Letter
from mlops_events.control.deadletters_plan import Planner, whole_payload
from mlops_events.schemas.deadletters import (
    event_key,
    frame_key,
    make_dead_letter,
    record_key,
)
from mlops_events.schemas.events import DeadLetter, Origin, Stats
from mlops_events.schemas.frame import (
    Free,
    StatsFrame,
    decode_frame,
    encode_stats,
)
from mlops_events.schemas.topics import Topics, redriven_times
from mlops_events.streams.settings import StreamSettings

TOPICS = Topics("p")
SETTINGS = StreamSettings(
    sinks=("sqlite", "wandb"), routes={"sqlite": ("observation", "stats")}, tags={"site": "x"}
)
EXISTING = {*TOPICS.raws, TOPICS.sink("sqlite"), TOPICS.sink("wandb")}
PLACE: dict[str, Any] = {"topic": "p.sink.sqlite.v1", "partition": 2, "offset": 9}

MakeLetter = Callable[..., Letter]
MakeFrame = Callable[..., bytes]


def plan(letter: Letter, *, force: bool = False) -> Any:
    """Return what redriving a letter sends, or why it stays."""
    planner = Planner(SETTINGS, topics=TOPICS, existing=EXISTING, force=force)
    return planner.plan(letter.letter)


def stats_value(run: str = "r") -> bytes:
    """Return a record of Stats."""
    stats = Stats(kind="observation", name="n", field="f", start=0, size=1, revision=1, final=True,
                  count=1)  # fmt: skip
    return encode_stats(StatsFrame(emitter=bytes(16), origin=Origin(run=run), stats=[stats]))


def unreadable(make_frame: MakeFrame) -> bytes:
    """Return a frame with one event that this version cannot read."""
    return make_frame(["from-the-future", 1])


@pytest.mark.parametrize(("sink", "key"), [("sqlite", b"r/miner/1/"), ("wandb", b"r/miner/1")])
def test_a_sinks_letter_goes_to_its_topic_as_it_was(
    make_letter: MakeLetter, sink: str, key: bytes
) -> None:
    """With the key of that topic, and the header that lets it pass."""
    letter = make_letter(sink=sink, redriven=1)
    (record,) = plan(letter)

    assert record.topic == TOPICS.sink(sink)
    assert record.value == letter.letter.payload
    assert record.key == key
    assert redriven_times(record.headers) == 2
    assert dict(record.headers)["seq"] == b"0"


def test_stats_go_to_the_sink_that_refused_them(make_letter: MakeLetter) -> None:
    """With the headers of Stats."""
    (record,) = plan(make_letter(kind="stats", payload=stats_value()))

    assert dict(record.headers)["kind"] == b"stats"
    assert redriven_times(record.headers) == 1


@pytest.mark.parametrize("reason", ["undecodable", "wrong_kind"])
def test_a_record_that_the_stream_could_not_read_goes_to_its_raw_topic(
    make_letter: MakeLetter, make_frame: MakeFrame, reason: str
) -> None:
    """That of its own kind, untouched: it is folded as if it came for the first time."""
    payload = make_frame()
    (record,) = plan(make_letter(sink="stream", reason=reason, kind="log", payload=payload))

    assert (record.topic, record.value) == (TOPICS.raw("observation"), payload)
    assert redriven_times(record.headers) == 1


@pytest.mark.parametrize("reason", ["unreadable_event", "series_limit", "cardinality", "no_route"])
def test_events_of_frames_that_were_folded_are_tagged_and_routed(
    make_letter: MakeLetter, reason: str
) -> None:
    """To every sink of their kind: in the raw topic they would be repeats."""
    records = plan(make_letter(sink="stream", reason=reason))

    assert [record.topic for record in records] == [TOPICS.sink("sqlite"), TOPICS.sink("wandb")]
    assert [record.key for record in records] == [b"r/miner/1/", b"r/miner/1"]
    assert {redriven_times(record.headers) for record in records} == {1}
    assert decode_frame(records[0].value).tags == {"version": "1", "site": "x"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"payload": b"garbage"}, "still cannot be read: 7 bytes are not a frame"),
        ({"truncated": True, "size": 9_999}, "was cut to"),
        ({"redriven": 3}, "was redriven 3 times and failed each time; --force insists"),
        ({"sink": "loki"}, "there is no topic p.sink.loki.v1"),
        ({"sink": "stream", "payload": stats_value()}, "are Stats"),
    ],
)
def test_what_cannot_be_sent_stays_and_says_why(
    make_letter: MakeLetter, fields: dict[str, Any], why: str
) -> None:
    """A letter is never taken away without its event being somewhere."""
    assert plan(make_letter(**fields)).startswith(why)


@pytest.mark.parametrize("sink", ["sqlite", "stream"])
def test_an_event_that_still_cannot_be_read_stays(
    make_letter: MakeLetter, make_frame: MakeFrame, sink: str
) -> None:
    """Until a version runs that knows it."""
    assert "still cannot be read" in plan(make_letter(sink=sink, payload=unreadable(make_frame)))


def test_events_without_a_route_stay(make_letter: MakeLetter, make_frame: MakeFrame) -> None:
    """Until a sink takes their kind."""
    payload = make_frame(["l", 1, "info", "m"], kind="log")

    assert "no sink of the stream takes events of kind log" in plan(
        make_letter(sink="stream", reason="no_route", payload=payload)
    )


def test_somebody_may_insist(make_letter: MakeLetter) -> None:
    """What failed again three times is sent once more."""
    (record,) = plan(make_letter(redriven=3), force=True)

    assert redriven_times(record.headers) == 4


def cut(key: str, payload: bytes, **more: Any) -> DeadLetter:
    """Return a letter whose payload was cut to 20 bytes."""
    letter = make_dead_letter(
        sink="sqlite", reason="r", message="m", kind="observation", first_seen_ns=0, key=key,
        payload=payload, **PLACE, **more,
    )  # fmt: skip
    return msgspec.structs.replace(letter, payload=payload[:20], truncated=True)


@pytest.mark.parametrize("redriven", [0, 2])
def test_a_cut_payload_is_made_from_the_record_it_was_cut_from(
    make_frame: MakeFrame, redriven: int
) -> None:
    """A whole record, a whole frame, one event of it, one that cannot be read, one of its Stats."""
    free = Free(1, None, "n", {"f": 1})
    value = make_frame(free, ["odd"], free, seq=7)
    frame = decode_frame(value)
    stats = stats_value()
    payloads = {
        record_key("sqlite", value=value, **PLACE): value,
        frame_key("sqlite", emitter=frame.emitter, kind="observation", seq=7): frame.encode(),
        event_key("sqlite", frame.event_id(2)): frame.encode(only=[2]),
        event_key("sqlite", frame.event_id(1)): frame.encode_reject(frame.rejects[0]),
    }
    key = event_key("sqlite", _stats_key())

    for name, payload in payloads.items():
        assert whole_payload(cut(name, payload, redriven=redriven), value) == payload
    assert whole_payload(cut(key, stats, redriven=redriven), stats) == stats


def _stats_key() -> Any:
    return Stats(kind="observation", name="n", field="f", start=0, size=1, revision=1, final=True,
                 count=1).key(bytes(16))  # fmt: skip


@pytest.mark.parametrize("other", [None, b"", b"garbage", "another frame", "a longer one"])
def test_another_record_in_its_place_is_not_taken_for_it(make_frame: MakeFrame, other: Any) -> None:
    """The topic was made anew, or what lies there is not what was cut."""
    frame = decode_frame(make_frame())
    letter = cut(event_key("sqlite", frame.event_id(0)), frame.encode(only=[0]))
    if other == "another frame":
        other = make_frame(seq=1)
    elif other == "a longer one":
        other = make_frame(Free(1, None, "n", {"f": "x" * 99}))

    assert whole_payload(letter, other) is None
