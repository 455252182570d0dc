"""Finds the lines that a server refuses, so that all others are stored."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from mlops_events.sinks.influxdb_lines import Line, Refuse
from mlops_events.sinks.influxdb_push import Answer, Verdict
from mlops_events.sinks.influxdb_types import FieldTypes, conflicts

__all__ = ["Isolator"]

_POST_LINES: Final = 5_000
_POST_BYTES: Final = 4 << 20
_MANY: Final = 50
_SHARE: Final = 0.1
"""When more than so many lines of a measurement, and more than this share, are refused one by one,
the rest of what is under suspicion goes with them: thousands of posts would hold up all others."""

_NAMED: Final = re.compile(r"unable to parse '(.*?)': ", re.DOTALL)
_OLDEST: Final = re.compile(r"Retention Policy Lower Bound at ([0-9T:.-]+)Z")
_MEASUREMENT: Final = re.compile(r"(?:\\.|[^,\\ ])+")
_REASONS: Final = (
    ("field type conflict", "type_conflict"),
    ("etention", "too_old"),
    ("time outside range", "time_out_of_range"),
    ("max key length", "name_too_long"),
    ("unable to parse", "unparsable"),
)


class Isolator:
    """Posts lines until each is stored or refused.

    First what the answer gives away is used: the types that fields have, the age from which on
    points are refused, the lines that it names. What it gives away is never all of it, so the rest
    is posted again, and halved where there is nothing to go by. Posting a line twice does no harm.

    Args:
        post: one request.
        types: of the fields; the server's are learnt.
        render: makes lines again of the same events, now that more is known.
        refuse: is told of events that are refused.
    """

    def __init__(
        self,
        post: Callable[[bytes], Answer],
        types: FieldTypes,
        *,
        render: Callable[[Sequence[Line]], list[Line]],
        refuse: Refuse,
    ) -> None:
        self._post = post
        self._types = types
        self._render = render
        self._refuse = refuse
        self._learnt: set[tuple[str, str]] = set()
        self._bad: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def write(self, lines: Sequence[Line]) -> None:
        """Post lines.

        Raises:
            SinkUnavailable: they are not taken at present; some may be stored.
        """
        self._learnt.clear()
        self._bad.clear()
        self._all.clear()
        waiting = [(post, False) for post in reversed(_in_posts(lines))]
        while waiting:
            some, suspected = waiting.pop()
            if suspected and self._bad:
                some = self._not_condemned(some)
            if not some:
                continue
            answer = self._post("\n".join([line[0] for line in some]).encode(errors="replace"))
            if answer.verdict is Verdict.STORED:
                continue
            if answer.verdict is Verdict.REFUSED:
                rest = self._sort_out(some, answer)
                if rest is not None:
                    waiting.append((rest, True))
                    continue
            if len(some) > 1:
                middle = len(some) // 2
                waiting += [(some[middle:], True), (some[:middle], True)]
            elif answer.verdict is Verdict.LARGE:
                self._refuse(
                    *some[0][1:], "too_large", f"{len(some[0][0])} characters are too much"
                )
            else:
                self._count(lines, some[0])
                self._refuse(*some[0][1:], _reason(answer.text), answer.text[:2000])

    def _sort_out(self, some: Sequence[Line], answer: Answer) -> Sequence[Line] | None:
        """Refuse the lines that an answer gives away and return the others, None if it gives nothing."""
        news = [found for found in conflicts(answer.text) if found[:2] not in self._learnt]
        if news:
            self._learnt.update(found[:2] for found in news)
            if self._types.learn(news):
                return self._render(some)
        bad: set[int] = set()
        oldest = _OLDEST.search(answer.text)
        if oldest:
            bound = _nanoseconds(oldest[1])
            bad = {k for k, line in enumerate(some) if _time(line) < bound}
        named = set(_NAMED.findall(answer.text))
        if named:
            bad |= {k for k, line in enumerate(some) if line[0] in named}
        bad.update(
            number - 1
            for number, text in answer.lines
            if 0 < number <= len(some) and some[number - 1][0].startswith(text[:100])
        )
        if not bad:
            return None
        for k in sorted(bad):
            self._refuse(*some[k][1:], _reason(answer.text), _about(some[k], answer.text))
        return [line for k, line in enumerate(some) if k not in bad]

    def _count(self, lines: Sequence[Line], bad: Line) -> None:
        if not self._all:
            self._all.update(map(_measurement, lines))
        self._bad[_measurement(bad)] += 1

    def _not_condemned(self, some: Sequence[Line]) -> Sequence[Line]:
        condemned = {
            name: bad
            for name, bad in self._bad.items()
            if bad > _MANY and bad > _SHARE * self._all[name]
        }
        if not condemned:
            return some
        for line in some:
            name = _measurement(line)
            if name in condemned:
                message = (
                    f"{condemned[name]} lines of {name} in this batch were refused, one by one"
                )
                self._refuse(*line[1:], "refused_with_others", message)
        return [line for line in some if _measurement(line) not in condemned]


def _in_posts(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """Split lines so that a post stays small enough."""
    posts: list[Sequence[Line]] = []
    start = size = 0
    for at, line in enumerate(lines):
        size += len(line[0])
        if at > start and (size > _POST_BYTES or at - start >= _POST_LINES):
            posts.append(lines[start:at])
            start, size = at, len(line[0])
    if start < len(lines):
        posts.append(lines[start:])
    return posts


def _measurement(line: Line) -> str:
    found = _MEASUREMENT.match(line[0])
    return found[0] if found else ""


def _time(line: Line) -> int:
    return int(line[0].rpartition(" ")[2])


def _nanoseconds(text: str) -> int:
    """Return a time such as 2026-11-23T05:43:00.123456789 as nanoseconds since 1970."""
    whole, _, fraction = text.partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 10**9 + int(f"{fraction:0<9}"[:9])


def _reason(text: str) -> str:
    return next((reason for words, reason in _REASONS if words in text), "refused")


def _about(line: Line, text: str) -> str:
    """Return what an answer says of a line, if that can be told."""
    start = text.find(line[0])
    return text[start + len(line[0]) :][:300].lstrip("': ") if start >= 0 else text[:2000]
