"""One emitter for all calls of a process that are about the same node of the same run."""

import os
from collections.abc import Mapping
from threading import RLock
from typing import Any, Final

from msgspec.structs import replace

from mlops_events.producers.compat.configs import named, scalars
from mlops_events.producers.compat.notices import say_once
from mlops_events.producers.emitter import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import Log

__all__ = ["SharedEmitter", "share"]

_ROLES: Final = {
    "M": "miner",
    "V": "validator",
    "A": "aggregator",
    "E": "evaluator",
    "T": "trainer",
}
"""Roles, and the letters that names of runs begin with."""


class SharedEmitter:
    """An emitter that opens with the first event, so that every call before it says who emits.

    Args:
        settings: of the emitter.
        run: the run's id.
        uid: the node.
        role: what it does.
    """

    def __init__(
        self, settings: EmitterSettings, *, run: str, uid: int | str | None, role: str
    ) -> None:
        self.run = run
        self.uid = uid
        self.role = role
        self._settings = settings
        self._facts: dict[str, str] = {}
        self._config: dict[str, Any] = {}
        self._emitter: Emitter | None = None
        self._held = 0
        self._announced = False
        self._pid = os.getpid()

    @property
    def emitter(self) -> Emitter:
        """The emitter; it is opened if it is not."""
        return self._emitter or self._open()

    def tell(self, config: Any, **facts: str) -> None:
        """Add to what is known of the origin, and to the run's configuration.

        Args:
            config: any object with scalars.
            facts: project, name, version, environment, group, job_type; the empty ones tell nothing.
        """
        with _lock:
            news = {
                key: value
                for key, value in facts.items()
                if value and self._facts.setdefault(key, value) != value
            }
            more = {k: v for k, v in facts.items() if v and k not in news}
            if self._emitter is not None:
                origin = self._emitter.origin
                news |= {k: v for k, v in more.items() if getattr(origin, k, v) != v}
            if news:
                say_once(
                    "told too late, or told otherwise before: %s; the first call that says it "
                    "counts, if it comes before the first event",
                    ", ".join(f"{key}={value}" for key, value in sorted(news.items())),
                )
            self.update(scalars(config))

    def update(self, config: Mapping[str, Any]) -> None:
        """Add to the run's configuration."""
        with _lock:
            news = {
                k: v for k, v in config.items() if k not in self._config or self._config[k] != v
            }
            self._config.update(news)
            if news and self._emitter is not None:
                self._emitter.update(news)

    def write(self, event: Log) -> None:
        """Emit a line of log."""
        self.emitter.write(event)

    def hold(self) -> None:
        """Keep it open until as many have let go."""
        with _lock:
            self._held += 1

    def release(self, *, crashed: bool = False) -> None:
        """Let go; the last one ends the run. What is emitted later opens another emitter."""
        with _lock:
            self._held -= 1
            if self._held > 0:
                return
            emitter = self.emitter  # a run without events starts and ends, too
            self._emitter = None
        emitter.close(crashed=crashed)

    def _open(self) -> Emitter:
        with _lock:
            if self._emitter is not None:
                return self._emitter
            # In a forked child the run is its parent's to start and to end.
            announce = os.getpid() == self._pid and (self._held > 0 or not self._announced)
            who: dict[str, Any] = {
                **self._facts,
                "run": self.run,
                "role": self.role,
                "uid": self.uid,
            }
            try:
                emitter = Emitter(
                    **who, config=self._config, settings=self._settings, announce=announce
                )
            except ConfigError as error:
                say_once("no events are sent: %s", error)
                emitter = Emitter(settings=replace(self._settings, disabled=True))
            self._announced = self._announced or announce
            self._emitter = emitter
            return emitter


_lock = RLock()
_shared: list[SharedEmitter] = []
_made_up: list[str] = []


def share(
    *,
    uid: object,
    config: Any = None,
    run: str | None = None,
    role: str = "",
    hints: tuple[str, ...] = (),
    **facts: str,
) -> SharedEmitter:
    """Return the emitter of a node; the same for the same run, uid and role.

    A call that does not say its role is about the node whose run and uid it names.

    Args:
        uid: the node's number or name.
        config: of the run.
        run: the run's id; `MLOPS_EVENTS_RUN_ID`, or one for the whole process, without it.
        role: what the node does; `MLOPS_EVENTS_ROLE` without it.
        hints: words that may be a role, or its first letter, where none is told.
        facts: as for `tell`.

    Raises:
        ConfigError: a setting of the environment is unusable.
    """
    settings = EmitterSettings.from_environment()
    facts["project"] = facts.get("project") or settings.project or named(config, "project")
    with _lock:
        found = _find(
            settings,
            run=run or settings.run_id or _process_run(),
            uid=settings.uid if uid is None else _number(uid),
            role=role or settings.role or _guess(hints),
        )
    found.tell(config, **facts)
    return found


def _find(
    settings: EmitterSettings, *, run: str, uid: int | str | None, role: str
) -> SharedEmitter:
    for one in _shared:
        if (one.run, one.uid) == (run, uid) and role in ("", one.role):
            return one
    made = SharedEmitter(settings, run=run, uid=uid, role=role)
    if not _shared and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_lock)
    _shared.append(made)
    return made


def _process_run() -> str:
    if not _made_up:
        _made_up.append(f"run-{os.urandom(4).hex()}")
    return _made_up[0]


def _number(uid: object) -> int | str:
    text = str(uid)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text


def _guess(hints: tuple[str, ...]) -> str:
    for hint in hints:
        word = hint.strip("-_ ")
        if word.lower() in _ROLES.values():
            return word.lower()
        if word.upper() in _ROLES:
            return _ROLES[word.upper()]
    return ""


def _renew_lock() -> None:
    """Have a lock in a forked child that no thread of its parent holds."""
    global _lock
    _lock = RLock()
