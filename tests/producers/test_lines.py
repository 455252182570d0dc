"""Events from lines of JSON."""

import json
import math
from typing import Any

import pytest

from mlops_events.producers import Emitter
from mlops_events.producers.lines import BadLine, LineError, parse, schema, send
from mlops_events.producers.testing import MemoryTransport
from mlops_events.producers.transport import TransportError
from mlops_events.schemas.events import Log, Observation, Profile

NOW = 1_800_000_000_000_000_000
NOON = 1_769_860_800_000_000_000  # 2026-01-31T12:00:00Z


def line(**values: Any) -> bytes:
    """Return a line of JSON."""
    return json.dumps(values).encode()


def observation(**values: Any) -> bytes:
    """Return an observation's line."""
    return line(**{"kind": "observation", "name": "training", "fields": {"loss": 0.5}, **values})


def test_each_kind_becomes_its_event() -> None:
    """With everything that a line can say."""
    assert parse(observation(step=3, tags={"phase": "train"}), now_ns=NOW) == Observation(
        ts=NOW, name="training", fields={"loss": 0.5}, step=3, tags={"phase": "train"}
    )
    assert parse(
        line(kind="profile", name="forward", duration="12ms", failed=True), now_ns=NOW
    ) == Profile(ts=NOW, name="forward", duration_ns=12_000_000, failed=True)
    assert parse(
        line(kind="log", level="WARNING", message="slow", fields={"s": 1}), now_ns=NOW
    ) == Log(ts=NOW, level="warning", message="slow", fields={"s": 1})
    profile = parse(line(kind="profile", name="forward", duration=1.5), now_ns=NOW)
    assert isinstance(profile, Profile)
    assert profile.duration_ns == 1_500_000_000


@pytest.mark.parametrize(
    ("ts", "expected"),
    [
        (NOON, NOON),
        (1_769_860_800.25, NOON + 250_000_000),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31 12:00:00", NOON),
        ("2026-01-31T13:00:00.000001+01:00", NOON + 1000),
        ("2026-01-31", NOON - 12 * 3600 * 10**9),
        (None, NOW),
    ],
)
def test_times_are_written_as_people_have_them(ts: Any, expected: int) -> None:
    """Nanoseconds, seconds with a fraction, ISO 8601 with or without a zone."""
    assert parse(observation(ts=ts), now_ns=NOW).ts == expected


def test_nan_and_infinity_are_data() -> None:
    """As Python's json writes them."""
    event = parse(observation(fields={"a": math.nan, "b": -math.inf}), now_ns=NOW)

    assert isinstance(event, Observation)
    assert math.isnan(event.fields["a"])
    assert event.fields["b"] == -math.inf


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"garbage", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "Expected `object`"),
        (b"{}", "missing required field `kind`"),
        (line(kind="run"), "kinds: observation, profile, log"),
        (line(kind="observation", name="x"), "missing required field `fields`"),
        (observation(name=""), "length >= 1"),
        (observation(feilds=1), "unknown field `feilds`"),
        (observation(step="3"), "$.step"),
        (observation(ts="yesterday"), "'yesterday' is no time"),
        (observation(ts=2**63), "beyond 64 bits"),
        (line(kind="profile", name="f", duration="long"), "such as 12ms"),
        (line(kind="log", level="loud", message="hi"), "no log level 'loud'; levels: debug"),
        (b'{"kind":"observation","name":"x","fields":{"a":' + b"[" * 5000, "recursion"),
    ],
)
def test_what_is_no_event_is_told(text: bytes, says: str) -> None:
    """What was found and what was expected."""
    with pytest.raises(LineError) as caught:
        parse(text, now_ns=NOW)

    assert says in str(caught.value)


def test_a_hundred_thousand_lines_arrive_with_an_account() -> None:
    """Bad ones are told by number and cost nobody else."""
    transport = MemoryTransport()
    emitter = Emitter(run="r", transport=transport, announce=False)
    bad: list[BadLine] = []
    seen: list[int] = []
    lines = [observation(step=k) for k in range(100_000)]
    lines[777] = b"garbage"
    lines[778] = b"\n"
    report = send(lines, emitter, timeout_s=30, bad=bad.append, progress=seen.append)
    emitter.close()

    assert (report.lines, report.events, report.sent) == (100_000, 99_998, 99_998)
    assert (report.bad, report.empty, report.error) == (1, 1, "")
    assert [one.line for one in bad] == [778]
    assert seen == sorted(seen)
    assert len(seen) > 50
    steps = [event.step for event in transport.observations()]
    assert steps == [k for k in range(100_000) if k not in (777, 778)]


def test_a_broker_that_takes_nothing_ends_it_with_a_reason() -> None:
    """Reading stops instead of dropping what does not fit."""
    transport = MemoryTransport()
    transport.fail(error=TransportError("no broker"))
    emitter = Emitter(run="r", transport=transport, announce=False)
    lines = (observation(step=k) for k in range(1_000_000))
    report = send(lines, emitter, timeout_s=0.3, bad=lambda _: None, progress=lambda _: None)
    stats = emitter.stats()
    emitter.close(0)

    assert report.sent == 0
    assert "no broker" in report.error
    assert report.events < 100_000
    assert stats.dropped == 0


def test_the_schema_describes_a_line() -> None:
    """Every kind and field, in words."""
    found = schema()

    defs = found["$defs"]
    assert set(found["discriminator"]["mapping"]) == {"observation", "profile", "log"}
    assert "ISO 8601" in json.dumps(defs["ObservationLine"]["properties"]["ts"])
