"""Shows to people what topics there are, what is wrong with them, and how to mend it."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mlops_events.control.deadletters_content import wrapped
from mlops_events.control.tables import count_text, table
from mlops_events.control.topicscheck import TopicsChecked
from mlops_events.control.topicsizes import TopicSize
from mlops_events.schemas.settings import KafkaSettings
from mlops_events.schemas.topicfaults import TopicFault, reached_with, set_command
from mlops_events.schemas.topicrules import kept_for
from mlops_events.schemas.topics import TopicSpec

__all__ = ["check_text", "creation_text", "list_text", "shell_lines"]


def check_text(checked: TopicsChecked, kafka: KafkaSettings, *, width: int) -> str:
    """Return a table of the topics, then each fault with what it breaks, then what mends them."""
    serious = [fault for fault in checked.faults if fault.serious]
    advice = [fault for fault in checked.faults if not fault.serious]
    lines = table(
        ("TOPIC", "PARTS", "COPIES", "KEPT", "FAULTS"),
        [_row(name, checked) for name in _names(checked)],
        width=width,
    )
    if checked.unread:
        text = "the embedded broker does not tell settings: only partitions were checked"
        lines += wrapped(text, width)
    for title, faults in (("FAULT", serious), ("advice", advice)):
        for fault, topics in _grouped(faults).items():
            lines += ["", *_fault_lines(title, fault, topics, width)]
    lines += _mending("To mend the faults:", serious, kafka, width)
    lines += _mending("To follow the advice:", advice, kafka, width)
    counts = f"{len(serious)} fault{'s' * (len(serious) != 1)}, {len(advice)} to think about"
    return "\n".join([*lines, "", counts if checked.faults else "all as it must be"])


def list_text(topics: Sequence[TopicSize], *, now_ms: int, width: int) -> str:
    """Return a table of topics and what they hold."""
    rows = [
        (
            topic.name,
            str(topic.partitions),
            count_text(topic.records),
            ""
            if topic.oldest_ms is None
            else kept_for(max(0, now_ms - topic.oldest_ms) // 1000 * 1000),
            _kept(topic.config),
        )
        for topic in topics
    ]
    head = ("TOPIC", "PARTS", "RECORDS", "OLDEST", "KEPT")
    return "\n".join(table(head, rows, width=width) if rows else ["no topics"])


def creation_text(specs: Sequence[TopicSpec], kafka: KafkaSettings, *, width: int) -> str:
    """Return the commands of Kafka's own tools that create topics."""
    lines: list[str] = []
    for spec in specs:
        config = " ".join(f"--config {name}={value}" for name, value in spec.config.items())
        lines += shell_lines(
            f"kafka-topics.sh {reached_with(kafka)} --create --topic {spec.name} "
            f"--partitions {spec.partitions} --replication-factor {spec.replication} {config}",
            width=width,
        )
    return "\n".join(lines)


def shell_lines(command: str, *, width: int, indent: int = 0) -> list[str]:
    """Break a command so that a shell takes the lines as one; words stay whole.

    An option and its value stand on one line where they fit.
    """
    parts: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        pair = f"{parts[-1]} {word}" if parts else word
        fits = indent + 4 + len(pair) + 2 <= width
        if parts and fits and parts[-1].startswith("--") and not word.startswith("--"):
            parts[-1] = pair
        else:
            parts.append(word)
    lines = [" " * indent + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) + 2 <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(" " * (indent + 4) + part)
    return lines


def _names(checked: TopicsChecked) -> list[str]:
    missing = [fault.topic for fault in checked.faults if fault.setting == "topic"]
    return [*missing, *(topic.name for topic in checked.topics)]


def _row(name: str, checked: TopicsChecked) -> tuple[str, ...]:
    state = next((topic for topic in checked.topics if topic.name == name), None)
    if state is None:
        return (name, "", "", "", "missing")
    serious = [fault.setting for fault in checked.faults if fault.topic == name and fault.serious]
    return (
        name,
        str(state.partitions),
        str(state.replication) if state.replication else "",
        _kept(state.config),
        str(len(serious)) if serious else "",
    )


def _grouped(faults: Sequence[TopicFault]) -> dict[TopicFault, list[str]]:
    """Return faults that are the same but for their topic, with the topics that have them."""
    groups: defaultdict[tuple[str, ...], list[TopicFault]] = defaultdict(list)
    for fault in faults:
        groups[fault.setting, fault.found, fault.needed, fault.breaks].append(fault)
    return {same[0]: [fault.topic for fault in same] for same in groups.values()}


def _fault_lines(title: str, fault: TopicFault, topics: Sequence[str], width: int) -> list[str]:
    if fault.setting == "topic":
        lines = wrapped(f"{title}  missing topics", width)
    else:
        lines = wrapped(f"{title}  {fault.setting} is {fault.found}", width)
        lines += wrapped(f"needed: {fault.needed}", width, indent=2)
    lines += wrapped(f"otherwise {fault.breaks}", width, indent=2)
    lines += [f"  {topic}" for topic in topics]
    return lines


def _mending(
    title: str, faults: Sequence[TopicFault], kafka: KafkaSettings, width: int
) -> list[str]:
    """Return one command for all settings of a topic, and the rest as it is."""
    settings: defaultdict[str, dict[str, str]] = defaultdict(dict)
    others: dict[str, None] = {}
    for fault in faults:
        if fault.value:
            settings[fault.topic][fault.setting] = fault.value
        else:
            others[fault.mend] = None
    if not faults:
        return []
    lines = ["", title]
    for mend in others:
        is_command = mend.startswith(("kafka-", "mlops-"))
        shown = shell_lines(mend, width=width, indent=2) if is_command else None
        lines += shown or wrapped(mend, width, indent=2)
    for topic, values in settings.items():
        command = set_command(topic, values, servers=reached_with(kafka))
        lines += shell_lines(command, width=width, indent=2)
    return lines


def _kept(config: Mapping[str, str]) -> str:
    """Return how long a topic keeps records; "" if that is not known."""
    kept = config.get("retention.ms")
    if kept is None:
        return ""
    return kept_for(int(kept)) if "delete" in config.get("cleanup.policy", "delete") else "for ever"
