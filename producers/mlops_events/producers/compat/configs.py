"""Takes the scalars out of the objects that programs keep their configuration in."""

from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import PurePath
from typing import Any, Final

__all__ = ["named", "scalars"]

_DEPTH: Final = 6
_ITEMS: Final = 256
"""Lists longer than this are data, not configuration."""


def scalars(config: Any) -> dict[str, Any]:
    """Return numbers, bools, texts, paths and short lists of these, nested as they are.

    What else there is, what is None, and what begins with an underscore is left out.

    Args:
        config: a mapping, an argparse Namespace, a dataclass or any object with attributes.
    """
    return _mapping(config, _DEPTH)


def named(config: Any, name: str) -> str:
    """Return an entry of a configuration if it is a text, else nothing."""
    value = next((value for key, value in _entries(config) if key == name), "")
    return value if isinstance(value, str) else ""


def _mapping(config: Any, depth: int) -> dict[str, Any]:
    found = {key: _value(value, depth - 1) for key, value in _entries(config)}
    return {key: value for key, value in found.items() if value is not None}


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Real):  # numpy's
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        items = [_value(item, 0) for item in value[:_ITEMS]]
        whole = len(value) <= _ITEMS and all(item is not None for item in items)
        return items if whole and items else None
    return (_mapping(value, depth) or None) if depth > 0 else None


def _entries(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a configuration holds; never raises."""
    try:
        if not isinstance(config, Mapping):
            if isinstance(config, type) or callable(config):
                return
            names = getattr(type(config), "__struct_fields__", None) or vars(config)
            config = {name: getattr(config, name) for name in names}
        entries = list(config.items())
    except Exception:  # anybody's object
        return
    for key, value in entries:
        if isinstance(key, str) and not key.startswith("_"):
            yield key, value
