"""Questions to W&B's backend: which runs there are, and up to where their rows arrived."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import requests

from mlops_events.schemas.settings import variable
from mlops_events.sinks.base import SinkBroken, SinkUnavailable
from mlops_events.sinks.http import ask, retry_after, said
from mlops_events.sinks.wandb_names import RunName
from mlops_events.sinks.wandb_settings import WandbSettings
from mlops_events.sinks.wandb_store import Count, Found

__all__ = ["WandbApi"]

_AT_ONCE: Final = 50
"""Runs that one request asks for."""
_PAGE: Final = 5_000

_VIEWER: Final = "query SinkViewer { viewer { entity } }"
# The question that wandb itself asks when it resumes a run, so that both have the same answer.
_LOOK: Final = """query SinkLook($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { historyLineCount historyTail config }
  }
}"""
_ROWS: Final = """query SinkRows($project: String!, $entity: String!, $name: String!, $from: Int64!,
    $to: Int64!, $count: Int!) {
  project(name: $project, entityName: $entity) {
    run(name: $name) { history(minStep: $from, maxStep: $to, samples: $count) }
  }
}"""


class WandbApi:
    """W&B's GraphQL, as far as the sink needs it.

    Args:
        settings: where it is and the key.
    """

    def __init__(self, settings: WandbSettings) -> None:
        self._url = settings.base_url.rstrip("/") + "/graphql"
        self._timeout_s = settings.timeout_s
        self._settings = settings
        self._entity = settings.entity
        self._session = requests.Session()
        if settings.api_key:
            self._session.auth = ("api", settings.api_key.reveal())

    @property
    def entity(self) -> str:
        """Whose runs they are."""
        return self._entity

    def check(self) -> None:
        """Ask whether the key is good, and whose it is."""
        viewer = self._ask(_VIEWER, {}).get("viewer")
        if not viewer:
            raise SinkBroken(f"{self._url} does not know this key; {_KEY_HINT}")
        self._entity = self._entity or viewer.get("entity") or ""
        if not self._entity:
            raise SinkBroken(
                f"the key has no default entity; set {variable('wandb', 'entity')}=TEAM"
            )

    def look(self, name: RunName, *, ids: bool) -> Found | None:
        """Return a run, None if there is none."""
        where = {"project": name.project, "entity": self._entity, "name": name.id}
        bucket = ((self._ask(_LOOK, where).get("model")) or {}).get("bucket")
        if bucket is None:
            return None
        lines = int(bucket.get("historyLineCount") or 0)
        tail = _last(bucket.get("historyTail"))
        if lines and "_step" not in tail:
            raise SinkUnavailable(f"run {name.id} has {lines} rows, but its last one is not shown")
        next_step = int(tail["_step"]) + 1 if lines else 0
        return Found(
            lines=lines,
            next_step=next_step,
            tail=tail,
            config=_config(bucket.get("config")),
            ids=frozenset(self._ids(where, next_step)) if ids else frozenset(),
        )

    def counts(
        self, names: Sequence[RunName], *, with_config: Collection[str]
    ) -> Mapping[str, Count | None]:
        """Return by id what is kept of runs, None for those that are not there."""
        found: dict[str, Count | None] = {}
        by_project: dict[str, list[RunName]] = {}
        for name in names:
            by_project.setdefault(name.project, []).append(name)
        for project, some in by_project.items():
            for at in range(0, len(some), _AT_ONCE):
                found |= self._counts(project, some[at : at + _AT_ONCE], with_config)
        return found

    def close(self) -> None:
        """Let go of connections."""
        self._session.close()

    def _counts(
        self, project: str, names: Sequence[RunName], with_config: Collection[str]
    ) -> dict[str, Count | None]:
        buckets, declared = [], ["$project: String", "$entity: String"]
        values = {"project": project, "entity": self._entity}
        for k, name in enumerate(names):
            config = " config" if name.id in with_config else ""
            buckets.append(
                f"r{k}: bucket(name: $n{k}, missingOk: true) {{ historyLineCount{config} }}"
            )
            declared.append(f"$n{k}: String!")
            values[f"n{k}"] = name.id
        query = (
            f"query SinkCounts({', '.join(declared)}) {{ "
            f"model(name: $project, entityName: $entity) {{ {' '.join(buckets)} }} }}"
        )
        model = self._ask(query, values).get("model") or {}
        return {name.id: _count(model.get(f"r{k}")) for k, name in enumerate(names)}

    def _ids(self, where: dict[str, Any], next_step: int) -> Iterator[str]:
        for start in range(0, next_step, _PAGE):
            stretch = {"from": start, "to": start + _PAGE, "count": _PAGE}
            project = self._ask(_ROWS, {**where, **stretch}).get("project") or {}
            for line in (project.get("run") or {}).get("history") or ():
                row = json.loads(line)
                if "sink/id" in row:
                    yield row["sink/id"]

    def _ask(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        body = msgspec.json.encode({"query": query, "variables": variables})
        response = ask(
            self._session,
            "POST",
            self._url,
            body=body,
            headers={"Content-Type": "application/json"},
            timeout_s=self._timeout_s,
        )
        if response.status_code in (401, 403):
            raise SinkBroken(f"{self._url} {said(response)}; {_KEY_HINT}")
        if response.status_code != 200:
            raise SinkUnavailable(
                f"{self._url} {said(response)}", retry_after=retry_after(response)
            )
        try:
            answer = response.json()
        except requests.JSONDecodeError as error:
            raise SinkUnavailable(f"{self._url} answered no JSON; is it W&B's?") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise SinkUnavailable(f"{self._url} {said(response)}")
        return data


_KEY_HINT = f"set {variable('wandb', 'api_key')} (or WANDB_API_KEY) to a key of this server"


def _count(bucket: dict[str, Any] | None) -> Count | None:
    if bucket is None:
        return None
    return Count(
        lines=int(bucket.get("historyLineCount") or 0), config=_config(bucket.get("config"))
    )


def _last(tail: str | None) -> dict[str, Any]:
    """The last row of a history's tail; its step as a number even if it came as a float."""
    lines = json.loads(tail or "[]")
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    step = row.get("_step")
    if isinstance(step, float) and math.isfinite(step):
        row["_step"] = int(step)
    return row


def _config(text: str | None) -> dict[str, Any]:
    found = json.loads(text or "{}")
    return {
        key: entry["value"]
        for key, entry in found.items()
        if isinstance(entry, dict) and "value" in entry and key != "_wandb"
    }
