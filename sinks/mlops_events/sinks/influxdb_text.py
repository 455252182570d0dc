"""Texts in line protocol: escaped, and without what the protocol has no form for."""

from functools import lru_cache
from typing import Final

__all__ = ["MAX_KEY", "TooLongError", "field_key", "measurement_name", "string", "tag_pair"]

MAX_KEY: Final = 65_000
"""Bytes of a measurement with its tags, and of a field's name; InfluxDB takes 65,535."""

_UNNAMED: Final = "unnamed"

# Control characters end lines or vanish; a backslash would escape what follows it. Neither has an
# escape of its own outside of quoted strings.
_CONTROL: Final = dict.fromkeys((*range(32), 127), r"\ ")
_MEASUREMENT: Final = {**_CONTROL, ord(","): r"\,", ord(" "): r"\ ", ord("\\"): "/"}
_KEY: Final = {**_MEASUREMENT, ord("="): r"\="}
_STRING: Final = {ord('"'): r"\"", ord("\\"): r"\\", 0: "\ufffd"}

# https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/#naming-restrictions
_RESERVED: Final = frozenset(("time", "_field", "_measurement", "_time"))


class TooLongError(ValueError):
    """A name is longer than InfluxDB takes."""


def measurement_name(name: str) -> str:
    """Return a measurement's name, escaped.

    Raises:
        TooLongError: it is.
    """
    _check(name)
    text = (name or _UNNAMED).translate(_MEASUREMENT)
    return f"_{text}" if text.startswith("#") else text  # a line with # is a comment


@lru_cache(maxsize=8192)
def field_key(name: str, taken: frozenset[str] = frozenset()) -> str:
    """Return a field's name, escaped; one that is taken gets an underscore at its end.

    Args:
        name: the name.
        taken: names that tags have.

    Raises:
        TooLongError: it is.
    """
    _check(name)
    text = (name or _UNNAMED).translate(_KEY)
    return f"{text}_" if text in _RESERVED or text in taken else text


def tag_pair(name: str, value: object) -> str:
    """Return a tag as `,name=value`; nothing if it has no value.

    Raises:
        TooLongError: it is.
    """
    text = "" if value is None else str(value).strip()
    if not text:
        return ""
    _check(text)
    return f",{field_key(name)}={text.translate(_KEY)}"


def string(text: str) -> str:
    """Return a text as the value of a field, quoted."""
    return f'"{text.translate(_STRING)}"'


def _check(text: str) -> None:
    if len(text) > MAX_KEY // 4 and len(text.encode(errors="replace")) > MAX_KEY:
        raise TooLongError(
            f"a name or tag of {len(text)} characters ({text[:40]}...); at most {MAX_KEY} bytes fit"
        )
