"""Settings of the wandb sink."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from mlops_events.schemas.secret import Secret

__all__ = ["WandbSettings"]

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class WandbSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs go and what they look like; read with the prefix "wandb".

    `project` is for runs whose origin names none, `entity` the account's default if empty. In the
    mode `offline` nothing is sent: runs lie in `folder`, for `wandb sync`. `version_prefix` says
    under which names a metric is written: `none` as it is called, `latest` as `latest/...`, `both`
    as `v{version}/...` too.

    A run keeps its id. With `id_folder` ids are read from files and kept in them, as
    `wandb_run_id_{prefix}{uid}.txt`; in `id_prefix` `{run}`, `{role}` and `{initial}`, the role's
    first letter as a capital, are filled in.

    `max_open` runs are open at a time, fewer if the system allows fewer open files. Rows are sent
    every `transmit_s` seconds; a batch that is not confirmed within `confirm_s` is tried again, and
    after `stuck_s` without progress the process ends and begins anew. `timeout_s` is for one answer,
    `finish_s` for the end of a run.
    """

    also_read: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "project": ("WANDB_PROJECT",),
        "entity": ("WANDB_ENTITY",),
        "api_key": ("WANDB_API_KEY",),
        "base_url": ("WANDB_BASE_URL",),
        "mode": ("WANDB_MODE",),
        "folder": ("WANDB_DIR",),
    }

    project: str = "mlops-events"
    entity: str = ""
    api_key: Secret = Secret()
    base_url: str = "https://api.wandb.ai"
    mode: Literal["online", "offline"] = "online"
    folder: Path = Path("mlops-events-wandb")
    version_prefix: Literal["both", "latest", "none"] = "none"
    id_folder: str = ""
    id_prefix: str = "{run}_{role}_"
    max_open: Annotated[int, msgspec.Meta(ge=1)] = 400
    transmit_s: Annotated[int, msgspec.Meta(ge=1)] = 2
    confirm_s: Seconds = 45.0
    stuck_s: Seconds = 180.0
    timeout_s: Seconds = 30.0
    finish_s: Seconds = 15.0
