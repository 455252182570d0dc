"""Settings of the stream: read from the environment, refused where they contradict."""

from typing import Any

import pytest

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.settings import load
from mlops_events.streams.by import By
from mlops_events.streams.settings import StreamSettings


def test_without_settings_windows_are_ten_seconds_for_sqlite() -> None:
    """The defaults are those of the documentation."""
    settings = load(StreamSettings, "stream", environ={})

    assert settings == StreamSettings()
    assert settings.sinks == ("sqlite",)
    assert (settings.rules, settings.lateness_ns) == ((By("time", 10 * 10**9),), 10 * 10**9)
    assert (settings.hold_ns, settings.ahead_ns) == (3600 * 10**9, 86_400 * 10**9)
    assert settings.keep_ns == 7 * 86_400 * 10**9


def test_the_environment_sets_everything() -> None:
    """Durations may carry a unit; lists and mappings are written as everywhere."""
    settings = load(
        StreamSettings,
        "stream",
        environ={
            "MLOPS_EVENTS_STREAM_BY": "time:1min,field:window,field:global_step/100",
            "MLOPS_EVENTS_STREAM_SINKS": "sqlite,wandb",
            "MLOPS_EVENTS_STREAM_ROUTES": "wandb=run,observation",
            "MLOPS_EVENTS_STREAM_TAGS": "cluster=eu,tier=gold",
            "MLOPS_EVENTS_STREAM_HEALTH_PORT": "0",
        },
    )

    assert settings.rules == (By("time", 60 * 10**9), By("window", 1), By("global_step", 100))
    assert settings.sinks == ("sqlite", "wandb")
    assert settings.routes == {"wandb": ("run", "observation")}
    assert settings.tags == {"cluster": "eu", "tier": "gold"}
    assert settings.health_port == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"hold_s": 100.0, "keep_s": 50.0}, "hold_s"),
        ({"tags": {"version": "1"}}, "version"),
        ({"sinks": ("loki",), "routes": {"wandb": ("run",)}}, "wandb"),
        ({"sinks": ("loki", "loki")}, "twice"),
        ({"by": ()}, "by names no rule"),
        ({"by": ("10s",)}, "'10s' is no rule for windows"),
        ({"by": ("field:step", "field:step/1")}, "by names a rule twice: field:step"),
        ({"lateness_s": -1.0}, "lateness_s"),
        ({"sinks": ("loki",), "routes": {"loki": ("logs",)}}, "routes"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], problem: str) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigError, match=problem):
        load(StreamSettings, "stream", arguments=arguments, environ={})
