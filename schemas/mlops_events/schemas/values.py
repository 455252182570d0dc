"""What trainers pass as values, turned into what msgpack can hold.

The fast way is `ENCODER` alone: its hook takes numpy and torch scalars, small arrays, paths and
the like. Only when that raises, `clean` looks at each value by itself.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["ENCODER", "MAX_DEPTH", "MAX_SAMPLES", "clean"]

MAX_SAMPLES = 4096
"""Arrays with more elements than this are refused: they are data sets, not samples."""

MAX_DEPTH = 16
"""Mappings and lists nested deeper than this are refused."""

_INT64 = range(-(2**63), 2**64)


def _enc_hook(value: Any) -> Any:
    """Turn a foreign object into something msgpack has; raise TypeError if nothing fits."""
    kind = type(value)
    if getattr(value, "is_cuda", False):
        # Reading it would wait for the GPU: PyTorch issue 143825.
        raise TypeError(f"a tensor on {value.device} is not read: it would synchronise the GPU")
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "item") and hasattr(value, "shape"):
        size = math.prod(value.shape)
        if size > MAX_SAMPLES:
            raise TypeError(f"{kind.__name__} of {size} elements; at most {MAX_SAMPLES} are taken")
        plain = value.item() if not tuple(value.shape) else value.tolist()
        if type(plain) is kind:  # numpy.longdouble.item() is itself
            return float(plain)
        return plain
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, complex | range):
        return str(value)
    if isinstance(value, BaseException):
        return f"{kind.__name__}: {value}"
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be encoded")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_enc_hook, decimal_format="number")
"""Encodes events and their values; raises on what `clean` must look at."""


def clean(fields: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that can be encoded, and the names of those that cannot.

    Integers beyond 64 bits become floats (text where even a float is too small), lone surrogates
    become "?", keys become text. Never raises: a value whose own methods raise is left out.
    """
    good: dict[str, Any] = {}
    bad: list[str] = []
    for key, value in fields.items():
        try:
            name = _text(key if isinstance(key, str) else str(key))
        except Exception:  # foreign objects may raise anything
            bad.append(f"<{type(key).__name__}>")
            continue
        try:
            plain = _plain(value, MAX_DEPTH)
            ENCODER.encode(plain)
            good[name] = plain
        except Exception:  # foreign objects may raise anything
            bad.append(name)
    return good, bad


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return value if value in _INT64 else _big(value)
    if depth == 0:
        raise TypeError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        return {_text(str(k)): _plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v, depth - 1) for v in value]
    return value


def _big(value: int) -> float | str:
    try:
        return float(value)
    except OverflowError:
        return hex(value)


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8")
