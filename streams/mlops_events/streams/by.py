"""What windows are cut by: a span of event time, or a stretch of a whole-numbered field."""

from typing import Final

import msgspec

from mlops_events.schemas.text import duration_ns

__all__ = ["TIME", "By", "parse_rules"]

TIME: Final = "time"
"""What windows over event time are called; no field of windows may have this name."""

_MIN_NS: Final = 1_000_000
_MAX_NS: Final = 86_400 * 1_000_000_000
_MAX_SIZE: Final = 2**62
_UNITS: Final = (
    ("h", 3600 * 10**9),
    ("min", 60 * 10**9),
    ("s", 10**9),
    ("ms", 10**6),
    ("us", 10**3),
    ("ns", 1),
)
_HOW: Final = "write time:10s, field:NAME or field:NAME/SIZE"


class By(msgspec.Struct, frozen=True):
    """A rule for windows: a window holds the events whose value lies in a stretch of `size`.

    The value is the event's time in nanoseconds if `name` is "time", the whole number in its field
    `name` otherwise. Windows start at multiples of their size.
    """

    name: str
    size: int

    @classmethod
    def parse(cls, text: str) -> "By":
        """Return the rule that `time:10s`, `field:window` or `field:global_step/100` stands for.

        A field whose name has a slash needs its size: `field:train/step/1`.

        Raises:
            ValueError: the text is no rule.
        """
        kind, colon, rest = (part.strip() for part in text.partition(":"))
        if not colon or kind not in (TIME, "field"):
            raise ValueError(f"{text!r} is no rule for windows; {_HOW}")
        return cls(TIME, _time_size(text, rest)) if kind == TIME else _parse_field(text, rest)

    @property
    def over_time(self) -> bool:
        """True for windows over event time."""
        return self.name == TIME

    @property
    def label(self) -> str:
        """The rule as text, the same for equal rules."""
        if self.over_time:
            unit, ns = next((unit, ns) for unit, ns in _UNITS if self.size % ns == 0)
            return f"{TIME}:{self.size // ns}{unit}"
        plain = self.size == 1 and "/" not in self.name
        return f"field:{self.name}" if plain else f"field:{self.name}/{self.size}"


def parse_rules(texts: tuple[str, ...]) -> tuple[By, ...]:
    """Return the rules that texts stand for.

    Raises:
        ValueError: there is none, one is no rule, or one is named twice.
    """
    if not texts:
        raise ValueError(f"by names no rule for windows; {_HOW}")
    rules: list[By] = []
    for text in texts:
        rule = By.parse(text)
        if rule in rules:
            raise ValueError(f"by names a rule twice: {rule.label}")
        rules.append(rule)
    return tuple(rules)


def _time_size(text: str, size: str) -> int:
    try:
        ns = duration_ns(size)
    except ValueError as error:
        raise ValueError(f"{text!r} is no rule for windows: {error}") from error
    if not _MIN_NS <= ns <= _MAX_NS:
        raise ValueError(f"{text!r}: a window over time has 1ms to 24h")
    return ns


def _parse_field(text: str, rest: str) -> By:
    name, slash, size = (part.strip() for part in rest.rpartition("/"))
    if not slash:
        name, size = rest, "1"
    if not name or name == TIME:
        raise ValueError(f"{text!r} names no field that windows can be cut by; {_HOW}")
    if not (size.isascii() and size.isdecimal()):
        hint = f"; a field whose name has a slash needs one, such as {text}/1" if size else ""
        raise ValueError(f"{text!r}: {size!r} is no size of a window, a whole number{hint}")
    if not 1 <= int(size) <= _MAX_SIZE:
        raise ValueError(f"{text!r}: a window over a field has a size of 1 to 2**62")
    return By(name, int(size))
