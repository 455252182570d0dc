"""The faults of all topics below a prefix, and how to mend each."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicrules import Role, TopicState, find_misfits
from mlops_events.schemas.topics import Topics

__all__ = [
    "TopicFault",
    "find_faults",
    "reached_with",
    "refusal",
    "set_command",
    "sinks_of",
    "topic_states",
]

_CREATE: Final = "mlops-pipeline topics create"


class TopicFault(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one topic that is not what it must be.

    `serious` means that a guarantee does not hold: services do not start. Anything else is
    advice. `value` is what to set the setting to, "" where that is not how to mend it; `mend` is
    the whole command, or what else to do.
    """

    topic: str
    setting: str
    found: str
    needed: str
    breaks: str
    mend: str
    serious: bool = True
    value: str = ""


def find_faults(
    kafka: KafkaSettings,
    found: Mapping[str, TopicState],
    *,
    names: Collection[str],
    checkpointed: Mapping[str, int] | None = None,
) -> list[TopicFault]:
    """Return what is wrong with topics, those that are missing first.

    Settings that are not known, as on the embedded broker, are taken to be right.

    Args:
        kafka: where the topics are.
        found: the topics that are there, by name; others than `names` are only compared with.
        names: the topics that must be there.
        checkpointed: how many partitions the newest checkpoints say that raw topics have; None if
            they were not read.
    """
    topics, servers = kafka.topics, reached_with(kafka)
    faults = [
        TopicFault(
            topic=name,
            setting="topic",
            found="missing",
            needed="created",
            breaks="a service that needs it cannot start",
            mend=_CREATE,
        )
        for name in names
        if name not in found
    ]
    there = [name for name in names if name in found]
    faults += _partition_faults(topics, found, there, checkpointed, servers)
    raw_ms = _longest([found[name] for name in topics.raws if name in found])
    for name in there:
        role = _role(topics, name)
        faults += [
            TopicFault(
                topic=name,
                setting=misfit.setting,
                found=misfit.found,
                needed=misfit.needed,
                breaks=misfit.breaks,
                serious=misfit.serious,
                value=misfit.value,
                mend=set_command(name, {misfit.setting: misfit.value}, servers=servers)
                if misfit.value
                else "add copies with kafka-reassign-partitions.sh",
            )
            for misfit in find_misfits(role, found[name], raw_ms=raw_ms)
        ]
    return faults


def refusal(faults: Iterable[TopicFault]) -> str | None:
    """Return why a service does not start, with how to mend it; None if nothing serious is wrong."""
    serious = [fault for fault in faults if fault.serious]
    if not serious:
        return None
    lines = ["topics are not what the guarantees rest on:"]
    for fault in serious:
        if fault.setting == "topic":
            lines.append(f"no topic {fault.topic}; create it with: {fault.mend}")
            continue
        lines += [
            f"{fault.topic}: {fault.setting} is {fault.found}, needed: {fault.needed}; "
            f"otherwise {fault.breaks}",
            f"    {fault.mend}",
        ]
    return "\n".join([*lines, "all of it, and what is only advised: mlops-pipeline topics check"])


def set_command(topic: str, settings: Mapping[str, str], *, servers: str) -> str:
    """Return the command that changes these settings of a topic and leaves the others alone."""
    pairs = [f"{name}=[{v}]" if "," in v else f"{name}={v}" for name, v in settings.items()]
    added = ",".join(pairs)
    quoted = f"'{added}'" if "[" in added else added
    return (
        f"kafka-configs.sh {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {quoted}"
    )


def reached_with(kafka: KafkaSettings) -> str:
    """Return the options that Kafka's own tools reach the brokers with."""
    options = f"--bootstrap-server {kafka.brokers or 'BROKERS'}"
    if kafka.security_protocol != "PLAINTEXT":
        options += " --command-config client.properties"
    return options


def sinks_of(topics: Topics, names: Iterable[str]) -> list[str]:
    """Return the sinks that these topics belong to."""
    head, tail = topics.sink("\0").split("\0")
    return sorted(
        name[len(head) : -len(tail)]
        for name in names
        if name.startswith(head) and name.endswith(tail) and len(name) > len(head) + len(tail)
    )


def topic_states(described: Iterable[Any], configs: Iterable[Any]) -> dict[str, TopicState]:
    """Return topics as aiokafka's admin client describes them.

    Args:
        described: what its `describe_topics` says of topics that are there.
        configs: what its `describe_configs` answers; settings that it must not tell are left out.
    """
    settings = {
        resource[3]: {entry[0]: entry[1] for entry in resource[4] if entry[1] is not None}
        for answer in configs
        for resource in answer.resources
    }
    return {
        topic["topic"]: TopicState(
            name=topic["topic"],
            partitions=len(topic["partitions"]),
            replication=min((len(p["replicas"]) for p in topic["partitions"]), default=0),
            config=settings.get(topic["topic"], {}),
        )
        for topic in described
    }


def _role(topics: Topics, name: str) -> Role:
    if name in topics.raws:
        return "raw"
    special: dict[str, Role] = {
        topics.stats: "stats",
        topics.dead_letters: "dead-letters",
        topics.checkpoints: "checkpoints",
    }
    return special.get(name, "sink")


def _partition_faults(
    topics: Topics,
    found: Mapping[str, TopicState],
    names: Sequence[str],
    checkpointed: Mapping[str, int] | None,
    servers: str,
) -> Iterator[TopicFault]:
    kept = {name: count for name, count in (checkpointed or {}).items() if name in found}
    changed = {name for name, count in kept.items() if count != found[name].partitions}
    for name in sorted(changed.intersection(names)):
        yield _misplaced(topics, found[name], f"{kept[name]}, as its checkpoints say")
    places = found.get(topics.checkpoints)
    raws = [found[name] for name in topics.raws if name in found and name not in changed]
    counts = {raw.partitions for raw in raws}
    if places is None or counts <= {places.partitions}:
        return
    if checkpointed == {} and len(counts) == 1 and min(counts) > places.partitions:
        # no state is kept yet, and its places are chosen by number, so more of them do no harm
        yield TopicFault(
            topic=places.name,
            setting="partitions",
            found=str(places.partitions),
            needed=f"{min(counts)}, as the raw topics have",
            breaks="there is no place for the state of some partitions",
            mend=f"kafka-topics.sh {servers} --alter --topic {places.name} "
            f"--partitions {min(counts)}",
        )
        return
    for raw in raws:
        if raw.partitions != places.partitions and raw.name in names:
            yield _misplaced(topics, raw, f"{places.partitions}, as {places.name} has")


def _misplaced(topics: Topics, raw: TopicState, needed: str) -> TopicFault:
    return TopicFault(
        topic=raw.name,
        setting="partitions",
        found=str(raw.partitions),
        needed=needed,
        breaks="keys are in other partitions than the state that is kept of them",
        mend="a live topic keeps its number; give emitters, streams and sinks new topics: "
        f"MLOPS_EVENTS_KAFKA_PREFIX={topics.prefix}.2, then {_CREATE}",
    )


def _longest(raws: Sequence[TopicState]) -> int:
    """Return how long raw topics keep records: the longest of them, in milliseconds, -1 for ever."""
    kept = [int(raw.config["retention.ms"]) for raw in raws if "retention.ms" in raw.config]
    return -1 if any(ms < 0 for ms in kept) else max(kept, default=0)
