"""Finds what `run-analysis` runs: a function by its name, or a script by its path."""

import builtins
import importlib
import inspect
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["Call", "TargetError", "as_program", "find", "label"]

Call = Callable[[], Any]

_EXPECTED: Final = "give module:function, such as train:main, or the path of a script"
_SHOWN: Final = 8


class TargetError(MlopsEventsError):
    """A target cannot be run; the message says what was found and what is expected."""


def find(
    target: str | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Call:
    """Return what runs a target; a script is a program with `args` behind its name.

    Args:
        target: `module:function`, where the function may be a method (`train:Trainer.fit`), the path
            of a script, or something that can be called.
        args: what it is called with; those of a script are texts.
        kwargs: more of it; a script takes none.

    Raises:
        TargetError: there is no such target, or it does not take the arguments.
    """
    given = dict(kwargs or {})
    if not isinstance(target, str):
        return _call(target, label(target), args, given)
    path = Path(target)
    if path.suffix == ".py" or path.is_file() or path.is_dir():
        return _script(path)
    name, colon, attributes = target.partition(":")
    if not colon or not name or not attributes:
        raise TargetError(f"{target!r} is no function and no script; {_EXPECTED}")
    found: Any = _module(name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise TargetError(_no_attribute(found, name, attribute)) from error
    return _call(found, target, args, given)


def label(target: str | Callable[..., Any]) -> str:
    """Return what a target is called in a report."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', '?')}:{name}"


@contextmanager
def as_program(target: str, args: Sequence[str]) -> Iterator[None]:
    """Let a target find its arguments, its folder and its modules as if Python had started it."""
    argv, path, main = sys.argv, list(sys.path), sys.modules.get("__main__")
    script = Path(target)
    sys.argv = [target, *args]
    sys.path.insert(0, str((script.parent if script.is_file() else Path()).resolve()))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        if main is not None:
            sys.modules["__main__"] = main


def _script(path: Path) -> Call:
    if path.is_dir():
        path /= "__main__.py"
    if not path.is_file():
        raise TargetError(f"there is no script {str(path)!r}; {_EXPECTED}")
    try:
        with tokenize.open(path) as file:
            code = compile(file.read(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{path} is no Python script: {error}") from error
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error}") from error

    def run() -> None:
        main = ModuleType("__main__")
        main.__file__ = str(path)
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        exec(code, main.__dict__)  # noqa: S102 - the script that was asked for

    return run


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise TargetError(
                f"there is no module {missing!r} in {Path.cwd()} or where Python looks; {_EXPECTED}"
            ) from error
        raise TargetError(
            f"module {name!r} needs {missing!r}, which is not installed; run mlops-emit with the "
            "Python of the program (python -m mlops_events.producers)"
        ) from error
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise TargetError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _no_attribute(found: Any, name: str, attribute: str) -> str:
    owner = f"module {name!r}" if isinstance(found, ModuleType) else repr(_name(found))
    there = [
        key for key in dir(found) if not key.startswith("_") and callable(getattr(found, key, None))
    ]
    near = get_close_matches(attribute, there, n=1, cutoff=0.6)
    if near:
        return f"{owner} has no {attribute!r}; did you mean {near[0]}?"
    own = [key for key in there if getattr(getattr(found, key), "__module__", None) == name]
    listed = ", ".join((own or there)[:_SHOWN]) or "nothing"
    return f"{owner} has no {attribute!r}; there can be called: {listed}"


def _call(found: Any, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    if not callable(found):
        raise TargetError(f"{target} is of type {type(found).__name__}, not a function")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return lambda: found(*args, **kwargs)  # built in: it says itself what it takes
    if (args or kwargs) and not signature.parameters:
        return lambda: found()  # it reads sys.argv
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
        raise TargetError(
            f"{target} takes {signature}, and was given ({shown}): {error}"
        ) from error
    return lambda: found(*args, **kwargs)


def _name(found: Any) -> str:
    return str(getattr(found, "__qualname__", type(found).__name__))
