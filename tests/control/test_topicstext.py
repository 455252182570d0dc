"""What is shown of topics: tables, faults, and commands that can be copied."""

import shlex

import pytest

from mlops_events.control.tables import table
from mlops_events.control.topicscheck import TopicsChecked
from mlops_events.control.topicsizes import TopicSize
from mlops_events.control.topicstext import check_text, creation_text, list_text, shell_lines
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import find_faults
from mlops_events.schemas.topicrules import TopicState
from mlops_events.schemas.topics import topic_specs

KAFKA = KafkaSettings(brokers="b:9092", prefix="p")
SPECS = topic_specs(KAFKA.topics, sinks=["loki"], partitions=4, replication=1)


def checked(**config: dict[str, str]) -> TopicsChecked:
    """Return the topics as created, but for the settings given by kind, without dead letters."""
    states = {
        s.name: TopicState(
            name=s.name,
            partitions=4,
            replication=1,
            config={**s.config, **config.get(s.name.split(".")[1], {})},
        )
        for s in SPECS
        if "dead-letters" not in s.name
    }
    faults = find_faults(KAFKA, states, names=[s.name for s in SPECS])
    return TopicsChecked(topics=list(states.values()), faults=faults, unread=[])


def too_wide(text: str, width: int) -> list[str]:
    """Return the lines that do not fit though they could have been broken."""
    return [x for x in text.splitlines() if len(x) > width and " " in x.strip().rstrip(" \\")]


def words_of(text: str) -> list[str]:
    """Return the words that a shell makes of it."""
    return shlex.split(text.replace("\\\n", ""))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_faults_stand_below_the_table_with_what_mends_them(width: int) -> None:
    """Each once, with all topics that have it; one command for all settings of a topic."""
    short = {"retention.ms": "3600000"}
    found = checked(log={**short, "max.message.bytes": "9"}, run=short)
    text = check_text(found, KAFKA, width=width)

    assert not too_wide(text, width)
    assert text.count("retention.ms is 3600000 (1 h)") == 1
    assert text.count("replication is 1") == 1
    assert "missing" in text
    assert "mlops-pipeline topics create" in text
    commands = words_of(text[text.index("To mend") : text.index("To follow")])
    assert "retention.ms=86400000,max.message.bytes=2097152" in commands
    assert commands.count("kafka-configs.sh") == 2
    assert text.endswith("4 faults, 7 to think about")


def test_nothing_wrong_is_said_in_one_line() -> None:
    """Below the table."""
    found = TopicsChecked(topics=[], faults=[], unread=["p.log.v1"])
    text = check_text(found, KAFKA, width=80)

    assert "does not tell settings" in text
    assert text.endswith("all as it must be")


@pytest.mark.parametrize("width", [40, 80])
def test_commands_that_create_topics_can_be_copied(width: int) -> None:
    """A shell takes the lines of each as one command."""
    text = creation_text(SPECS, KAFKA, width=width)
    words = words_of(text)

    assert not too_wide(text, width)
    assert words.count("--create") == len(SPECS)
    assert "cleanup.policy=compact,delete" in words
    assert words[words.index("p.log.v1") + 1 :][:4] == [
        "--partitions",
        "4",
        "--replication-factor",
        "1",
    ]


def test_a_command_keeps_its_words() -> None:
    """Quotes included, at any width."""
    command = "kafka-configs.sh --alter --add-config 'a=[b,c],d=1' --entity-name x"

    for width in (10, 30, 300):
        assert words_of("\n".join(shell_lines(command, width=width))) == shlex.split(command)


@pytest.mark.parametrize("width", [40, 80])
def test_topics_are_listed_with_what_they_hold(width: int) -> None:
    """How much, since when, and how long."""
    sizes = [
        TopicSize(
            name="p.observation.v1",
            partitions=12,
            replication=3,
            config={"retention.ms": "604800000"},
            records=1_234_567,
            oldest_ms=10_000,
        ),
        TopicSize(
            name="p.log.v1", partitions=12, replication=3, config={}, records=0, oldest_ms=None
        ),
    ]
    text = list_text(sizes, now_ms=7_210_500, width=width)

    assert not too_wide(text, width)
    for word in ("p.observation.v1", "1,234,567", "2 h", "7 d", "p.log.v1"):
        assert word in text
    assert list_text([], now_ms=0, width=width) == "no topics"


def test_numbers_stand_to_the_right() -> None:
    """Text to the left."""
    lines = table(("NAME", "COUNT"), [("a", "1"), ("bb", "1,000")], width=80)

    assert lines == ["NAME  COUNT", "a         1", "bb    1,000"]


def test_a_table_that_does_not_fit_becomes_blocks() -> None:
    """What is empty is left out."""
    lines = table(("NAME", "COUNT", "X"), [("a", "1", ""), ("bb", "2", "y")], width=9)

    assert lines == ["a", "  count  1", "bb", "  count  2", "  x      y"]
