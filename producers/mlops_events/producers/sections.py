"""Timers of sections of a program: a `with`, or a decorator of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from mlops_events.producers.thinning import Thinning

__all__ = ["Section", "timed"]

if TYPE_CHECKING:

    class Profiler(Protocol):
        """What takes durations: an emitter."""

        def profile(
            self,
            name: str,
            duration_ns: int,
            *,
            step: int | None = None,
            tags: Mapping[str, Any] | None = None,
            failed: bool = False,
        ) -> None:
            """Emit how long a section took."""
            ...


F = TypeVar("F", bound=Callable[..., Any])

_NOTHING = nullcontext()


class Section(AbstractContextManager[None]):
    """Measures what happens inside; one object for one `with`."""

    __slots__ = ("_name", "_profiler", "_start", "_step", "_tags")

    def __init__(
        self, profiler: Profiler, name: str, step: int | None, tags: Mapping[str, Any] | None
    ) -> None:
        self._profiler = profiler
        self._name = name
        self._step = step
        self._tags = tags
        self._start = 0

    def __enter__(self) -> None:
        self._start = monotonic_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        duration = monotonic_ns() - self._start
        self._profiler.profile(
            self._name, duration, step=self._step, tags=self._tags, failed=kind is not None
        )


def timed(
    profiler: Profiler,
    name: str | None,
    *,
    tags: Mapping[str, Any] | None,
    sample_rate: float,
) -> Callable[[F], F]:
    """Return a decorator that profiles each call of a function, or a share of the calls.

    Of a coroutine all is measured until it returns, of a generator until it ends, waiting included.

    Raises:
        ValueError: the sample rate is no share.
    """
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

    thinning = Thinning(sample_rate)
    marks = dict(tags or {})
    if sample_rate != 1:
        marks["sample_rate"] = f"{sample_rate:g}"

    def decorate(function: F) -> F:
        title = name or function.__qualname__.replace("<locals>.", "")

        def section() -> AbstractContextManager[None]:
            return Section(profiler, title, None, marks or None) if thinning.take() else _NOTHING

        @wraps(function)
        async def stream(*args: Any, **kwargs: Any) -> Any:
            with section():
                async for item in function(*args, **kwargs):
                    yield item

        @wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with section():
                return await function(*args, **kwargs)

        @wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with section():
                return (yield from function(*args, **kwargs))

        @wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with section():
                return function(*args, **kwargs)

        measured: Callable[..., Any] = plain
        if isasyncgenfunction(function):
            measured = stream
        elif iscoroutinefunction(function):
            measured = coroutine
        elif isgeneratorfunction(function):
            measured = generator
        return cast("F", measured)

    return decorate
