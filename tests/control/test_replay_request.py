"""What people write to ask for a replay."""

import pytest

from mlops_events.control.replay_request import (
    ReplayRequest,
    parse_kinds,
    parse_time,
    show_time,
    taken_kinds,
)
from mlops_events.schemas.errors import ConfigError
from mlops_events.streams.settings import StreamSettings

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 1_700_000_000),
        ("-2h", 1_700_000_000 - 7200),
        ("-1.5min", 1_700_000_000 - 90),
        (" 2023-11-14T22:13:20Z ", 1_700_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-14 22:13:20.25", 1_700_000_000.25),
        ("2023-11-14", 1_700_000_000 - 22 * 3600 - 13 * 60 - 20),
        ("20231114T221320Z", 1_700_000_000),
    ],
)
def test_times_are_iso_8601_or_how_long_ago(text: str, seconds: float) -> None:
    """A time without a zone is UTC."""
    assert parse_time(text, now_ns=NOW, option="--since") == int(seconds * 4) * SECOND // 4


@pytest.mark.parametrize(
    "text", ["", "2h", "-2", "-h", "yesterday", "2023-13-01", "1969-01-01", "-99999d"]
)
def test_other_times_are_refused_with_what_is_right(text: str) -> None:
    """The message names the option, what was found and what would do."""
    with pytest.raises(ConfigError, match=r"--since .* is no time; write one such as 2026-01-31T"):
        parse_time(text, now_ns=NOW, option="--since")


def test_times_are_shown_as_they_can_be_typed() -> None:
    """A message's times can be copied into a command."""
    shown = show_time(NOW + 25_000_000)

    assert shown == "2023-11-14 22:13:20.025Z"
    assert parse_time(shown, now_ns=0, option="--since") == NOW + 25_000_000


def test_kinds_are_named_and_separated_by_commas() -> None:
    """They stand in the order in which they are listed everywhere."""
    assert parse_kinds("log, run") == ("run", "log")
    with pytest.raises(ConfigError, match="no kind logs; kinds: run, observation"):
        parse_kinds("run,logs")
    with pytest.raises(ConfigError, match="no kind given"):
        parse_kinds(",")


@pytest.mark.parametrize(
    ("sink", "asked", "taken"),
    [
        ("sqlite", "observation", {"observation", "stats"}),
        ("sqlite", "run,log", {"run", "log"}),
        ("sqlite", "stats", {"stats"}),
        ("otlp", "observation", {"stats"}),
        ("loki", "observation,log", {"log"}),
        ("console", "profile", {"profile"}),
    ],
)
def test_what_a_sinks_routes_take_is_written(sink: str, asked: str, taken: set[str]) -> None:
    """Stats come with the events that they are made of."""
    settings = StreamSettings(sinks=("console",), routes={"console": ("profile",)})

    assert taken_kinds(sink, settings, asked=parse_kinds(asked)) == taken


def test_a_sink_that_takes_nothing_of_it_is_refused() -> None:
    """The message says what the sink takes."""
    with pytest.raises(ConfigError, match="sink 'loki' takes log, and none of observation"):
        taken_kinds("loki", StreamSettings(), asked=("observation",))


def ask(**more: object) -> ReplayRequest:
    """Return a replay of a second."""
    fields = {"since_ns": 0, "until_ns": SECOND, "slack_ns": 0, "margin_ns": 0, **more}
    return ReplayRequest(kinds=("stats",), sink="sqlite", **fields)  # type: ignore[arg-type]


def test_a_range_ends_after_it_begins() -> None:
    """Both times are shown."""
    with pytest.raises(ValueError, match=r"1970-01-01 .* is not before"):
        ask(until_ns=0)


def test_stats_are_made_of_observations_and_profiles() -> None:
    """These are the topics to read."""
    assert ask().sources == ("observation", "profile")


def test_an_id_tells_replays_apart() -> None:
    """Another range, another id; the same once more, another number."""
    names = {ask().name(1), ask(dry_run=True).name(1), ask().name(2), ask(since_ns=1).name(1)}

    assert len(names) == 3
    assert ask().name(1).endswith("-1")
