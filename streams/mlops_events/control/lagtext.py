"""Shows to people how far behind groups are."""

from mlops_events.control.deadletters_content import wrapped
from mlops_events.control.lag import GroupLag, LagReport, TopicCounts
from mlops_events.control.tables import count_text, table

__all__ = ["lag_text", "loss_text"]

_COUNTS = {
    "lost_by_retention": "LOST",
    "late": "LATE",
    "too_old": "TOO OLD",
    "ahead": "AHEAD",
    "gaps_closed": "GAPS",
    "undecodable": "UNDECODABLE",
    "missing": "HOLES",
}


def lag_text(report: LagReport, *, prefix: str, width: int) -> str:
    """Return a table of the groups, and one of what the stream counted in the raw topics.

    Names stand without the prefix that all have.
    """
    if not report.groups:
        return "no topics"
    lines = table(
        ("TOPIC", "GROUP", "MEMBERS", "RECORDS", "BEHIND", "EXPIRED"),
        [_group_row(group, prefix) for group in report.groups],
        width=width,
    )
    if report.topics:
        lines += ["", *wrapped("What the stream has counted, by its checkpoints:", width)]
        lines += table(
            ("TOPIC", *_COUNTS.values()),
            [_counts_row(t, prefix) for t in report.topics],
            width=width,
        )
    else:
        lines += ["", *wrapped("There are no checkpoints of the stream yet.", width)]
    return "\n".join(lines)


def loss_text(report: LagReport) -> str:
    """Return the line that says what retention took; "" if nothing."""
    if not report.lost:
        return ""
    where = [t.topic for t in report.topics if t.lost_by_retention]
    where += [f"{g.topic} ({g.group})" for g in report.groups if g.expired]
    return (
        f"{count_text(report.lost)} records were deleted by retention before they were handled: "
        f"{', '.join(where)}"
    )


def _group_row(group: GroupLag, prefix: str) -> tuple[str, ...]:
    never = all(part.committed is None for part in group.partitions)
    members = str(len(group.members)) if group.state else "?"
    return (
        group.topic.removeprefix(f"{prefix}."),
        group.group.removeprefix(f"{prefix}."),
        members,
        count_text(group.records),
        "never" if never and group.records else _ago(group.behind_s),
        count_text(group.expired) if group.expired else "",
    )


def _counts_row(topic: TopicCounts, prefix: str) -> tuple[str, ...]:
    counts = (getattr(topic, name) for name in _COUNTS)
    return (topic.topic.removeprefix(f"{prefix}."), *(count_text(count) for count in counts))


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
