"""What the guarantees need of the settings of a topic."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from mlops_events.schemas.topics import DAY_MS, MAX_RECORD_BYTES

__all__ = ["Misfit", "Role", "TopicState", "find_misfits", "kept_for"]

Role: TypeAlias = Literal["raw", "stats", "sink", "dead-letters", "checkpoints"]

_LETTER_BYTES: Final = 1 << 20
_NEVER_DELETED: Final = -1


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is; what the broker does not tell of its settings is missing.

    `replication` is that of the partition with the fewest replicas, 0 if it is not known.
    """

    name: str
    partitions: int
    replication: int = 0
    config: dict[str, str] = {}
    created: bool = False


class Misfit(NamedTuple):
    """A setting that does not fit, before it is known how to say so."""

    setting: str
    found: str
    needed: str
    breaks: str
    value: str
    serious: bool = True


def find_misfits(role: Role, state: TopicState, *, raw_ms: int) -> Iterator[Misfit]:
    """Yield what is not as it must be; nothing if the settings are not known.

    Args:
        role: what the topic is for.
        state: as it is.
        raw_ms: how long the raw topics keep records, -1 for ever.
    """
    config = state.config
    if not config:
        return
    yield from _cleanup(role, config)
    yield from _retention(role, config, raw_ms=raw_ms)
    yield from _records(role, config)
    yield from _copies(state)


def kept_for(ms: int) -> str:
    """Return a duration as people say it, such as "7 d" or "1.5 h"; "for ever" if it is -1."""
    if ms < 0:
        return "for ever"
    for size, unit in ((DAY_MS, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size or ms == size:
            return f"{ms / size:.4g} {unit}"
    return f"{ms / 1000:g} s"


def _cleanup(role: Role, config: Mapping[str, str]) -> Iterator[Misfit]:
    policy = config.get("cleanup.policy")
    if policy is None:
        return
    if role == "dead-letters":
        if "compact" not in policy:
            yield Misfit(
                "cleanup.policy",
                policy,
                "compact,delete",
                "letters that were sent again stay on the disk",
                "compact,delete",
                serious=False,
            )
    elif "compact" in policy:
        yield Misfit(
            "cleanup.policy",
            policy,
            "delete",
            "records are lost as soon as a later one has the same key",
            "delete",
        )


_LOST: Final[Mapping[Role, str]] = {
    "raw": "what came while the stream was away for a day is lost",
    "sink": "what came while the sink was away for a day is lost",
    "stats": "a fleet service that was away for a day misses Stats",
    "dead-letters": "letters are gone before anybody has looked",
    "checkpoints": "a stream that was away for so long starts without its state, and windows get "
    "a second content",
}


def _retention(role: Role, config: Mapping[str, str], *, raw_ms: int) -> Iterator[Misfit]:
    serious = role != "dead-letters"
    needed_ms, why = DAY_MS, ""
    if role == "checkpoints":
        needed_ms = _NEVER_DELETED if raw_ms < 0 else raw_ms + DAY_MS
        why = ", a day more than the raw topics"
    kept = config.get("retention.ms")
    if kept is not None and _is_shorter(int(kept), needed_ms):
        text = f"{needed_ms} ({kept_for(needed_ms)}) or more{why}"
        if needed_ms < 0:
            text = "-1 (for ever), as the raw topics"
        yield Misfit(
            "retention.ms",
            f"{kept} ({kept_for(int(kept))})",
            text,
            _LOST[role],
            str(needed_ms),
            serious,
        )
    size = int(config.get("retention.bytes", _NEVER_DELETED))
    if size >= 0:
        yield Misfit(
            "retention.bytes",
            str(size),
            "-1 (no limit)",
            "a burst of records deletes others before their time",
            "-1",
            serious,
        )
    segment = int(config.get("segment.ms", DAY_MS))
    if segment > DAY_MS and serious:
        yield Misfit(
            "segment.ms",
            f"{segment} ({kept_for(segment)})",
            f"{DAY_MS} (1 d) or less",
            f"the disk may hold {kept_for(segment)} more than the retention says",
            str(DAY_MS),
            serious=False,
        )


def _is_shorter(kept_ms: int, needed_ms: int) -> bool:
    return kept_ms >= 0 and (needed_ms < 0 or kept_ms < needed_ms)


def _records(role: Role, config: Mapping[str, str]) -> Iterator[Misfit]:
    times = config.get("message.timestamp.type", "LogAppendTime")
    if times != "LogAppendTime":
        yield Misfit(
            "message.timestamp.type",
            times,
            "LogAppendTime",
            "silence and age are judged by the clocks of nodes, of which one may be wrong",
            "LogAppendTime",
            serious=role != "dead-letters",
        )
    least = _LETTER_BYTES if role == "dead-letters" else MAX_RECORD_BYTES
    size = int(config.get("max.message.bytes", least))
    if size < least:
        yield Misfit(
            "max.message.bytes",
            str(size),
            f"{least} ({least >> 20} MiB) or more",
            "a large record is refused for ever, and what comes behind it waits",
            str(MAX_RECORD_BYTES),
        )


def _copies(state: TopicState) -> Iterator[Misfit]:
    if not state.replication:
        return
    copies = state.replication
    insync = int(state.config.get("min.insync.replicas", 1))
    if insync > copies:
        yield Misfit(
            "min.insync.replicas",
            str(insync),
            f"{copies} or less, as there are {copies} copies",
            "nothing can be written",
            str(max(1, copies - 1)),
        )
    elif copies > 1 and insync < 2:
        yield Misfit(
            "min.insync.replicas",
            str(insync),
            "2",
            "what was acknowledged may be lost with one broker",
            "2",
            serious=False,
        )
    elif insync == copies > 1:
        yield Misfit(
            "min.insync.replicas",
            str(insync),
            str(copies - 1),
            "nothing can be written while one broker is away",
            str(copies - 1),
            serious=False,
        )
    if copies > 1 and state.config.get("unclean.leader.election.enable") == "true":
        yield Misfit(
            "unclean.leader.election.enable",
            "true",
            "false",
            "what was acknowledged may be lost when a broker fails",
            "false",
        )
    if copies == 1:
        yield Misfit(
            "replication",
            "1",
            "3",
            "what was acknowledged is lost with the disk of one broker",
            "",
            serious=False,
        )
