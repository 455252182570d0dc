"""What is shown of dead letters: on wide and narrow terminals, and as JSON."""

from collections.abc import Callable

import msgspec
import pytest

from mlops_events.control.deadletters import Letter, group
from mlops_events.control.deadletters_content import as_json, describe, hexdump
from mlops_events.control.deadletters_plan import Account, Kept
from mlops_events.control.deadletters_text import account_text, group_text, letter_text, list_text

MakeLetter = Callable[..., Letter]
MakeFrame = Callable[..., bytes]
WHEN = 1_700_000_000_000_000_000


def too_wide(text: str, width: int) -> list[str]:
    """Return the lines that do not fit, those with nothing but a long word left out."""
    return [line for line in text.splitlines() if len(line) > width and " " in line.strip()]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_groups_fit_the_terminal(make_letter: MakeLetter, width: int) -> None:
    """A table where there is room, else below each other; always everything."""
    letters = [
        make_letter(reason="unreadable_event", written_ns=WHEN, message="a long story " * 9),
        make_letter(sink="stream", reason="undecodable", written_ns=WHEN),
    ]
    text = group_text(group(letters), width=width)

    assert not too_wide(text, width)
    assert ("SINK" in text) == (width >= 80)
    for word in ("sqlite", "unreadable_event", "2023-11-14", "22:13:20", "such as: a long"):
        assert word in text
    assert text.endswith("2 dead letters")


@pytest.mark.parametrize("width", [40, 80])
def test_keys_are_never_cut(make_letter: MakeLetter, width: int) -> None:
    """They are there to be copied, from lists, from one letter and from the account."""
    key = f"sqlite/{'ab' * 40}/1#2"
    letter = make_letter(key=key, written_ns=WHEN, redriven=2)
    account = Account(chosen=1, dry_run=False, kept=[Kept(key=key, why="it stays")])

    for text in (
        list_text([letter], width=width),
        letter_text(letter, width=width),
        account_text(account, width=width),
    ):
        assert key in text
    assert not too_wide(list_text([letter], width=width), width)
    assert "redriven 2x" in list_text([letter], width=width)


def test_without_letters_it_says_so() -> None:
    """No empty table."""
    assert group_text([], width=80) == list_text([], width=80) == "no dead letters"


def test_a_letter_shows_its_event(make_letter: MakeLetter) -> None:
    """As a line, and in full."""
    text = letter_text(make_letter(), width=80)

    assert "r/miner/1 training step=3 loss=1.5" in text
    assert '"loss": 1.5' in text
    assert "lies at   partition 0, offset 0" in text


def test_many_events_are_counted(make_letter: MakeLetter, make_frame: MakeFrame) -> None:
    """Ten lines, and how many more."""
    events = [["m", WHEN, k, "training", {"loss": k}] for k in range(25)]
    text = letter_text(make_letter(payload=make_frame(*events)), width=80)

    assert text.count("training step=") == 10
    assert "and 15 events more" in text


def test_an_event_that_cannot_be_read_is_shown_as_it_is(
    make_letter: MakeLetter, make_frame: MakeFrame
) -> None:
    """With what is wrong with it."""
    text = letter_text(make_letter(payload=make_frame(["odd", 1, "x"])), width=80)

    assert "event 0 cannot be read" in text
    assert '["odd",1,"x"]' in text


def test_bytes_are_dumped(make_letter: MakeLetter) -> None:
    """The first of them; nothing of them reaches the terminal as a command."""
    text = letter_text(make_letter(payload=b"\x1b[2Jjunk" * 100, message="a\x1b[2Jb"), width=80)

    assert "0000  1b 5b 32 4a 6a 75 6e 6b" in text
    assert "and 544 bytes more" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("width", "longest"), [(80, 74), (40, 40)])
def test_a_dump_fits_the_terminal(width: int, longest: int) -> None:
    """Sixteen bytes a line, or eight."""
    lines = list(hexdump(bytes(range(40)), width=width))

    assert max(map(len, lines)) <= longest
    assert len(lines) == (3 if width == 80 else 5)


def test_a_letter_is_described_as_json(make_letter: MakeLetter, make_frame: MakeFrame) -> None:
    """With the payload as base64, and events that JSON cannot hold as texts."""
    odd = ["m", WHEN, 1, "n", {"x": float("nan"), "e": msgspec.msgpack.Ext(5, b"\x01")}]
    found = msgspec.json.decode(as_json(describe(make_letter(payload=make_frame(odd)))))

    assert found["events"][0]["event"]["fields"] == {"x": "NaN", "e": "extension 5: 01"}
    assert found["events"][0]["id"] == f"{bytes(range(16)).hex()}/observation/0/0"
    assert (found["letter_partition"], found["letter_offset"]) == (0, 0)


def test_the_account_says_what_would_be_done() -> None:
    """How many where, and why the others stay, the most frequent reason first."""
    account = Account(chosen=6, dry_run=True, redriven=2, gone=1)
    account.sent["p.sink.sqlite.v1"] = 2
    account.kept = [Kept(key=f"k{n}", why="it is old" if n else "it is new") for n in range(3)]

    assert account_text(account, width=80).splitlines() == [
        "2 of 6 dead letters would be redriven",
        "  2 to p.sink.sqlite.v1",
        "1 were deleted or written anew meanwhile",
        "3 would be kept:",
        "  2: it is old",
        "    such as k2",
        "  1: it is new",
        "    such as k0",
    ]
    assert account_text(Account(chosen=0, dry_run=False), width=80) == "no dead letters are meant"
