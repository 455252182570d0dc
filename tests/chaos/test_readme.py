"""The table of scenarios names tests that there are."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_in_the_table_exists() -> None:
    """A test that is renamed is renamed there too."""
    named = re.findall(r"`(\S+\.py)::(\w+)`", (HERE / "README.md").read_text())
    gone = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", (HERE.parent / file).read_text())
    ]

    assert len(named) > 30
    assert gone == []
