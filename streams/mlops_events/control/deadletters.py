"""Dead letters as they lie in their topic, and which of them are meant."""

from collections.abc import Sequence

import msgspec

from mlops_events.schemas.errors import DecodeError, MlopsEventsError
from mlops_events.schemas.events import DeadLetter, Origin
from mlops_events.schemas.frame import Frame, StatsFrame, decode_frame, decode_stats

__all__ = [
    "Choice",
    "Group",
    "Letter",
    "LetterError",
    "by_key",
    "group",
    "read_payload",
]


class LetterError(MlopsEventsError):
    """Dead letters cannot be read, or none is the one that was meant."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter and where it lies in its topic; `written_ns` is when it was written there."""

    letter: DeadLetter
    partition: int
    offset: int
    written_ns: int

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.partition, self.offset


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters are meant: those that are all of what is set.

    The run stands in the payload. A letter whose payload cannot be read has none.
    """

    sink: str | None = None
    reason: str | None = None
    kind: str | None = None
    run: str | None = None
    since_ns: int | None = None

    def takes(self, letter: DeadLetter, *, written_ns: int) -> bool:
        """Whether a letter, with its payload, is meant."""
        return (
            self.sink in (None, letter.sink)
            and self.reason in (None, letter.reason)
            and self.kind in (None, letter.kind)
            and (self.since_ns is None or written_ns >= self.since_ns)
            and (self.run is None or self.run == _run(letter))
        )


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The letters of one sink and reason: how many, since when, and one of them."""

    sink: str
    reason: str
    count: int
    first_ns: int
    last_ns: int
    message: str
    key: str


def by_key(letters: Sequence[Letter], key: str) -> Letter:
    """Return the letter with this key, or the only one whose key begins so.

    Raises:
        LetterError: there is none, or more than one.
    """
    found = [letter for letter in letters if letter.letter.key.startswith(key)]
    exact = [letter for letter in found if letter.letter.key == key]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise LetterError(f"no dead letter has the key {key!r}; see: dead-letters list --all")
    raise LetterError(
        f"{len(found)} dead letters have keys that begin with {key!r}, such as "
        f"{found[0].letter.key} and {found[1].letter.key}; give more of it"
    )


def group(letters: Sequence[Letter]) -> list[Group]:
    """Return the letters by sink and reason, the most numerous first; oldest first comes in."""
    found: dict[tuple[str, str], list[Letter]] = {}
    for letter in letters:
        found.setdefault((letter.letter.sink, letter.letter.reason), []).append(letter)
    groups = [
        Group(
            sink=sink,
            reason=reason,
            count=len(some),
            first_ns=some[0].written_ns,
            last_ns=some[-1].written_ns,
            message=some[-1].letter.message,
            key=some[-1].letter.key,
        )
        for (sink, reason), some in found.items()
    ]
    return sorted(groups, key=lambda one: (-one.count, one.sink, one.reason))


def read_payload(payload: bytes) -> Frame | StatsFrame:
    """Decode what a letter holds: a frame or Stats.

    Raises:
        DecodeError: it is neither.
    """
    try:
        return decode_frame(payload)
    except DecodeError as error:
        try:
            return decode_stats(payload)
        except DecodeError:
            raise error from None


def _run(letter: DeadLetter) -> str | None:
    try:
        origin: Origin = read_payload(letter.payload).origin
    except DecodeError:
        return None
    return origin.run
