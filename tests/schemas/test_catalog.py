"""The metrics catalogue, and which fields are steps."""

import pytest

from mlops_events.schemas.catalog import METRICS, STEP_LIKE, describe, is_step_like, lookup


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "global_step",
        "inner_step",
        "epoch",
        "window",
        "sync_window",
        "block",
        "batch_id",
        "train/epoch",
        "globalStep",
        "Global-Step",
        "iteration",
        "state.step",
    ],
)
def test_fields_that_say_where_training_stands(name: str) -> None:
    """However they are spelled, they get no windows."""
    assert is_step_like(name)


@pytest.mark.parametrize(
    "name", ["loss", "lr", "step_time", "tokens_per_second", "steps_per_second", "epoch_loss", ""]
)
def test_fields_that_are_values(name: str) -> None:
    """A name that merely mentions a step is a value."""
    assert not is_step_like(name)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("loss", "loss"),
        ("train/loss", "loss"),
        ("lr", "learning_rate"),
        ("grad-norm", "grad_norm"),
        ("gradNorm", "grad_norm"),
    ],
)
def test_metrics_are_found_as_trainers_spell_them(name: str, metric: str) -> None:
    """Aliases, prefixes and other spellings lead to the one entry."""
    found = lookup(name)

    assert found is not None
    assert found.name == metric


def test_unknown_names_are_no_metric() -> None:
    """The catalogue describes, it restricts nothing."""
    assert lookup("something_else") is None


def test_names_and_aliases_are_unique_and_no_steps() -> None:
    """A spelling means one metric."""
    names = [name for metric in METRICS for name in (metric.name, *metric.aliases)]

    assert len(names) == len(set(names))
    assert not STEP_LIKE & {metric.name for metric in METRICS}


def test_the_table_has_every_metric() -> None:
    """People read in the documentation what programs read here."""
    table = describe()

    assert all(f"| `{metric.name}` | `{metric.unit}` |" in table for metric in METRICS)
