"""A W&B run as programs use it; what they log goes through the pipeline here."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mlops_events.producers.compat.configs import named, scalars
from mlops_events.producers.compat.moments import step_of
from mlops_events.producers.compat.notices import say_moved, say_once
from mlops_events.producers.compat.sharing import SharedEmitter, share
from mlops_events.schemas.catalog import BARE_NAME

__all__ = ["PipelineRun", "RunConfig", "RunSummary", "initialize_wandb"]

_SUMMARY: Final = "summary"

_LEFT_OUT: Final = frozenset(
    """
    alert define_metric display finish_artifact link_artifact link_model log_artifact log_code
    log_model mark_preempting restore save status to_html unwatch upsert_artifact use_artifact
    use_model watch write_logs
    """.split()  # noqa: SIM905 - easier to read than twenty quotes
)
"""Methods of a W&B run that have no counterpart here."""


def initialize_wandb(
    run_prefix: str = "",
    uid: int | str | None = None,
    config: Any = None,
    group: str = "",
    job_type: str = "",
    *,
    project: str = "",
    version: str = "",
    run: str | None = None,
    **unused: Any,
) -> "PipelineRun":
    """Return a run that logs through the pipeline; W&B is reached by the sink's service alone.

    Args:
        run_prefix: what the run's name begins with; the uid follows.
        uid: the node's number or name.
        config: a mapping, a Namespace or another object; its scalars are the run's configuration.
        group: runs that belong together.
        job_type: such as "mining".
        project: what the run belongs to; `config.project` without it.
        version: of the program.
        run: the run's id; `MLOPS_EVENTS_RUN_ID` without it.
        unused: taken and not used, such as entity and mode.

    Raises:
        ConfigError: a setting of the environment is unusable.
    """
    del unused
    say_moved("WANDB_", "W&B")
    name = f"{run_prefix}{'' if uid is None else uid}"
    project = project or named(config, "project")
    shared = share(
        run=run,
        uid=uid,
        hints=(group, run_prefix),
        config=config,
        name=name,
        project=project,
        version=version,
        group=group,
        job_type=job_type,
    )
    return PipelineRun(shared, name=name, project=project, config=scalars(config))


class PipelineRun:
    """A run of one node, with the calls of a W&B run.

    Args:
        shared: its emitter.
        name: the run's name for people.
        project: what it belongs to.
        config: what its configuration holds at first.
    """

    url: None = None
    """Where W&B shows it is known to the sink's service alone."""
    resumed = False
    disabled = False

    def __init__(
        self, shared: SharedEmitter, *, name: str, project: str, config: Mapping[str, Any]
    ) -> None:
        self.id = shared.run
        self.name = name
        self.project = project
        self.config = RunConfig(config, shared.update)
        self.summary = RunSummary(self._observe_summary)
        self.step = 0
        """The step that was logged last, or how many rows were logged without one."""
        self._shared = shared
        self._pending: dict[str, Any] = {}
        self._open = True
        shared.hold()

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,
        sync: bool | None = None,
    ) -> None:
        """Emit metrics under the names that they have here; never raises.

        Args:
            data: numbers and texts by name, also nested.
            step: the training step; else `global_step` or `step` of the data.
            commit: False holds the values back until the next call.
            sync: not used.
        """
        del sync
        try:
            values = {name: value for name, value in data.items() if _is_kept(value)}
            values = {**self._pending, **values}
            self._pending = values if commit is False and step is None else {}
            if self._pending or not values:
                return
            found = step_of(values, {}) if step is None else step
            self.step = found if isinstance(found, int) else self.step + 1
            self.summary.remember(values)
            self._shared.emitter.observe(BARE_NAME, values, step=found)
        except Exception as error:  # values may be anybody's objects
            say_once("a call of log cannot be understood: %s: %s", type(error).__name__, error)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Send the rest and end the run; an exit code other than 0 says that it crashed."""
        del quiet
        if not self._open:
            return
        self._open = False
        if self._pending:
            self.log({})
        self._shared.release(crashed=bool(exit_code))

    def __enter__(self) -> "PipelineRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method that does nothing and says so once, for those that W&B's runs have."""
        if name not in _LEFT_OUT:
            raise AttributeError(
                f"a run of the pipeline has no {name!r}; docs/migrating.md says what it has"
            )

        def leave_out(*_: Any, **__: Any) -> None:
            say_once("run.%s does nothing: the pipeline carries metrics, not files or alerts", name)

        return leave_out

    def _observe_summary(self, values: Mapping[str, Any]) -> None:
        self._shared.emitter.observe(_SUMMARY, {k: v for k, v in values.items() if _is_kept(v)})


class RunConfig(dict[str, Any]):
    """The configuration of a run: a mapping whose entries are attributes, too.

    Args:
        values: what it holds at first.
        changed: is told of changes.
    """

    def __init__(
        self, values: Mapping[str, Any], changed: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(values)
        object.__setattr__(self, "_changed", changed)

    def update(self, *given: Any, allow_val_change: bool | None = None, **more: Any) -> None:
        """Add entries of a mapping or another object; those that are there change."""
        del allow_val_change
        news = {**(scalars(given[0]) if given else {}), **more}
        super().update(news)
        self._changed(news)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._changed({name: value})

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the run's configuration has no {name!r}")


class RunSummary(dict[str, Any]):
    """Values that sum a run up: what was logged last, and what the program sets.

    Args:
        changed: is told of what the program sets.
    """

    def __init__(self, changed: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._changed = changed

    def remember(self, values: Mapping[str, Any]) -> None:
        """Take what was logged."""
        super().update(values)

    def update(self, *given: Any, **more: Any) -> None:
        """Set values, and emit them."""
        news = {**(given[0] if given else {}), **more}
        super().update(news)
        self._changed(news)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._changed({name: value})


def _is_kept(value: Any) -> bool:
    """Whether it is no image, table, histogram or the like."""
    kind = type(value)
    if kind.__module__.split(".", 1)[0] != "wandb":
        return True
    say_once("wandb.%s is left out: the pipeline carries numbers and texts", kind.__name__)
    return False
