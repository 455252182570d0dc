"""Settings of an emitter."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import msgspec

from mlops_events.schemas.settings import KafkaSettings, load, variable
from mlops_events.schemas.text import parse

if TYPE_CHECKING:
    from mlops_events.producers.scrub import Scrubber

__all__ = ["EmitterSettings"]


class EmitterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who emits, where to, and how much may wait; read with the prefix "".

    The first fields are the origin's, see `mlops_events.schemas.Origin`; arguments of `Emitter`
    win over them. `buffer_bytes` bounds the encoded events of each kind that wait in memory. A
    frame closes with `frame_events` events, with `frame_bytes` bytes, or when it is `linger_s` old,
    which grows to `max_linger_s` while there is little to send.

    With a folder `spool_dir`, which all processes of a machine may share, every frame is written
    there before it is first sent, and leaves when it is acknowledged: it survives the process. Each
    emitter keeps up to `spool_bytes`; beyond that the oldest frames are dropped, or with
    `spool_drops=newest` new ones wait in memory. `spool_sync` has each frame on the disk, so that it
    survives a power cut, too.

    Keys, tokens, passwords and paths to wallets are masked in tags, log lines and configurations
    unless `scrub` is false; `scrub_patterns` are more regular expressions, and
    `scrub_private_addresses` masks addresses of private networks.

    With `collect_system` and `collect_gpu` the machine and its GPUs are series of their own, a sample
    every `collect_s`.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rank": ("RANK",),
        "world_size": ("WORLD_SIZE",),
    }

    run_id: str = ""
    run_name: str = ""
    project: str = ""
    role: str = ""
    uid: int | str | None = None
    hotkey: str = ""
    rank: int | None = None
    world_size: int | None = None
    node: str = ""
    version: str = ""
    environment: str = ""
    group: str = ""
    job_type: str = ""
    netuid: int | None = None
    tags: dict[str, str] = {}

    disabled: bool = False
    kafka: KafkaSettings = KafkaSettings()
    buffer_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 32 << 20
    frame_events: Annotated[int, msgspec.Meta(ge=1, le=4095)] = 500
    frame_bytes: Annotated[int, msgspec.Meta(ge=1 << 10, le=768 << 10)] = 256 << 10
    linger_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    max_linger_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    spool_dir: str = ""
    spool_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30
    spool_drops: Literal["oldest", "newest"] = "oldest"
    spool_sync: bool = False
    scrub: bool = True
    scrub_patterns: tuple[str, ...] = ()
    scrub_private_addresses: bool = False
    collect_system: bool = False
    collect_gpu: bool = False
    collect_s: Annotated[float, msgspec.Meta(ge=1)] = 10.0

    def __post_init__(self) -> None:
        if self.scrub_patterns:
            self.scrubber()

    def scrubber(self) -> "Scrubber | None":
        """Return what masks secrets, None if nothing does.

        Raises:
            ValueError: a pattern is no regular expression.
        """
        if not self.scrub:
            return None
        from mlops_events.producers.scrub import Scrubber

        return Scrubber(self.scrub_patterns, private_addresses=self.scrub_private_addresses)

    @classmethod
    def from_environment(cls) -> Self:
        """Read `MLOPS_EVENTS_*`; a variable that nothing reads is worth a warning only.

        Raises:
            ConfigError: a setting is wrong. Not if `MLOPS_EVENTS_DISABLED` is set: then nothing
                else is looked at.
        """
        disabled = os.environ.get(variable("", "disabled"), "")
        try:
            if disabled and parse(disabled, bool):
                return cls(disabled=True)
        except ValueError:
            pass  # `load` says what is wrong with it
        return load(cls, "", unknown="warn")
