"""The console sink: the contract, and how lines look."""

import io
from collections.abc import Callable

import pytest

from mlops_events.schemas.events import Origin, Stats
from mlops_events.schemas.frame import Free
from mlops_events.sinks.base import Batch, Envelope, Sink, SinkBroken
from mlops_events.sinks.console import ConsoleSettings, ConsoleSink, render
from mlops_events.sinks.testing import SinkContract, frame_record, sample_batch, stats_record


class TestContract(SinkContract):
    """The console sink passes the tests of every sink."""

    def make_sink(self) -> Sink:
        return ConsoleSink(ConsoleSettings(color=True), out=io.StringIO())


def lines(batch: Batch, *, color: bool = False) -> list[str]:
    """A batch as it is printed."""
    return [render(envelope, color=color) for envelope in batch]


def test_each_kind_is_one_line() -> None:
    """Time, who, what, values."""
    assert lines(sample_batch()) == [
        "22:13:20.000 contract/miner/7/0 run start lr=0.0001 layers=[1, 2]",
        "22:13:20.000 contract/miner/7/0 training step=0 loss=1.5 lr=0.0001 losses=[0.5, 0.25]",
        "22:13:20.000 contract/miner/7/0 training step=1 loss=0.5 lr=0.0001 losses=[0.5, 0.25]",
        "22:13:20.000 contract/miner/7/0 training step=2 loss=-0.5 lr=0.0001 losses=[0.5, 0.25]",
        "22:13:20.000 contract/miner/7/0 evaluation accuracy=0.5 passed=True note=None",
        "22:13:20.000 contract/miner/7/0 forward step=0 1.500ms",
        "22:13:20.000 contract/miner/7/0 warning slow seconds=3.5",
        "22:13:20.000 contract/miner/7/0 training_10s.loss mean=0.5 min=-0.5 max=1.5 "
        "median=0.5 count=3",
    ]


def test_a_window_of_a_fleet_says_how_many_nodes_it_is_of() -> None:
    """With its version, since nothing else tells it from the others."""
    stats = Stats(
        kind="observation",
        name="training",
        field="loss",
        start=0,
        size=10_000_000_000,
        revision=9,
        final=False,
        count=9,
        mean=2.0,
        min=1.0,
        max=3.0,
        nodes=2,
        nodes_missing=1,
        median_of_medians=2.5,
    )
    origin = Origin(run="r", role="miner", version="1.4.0")

    assert lines(Batch([stats_record([stats], origin=origin)])) == [
        "00:00:00.000 r/miner training_10s.loss mean=2 min=1 max=3 median_of_medians=2.5 count=9 "
        "version=1.4.0 nodes=2 missing=1"
    ]


def test_text_cannot_steer_the_terminal() -> None:
    """Escape sequences and line breaks of others are shown, not obeyed."""
    odd = Free(0, None, "a\x1b[2J", {"x\n": "y\r\n\x1b[31m"})
    (line,) = lines(Batch([frame_record([odd])]))

    assert "\x1b" not in line
    assert "\n" not in line
    assert r"\x1b[2J x\n=y\r\n\x1b[31m" in line


@pytest.mark.parametrize(
    ("color", "environ", "colored"),
    [(None, {}, True), (None, {"NO_COLOR": "1"}, False), (True, {"NO_COLOR": "1"}, True)],
)
async def test_colors_honour_no_color(
    monkeypatch: pytest.MonkeyPatch, color: bool | None, environ: dict[str, str], colored: bool
) -> None:
    """On a terminal lines have colors, unless NO_COLOR is set and nothing else was asked for."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    sink = ConsoleSink(ConsoleSettings(color=color), out=out)
    await sink.open()
    await sink.write(sample_batch())

    assert ("\x1b[" in out.getvalue()) == colored


async def test_a_file_gets_no_colors() -> None:
    """What is not a terminal gets plain text."""
    out = io.StringIO()
    sink = ConsoleSink(ConsoleSettings(), out=out)
    await sink.open()
    await sink.write(sample_batch())

    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\n") == 8


async def test_a_closed_output_breaks_the_sink() -> None:
    """Events that nobody can see are not committed."""
    out = io.StringIO()
    sink = ConsoleSink(ConsoleSettings(), out=out)
    await sink.open()
    out.close()

    with pytest.raises(SinkBroken, match="closed"):
        await sink.write(sample_batch())


async def test_an_output_without_unicode_shows_escapes() -> None:
    """An old terminal is no reason to stop."""
    raw = io.BytesIO()
    sink = ConsoleSink(ConsoleSettings(), out=io.TextIOWrapper(raw, encoding="ascii"))
    await sink.open()
    await sink.write(Batch([frame_record([Free(0, None, "caf\u00e9", {})])]))

    assert rb"caf\xe9" in raw.getvalue()


@pytest.mark.parametrize("ts", [2**63 - 1, -(2**63), 10**18])
def test_any_time_can_be_shown(ts: int) -> None:
    """A clock that is wrong stops nothing."""
    render_one: Callable[[Envelope], str] = render
    (envelope,) = Batch([frame_record([Free(ts, None, "a", {})])])

    assert render_one(envelope)


def test_a_window_over_a_field_says_which_values_it_has() -> None:
    """There is no time to be shown."""
    stats = Stats(
        kind="observation",
        name="training",
        field="loss",
        start=200,
        size=100,
        revision=1,
        final=True,
        count=1,
        mean=2.0,
        by="global_step",
    )

    assert "training[global_step=200+100].loss mean=2" in lines(Batch([stats_record([stats])]))[0]
