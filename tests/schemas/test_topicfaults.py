"""What is wrong with topics, and how to mend it."""

import msgspec
import pytest

from mlops_events.schemas.settings import KafkaSettings, Secret
from mlops_events.schemas.topicfaults import (
    TopicFault,
    find_faults,
    refusal,
    set_command,
    sinks_of,
)
from mlops_events.schemas.topicrules import TopicState, kept_for
from mlops_events.schemas.topics import Topics, topic_specs

KAFKA = KafkaSettings(brokers="b:9092", prefix="p")
DAY_MS = 86_400_000


def made(*, replication: int = 3) -> dict[str, TopicState]:
    """Return the topics as they are created."""
    specs = topic_specs(Topics("p"), sinks=["loki"], partitions=4, replication=replication)
    return {
        s.name: TopicState(name=s.name, partitions=4, replication=replication, config=s.config)
        for s in specs
    }


def changed(
    name: str, config: dict[str, str] | None = None, *, partitions: int = 4
) -> dict[str, TopicState]:
    """Return the topics with one of them changed; underscores are dots."""
    states = made()
    names = {key.replace("_", "."): value for key, value in (config or {}).items()}
    states[name] = msgspec.structs.replace(
        states[name], partitions=partitions, config={**states[name].config, **names}
    )
    return states


def faults_of(states: dict[str, TopicState], **options: dict[str, int]) -> list[TopicFault]:
    """Return the faults, all topics being needed."""
    return find_faults(KAFKA, states, names=list(made()), **options)


def test_topics_as_they_are_created_have_no_faults() -> None:
    """Neither by themselves nor compared with their checkpoints."""
    kept = dict.fromkeys(Topics("p").raws, 4)

    assert faults_of(made()) == []
    assert faults_of(made(), checkpointed=kept) == []


@pytest.mark.parametrize(
    ("name", "config", "needed", "value"),
    [
        ("p.log.v1", {"retention_ms": "86399999"}, "86400000 (1 d) or more", "86400000"),
        ("p.log.v1", {"retention_bytes": "1000"}, "-1 (no limit)", "-1"),
        ("p.log.v1", {"cleanup_policy": "compact"}, "delete", "delete"),
        ("p.log.v1", {"cleanup_policy": "compact,delete"}, "delete", "delete"),
        ("p.log.v1", {"message_timestamp_type": "CreateTime"}, "LogAppendTime", "LogAppendTime"),
        ("p.log.v1", {"max_message_bytes": "1048588"}, "2097152 (2 MiB) or more", "2097152"),
        ("p.log.v1", {"min_insync_replicas": "4"}, "3 or less, as there are 3 copies", "2"),
        ("p.log.v1", {"unclean_leader_election_enable": "true"}, "false", "false"),
        ("p.stats.v1", {"retention_ms": "1000"}, "86400000 (1 d) or more", "86400000"),
        ("p.sink.loki.v1", {"retention_ms": "1000"}, "86400000 (1 d) or more", "86400000"),
        ("p.sink.loki.v1", {"max_message_bytes": "9"}, "2097152 (2 MiB) or more", "2097152"),
        ("p.dead-letters.v1", {"max_message_bytes": "9"}, "1048576 (1 MiB) or more", "2097152"),
        (
            "p.checkpoints.v1",
            {"retention_ms": str(7 * DAY_MS)},
            "691200000 (8 d) or more, a day more than the raw topics",
            "691200000",
        ),
        ("p.checkpoints.v1", {"retention_bytes": "1000"}, "-1 (no limit)", "-1"),
    ],
)
def test_settings_that_break_a_guarantee(
    name: str, config: dict[str, str], needed: str, value: str
) -> None:
    """Each is named with what was found, what is needed, what breaks, and the command."""
    (fault,) = faults_of(changed(name, config))
    ((setting, found),) = config.items()
    setting = setting.replace("_", ".")

    assert fault.serious
    assert fault.breaks
    assert (fault.topic, fault.setting, fault.needed) == (name, setting, needed)
    assert fault.found.split(" ")[0] == found
    assert fault.mend == (
        "kafka-configs.sh --bootstrap-server b:9092 --alter --entity-type topics "
        f"--entity-name {name} --add-config {setting}={value}"
    )


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("p.log.v1", {"segment_ms": str(7 * DAY_MS)}),
        ("p.log.v1", {"min_insync_replicas": "1"}),
        ("p.log.v1", {"min_insync_replicas": "3"}),
        ("p.dead-letters.v1", {"cleanup_policy": "delete"}),
        ("p.dead-letters.v1", {"retention_ms": "1000"}),
        ("p.dead-letters.v1", {"retention_bytes": "1000"}),
        ("p.dead-letters.v1", {"message_timestamp_type": "CreateTime"}),
    ],
)
def test_settings_that_are_only_advised(name: str, config: dict[str, str]) -> None:
    """Services start all the same."""
    found = faults_of(changed(name, config))

    assert [(fault.topic, fault.serious) for fault in found] == [(name, False)]
    assert refusal(found) is None


