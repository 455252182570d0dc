"""Dead letters: which are meant, how they are grouped, and how one is found by its key."""

from collections.abc import Callable
from typing import Any

import pytest

from mlops_events.control.deadletters import Choice, Letter, LetterError, by_key, group
from mlops_events.control.deadletters_read import chunks

MakeLetter = Callable[..., Letter]


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (Choice(), True),
        (Choice(sink="loki", reason="too_old", kind="log", run="r1", since_ns=5), True),
        (Choice(sink="sqlite"), False),
        (Choice(reason="too_new"), False),
        (Choice(kind="run"), False),
        (Choice(run="r2"), False),
        (Choice(since_ns=6), False),
    ],
)
def test_a_letter_is_meant_if_it_is_all_that_was_asked_for(
    make_letter: MakeLetter, choice: Choice, meant: bool
) -> None:
    """Sink, reason, kind, the run of its payload, and when it was written."""
    found = make_letter(sink="loki", reason="too_old", kind="log", run="r1", written_ns=5)

    assert choice.takes(found.letter, written_ns=found.written_ns) == meant


def test_a_payload_that_cannot_be_read_belongs_to_no_run(make_letter: MakeLetter) -> None:
    """It is meant by all other choices."""
    found = make_letter(payload=b"garbage")

    assert not Choice(run="r").takes(found.letter, written_ns=0)
    assert Choice(sink=found.letter.sink).takes(found.letter, written_ns=0)


def test_groups_say_how_many_since_when_and_what(make_letter: MakeLetter) -> None:
    """The most numerous first, with the message of the newest."""
    letters = [
        make_letter(sink="a", reason="x", written_ns=1, message="one"),
        make_letter(sink="b", reason="x", written_ns=2),
        make_letter(sink="a", reason="x", written_ns=3, message="two"),
        make_letter(sink="a", reason="y", written_ns=4),
    ]

    groups = group(letters)
    assert [(g.sink, g.reason, g.count) for g in groups] == [
        ("a", "x", 2),
        ("a", "y", 1),
        ("b", "x", 1),
    ]
    assert (groups[0].first_ns, groups[0].last_ns, groups[0].message) == (1, 3, "two")


def test_a_key_or_its_beginning_finds_a_letter(make_letter: MakeLetter) -> None:
    """A whole key wins over longer ones, as those of letters that failed again are."""
    letters = [make_letter(key=key) for key in ("sqlite/ab/1", "sqlite/ab/1#1", "loki/cd")]

    assert by_key(letters, "sqlite/ab/1") is letters[0]
    assert by_key(letters, "loki") is letters[2]
    with pytest.raises(LetterError, match="2 dead letters have keys that begin with 'sqlite/a'"):
        by_key(letters, "sqlite/a")
    with pytest.raises(LetterError, match="no dead letter has the key 'wandb'"):
        by_key(letters, "wandb")


def test_chunks_are_of_one_partition_and_bounded(make_letter: MakeLetter) -> None:
    """In number and in bytes, in the order of offsets, whatever order they came in."""
    small = [make_letter(partition=k % 2, offset=k) for k in reversed(range(500))]
    large: list[Any] = [make_letter(partition=3, offset=k, size=3 << 20) for k in range(4)]

    found = list(chunks([*small, *large]))
    assert [len(some) for some in found] == [200, 50, 200, 50, 2, 2]
    assert all(len({one.partition for one in some}) == 1 for some in found)
    assert [one.place for some in found for one in some] == sorted(
        one.place for one in [*small, *large]
    )