def test_a_topic_that_is_kept_for_ever_is_long_enough() -> None:
    """And then its checkpoints must be, too."""
    states = changed("p.log.v1", {"retention_ms": "-1"})
    (fault,) = faults_of(states)
    states["p.checkpoints.v1"].config["retention.ms"] = "-1"

    assert (fault.topic, fault.needed) == ("p.checkpoints.v1", "-1 (for ever), as the raw topics")
    assert fault.value == "-1"
    assert faults_of(states) == []


def test_one_copy_is_advised_against() -> None:
    """Of each topic; that is how it is on one machine."""
    found = faults_of(made(replication=1))

    assert {fault.setting for fault in found} == {"replication"}
    assert len(found) == 8
    assert refusal(found) is None


def test_missing_topics_come_first() -> None:
    """With how to create them."""
    states = changed("p.run.v1", {"retention_ms": "1000"})
    del states["p.log.v1"], states["p.checkpoints.v1"]
    found = faults_of(states)

    assert [fault.topic for fault in found] == ["p.log.v1", "p.checkpoints.v1", "p.run.v1"]
    assert "no topic p.log.v1; create it with: mlops-pipeline topics create" in str(refusal(found))


def test_settings_that_are_not_told_are_taken_to_be_right() -> None:
    """The embedded broker tells none."""
    states = {name: TopicState(name=name, partitions=4) for name in made()}

    assert faults_of(states) == []


def test_partitions_that_were_added_under_checkpoints() -> None:
    """Only topics with another prefix mend it."""
    states = changed("p.log.v1", partitions=6)
    (fault,) = faults_of(states, checkpointed={"p.log.v1": 4, "p.run.v1": 4})
    (unread,) = faults_of(states)

    assert (fault.topic, fault.found) == ("p.log.v1", "6")
    assert fault.needed == "4, as its checkpoints say"
    assert "MLOPS_EVENTS_KAFKA_PREFIX=p.2" in fault.mend
    assert unread.needed == "4, as p.checkpoints.v1 has"


def test_partitions_that_were_added_everywhere_are_told_by_the_checkpoints() -> None:
    """All topics agree, yet keys have moved."""
    states = {name: msgspec.structs.replace(state, partitions=6) for name, state in made().items()}
    found = faults_of(states, checkpointed={"p.log.v1": 4})

    assert [(fault.topic, fault.found) for fault in found] == [("p.log.v1", "6")]


def test_too_few_places_for_checkpoints_are_mended_where_there_are_none_yet() -> None:
    """They are chosen by number, so adding some does no harm."""
    states = changed("p.checkpoints.v1", partitions=2)
    (fault,) = faults_of(states, checkpointed={})
    unread = faults_of(states)

    assert (fault.topic, fault.found, fault.needed) == (
        "p.checkpoints.v1",
        "2",
        "4, as the raw topics have",
    )
    assert fault.mend == (
        "kafka-topics.sh --bootstrap-server b:9092 --alter --topic p.checkpoints.v1 --partitions 4"
    )
    assert [fault.topic for fault in unread] == Topics("p").raws


def test_a_refusal_lists_every_fault_with_its_command() -> None:
    """Nothing that is only advised."""
    states = changed("p.log.v1", {"retention_ms": "1000", "segment_ms": str(7 * DAY_MS)})
    states |= {"p.run.v1": changed("p.run.v1", {"max_message_bytes": "5"})["p.run.v1"]}
    text = str(refusal(faults_of(states)))

    assert "p.log.v1: retention.ms is 1000 (1 s), needed: 86400000 (1 d) or more" in text
    assert "--entity-name p.log.v1 --add-config retention.ms=86400000" in text
    assert "p.run.v1: max.message.bytes is 5" in text
    assert "segment.ms" not in text


def test_commands_quote_lists_and_name_a_file_with_credentials() -> None:
    """As Kafka's own tools want them."""
    secure = KafkaSettings(
        brokers="b:9092",
        prefix="p",
        security_protocol="SASL_SSL",
        sasl_username="u",
        sasl_password=Secret("geheim"),
    )
    states = changed("p.log.v1", {"retention_ms": "1000"})
    (fault,) = find_faults(secure, states, names=["p.log.v1"])

    assert "--bootstrap-server b:9092 --command-config client.properties --alter" in fault.mend
    assert "geheim" not in fault.mend
    assert set_command("t", {"cleanup.policy": "compact,delete", "a": "1"}, servers="S") == (
        "kafka-configs.sh S --alter --entity-type topics --entity-name t "
        "--add-config 'cleanup.policy=[compact,delete],a=1'"
    )


def test_sinks_are_known_by_their_topics() -> None:
    """Those below the prefix."""
    names = ["p.sink.loki.v1", "p.sink.a.b.v1", "p.log.v1", "q.sink.loki.v1", "p.sink.v1"]

    assert sinks_of(Topics("p"), names) == ["a.b", "loki"]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-1, "for ever"),
        (0, "0 s"),
        (90_000, "90 s"),
        (43_200_000, "12 h"),
        (DAY_MS, "1 d"),
        (36 * 3_600_000, "36 h"),
        (7 * DAY_MS, "7 d"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    """As people say them."""
    assert kept_for(ms) == text
