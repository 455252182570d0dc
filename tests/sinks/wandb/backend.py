"""A stand-in for W&B's backend, as a program: what its client and its documentation say of it.

    python backend.py [PORT]        prints the port that it listens on, on 127.0.0.1

It keeps runs in memory and speaks as much of GraphQL and of the file stream as wandb needs to begin,
log, resume and finish a run. A line of history is stored under its number, the last writer wins, and
what that did is counted: lines `overwritten`, of them `changed`, and `gaps`. A run that was deleted
answers 404 to its uploads and 409 to whoever wants to begin it again. Requests without the key get
401. Tests read and steer it over HTTP as well:

    GET  /test/runs             {id: {history, config, complete, overwritten, changed, gaps, ...}}
    GET  /test/counts           {requests by name}
    POST /test/set              {name: value} of `State.knobs`
    POST /test/fault/RUN        {"status": 500} | {"delay": 2} | {"hang": true} | {}: its uploads
    POST /test/delete/RUN
"""

import base64
import gzip
import json
import re
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40
COMPARED = re.compile(r"^_(runtime|timestamp)$")


class Run:
    """A run as it is stored."""

    def __init__(self) -> None:
        self.history: dict[int, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}
        self.info: dict[str, Any] = {}
        self.created = False
        self.complete: int | None = None
        self.overwritten = self.changed = self.gaps = self.posts = 0

    def store(self, first: int, lines: list[str]) -> None:
        """Store lines of history under their numbers."""
        if first > len(self.history):
            self.gaps += 1
        for number, line in enumerate(lines, first):
            row = json.loads(line)
            old = self.history.get(number)
            if old is not None:
                self.overwritten += 1
                self.changed += _compared(old) != _compared(row)
            self.history[number] = row

    def shown(self) -> dict[str, Any]:
        """What a test sees."""
        return {
            **{k: v for k, v in vars(self).items() if k not in ("history", "info")},
            **self.info,
            "config": _plain(self.info.get("config")),
            "history": [self.history[number] for number in sorted(self.history)],
        }


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not COMPARED.match(k)}


def _plain(config: str | None) -> dict[str, Any]:
    found = json.loads(config or "{}")
    return {k: v["value"] for k, v in found.items() if not k.startswith("_")}


class State:
    """Everything the server knows. Names in `knobs` may be set by tests."""

    knobs = ("upload_status", "graphql_status", "upload_delay", "graphql_delay", "retry_after",
             "down", "deleted_status", "float_step", "key")  # fmt: skip

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.deleted: set[str] = set()
        self.faults: dict[str, dict[str, Any]] = {}
        self.counts: Counter[str] = Counter()
        self.upload_status = self.graphql_status = 200
        self.upload_delay = self.graphql_delay = 0.0
        self.retry_after = ""
        self.down = False
        self.deleted_status = 409
        self.float_step = False
        self.key = KEY
        self.lock = threading.RLock()

    def run(self, name: str) -> Run:
        """Return a run, made if there is none."""
        with self.lock:
            return self.runs.setdefault(name, Run())

    def tail(self, run: Run) -> str:
        """The last line of history, as a resume is told it."""
        if not run.history:
            return "[]"
        text = json.dumps(run.history[max(run.history)])
        if self.float_step:
            text = re.sub(r'"_step": (\d+)', lambda m: f'"_step": {float(m[1]):.17e}', text)
        return json.dumps([text])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        state = self.state
        if self.path == "/test/runs":
            with state.lock:
                return self._answer({name: run.shown() for name, run in state.runs.items()})
        if self.path == "/test/counts":
            return self._answer(state.counts)
        return self._cut() if state.down else self._answer({})

    def do_PUT(self) -> None:
        self._body()
        return self._cut() if self.state.down else self._answer({})

    def do_POST(self) -> None:
        state, body = self.state, self._body()
        if self.path.startswith("/test/"):
            return self._steer(json.loads(body or b"{}"))
        if state.down:
            return self._cut()
        if self.headers.get("Authorization") != _basic(state.key):
            return self._answer({"errors": [{"message": "user is not logged in"}]}, 401)
        if "file_stream" in self.path:
            return self._upload(json.loads(body))
        if "graphql" in self.path:
            return self._graphql(json.loads(body))
        return self._answer({})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing."""

    def _steer(self, wanted: dict[str, Any]) -> None:
        state, (what, _, name) = self.state, self.path.removeprefix("/test/").partition("/")
        with state.lock:
            if what == "set":
                assert not set(wanted) - set(state.knobs), wanted
                vars(state).update(wanted)
            elif what == "fault":
                state.faults[name] = wanted
            elif what == "delete":
                state.runs.pop(name, None)
                state.deleted.add(name)
        self._answer({})

    def _upload(self, sent: dict[str, Any]) -> None:
        state, name = self.state, self.path.rstrip("/").split("/")[-2]
        state.counts["uploads"] += 1
        time.sleep(state.upload_delay + state.faults.get(name, {}).get("delay", 0))
        while state.faults.get(name, {}).get("hang"):
            time.sleep(0.05)
        status = state.faults.get(name, {}).get("status", state.upload_status)
        if status == 200 and (name in state.deleted or name not in state.runs):
            status = 404
        if status != 200:
            return self._answer({"error": "as the test wants"}, status)
        with state.lock:
            run = state.run(name)
            run.posts += 1
            files = sent.get("files") or {}
            if history := files.get("wandb-history.jsonl"):
                run.store(history["offset"], history["content"])
            if summary := files.get("wandb-summary.json"):
                run.summary = json.loads(summary["content"][-1])
            if sent.get("complete"):
                run.complete = sent.get("exitcode")
        return self._answer({"exitcode": None, "limits": {}})

    def _graphql(self, sent: dict[str, Any]) -> None:
        state, query, values = self.state, sent["query"], sent.get("variables") or {}
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else query.strip()[:40]
        state.counts[name] += 1
        time.sleep(state.graphql_delay)
        if state.graphql_status != 200:
            return self._answer({"errors": [{"message": "no"}]}, state.graphql_status)
        project = {
            "id": "UA==",
            "name": values.get("project") or "uncategorized",
            "entity": {"id": "RQ==", "name": values.get("entity") or "team"},
        }
        with state.lock:
            if name == "UpsertBucket":
                return self._upsert(values, project)
            if "bucket(" in query:
                return self._answer({"data": {"model": self._buckets(query, values, project)}})
        if name == "SinkRows":
            return self._rows(values)
        port = self.server.server_port  # type: ignore[attr-defined]
        if name == "CreateRunFiles":
            urls = [
                {"name": n, "uploadUrl": f"http://127.0.0.1:{port}/up"} for n in values["files"]
            ]
            made = {"runID": "Qg==", "uploadHeaders": [], "files": urls}
            return self._answer({"data": {"createRunFiles": made}})
        if "viewer" in query:
            who = {"id": "x", "entity": "team", "flags": "{}", "username": "u", "email": "u@x",
                   "teams": {"edges": []}, "apiKeys": {"edges": []}}  # fmt: skip
            info = {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []}
            return self._answer({"data": {"viewer": who, "serverInfo": info}})
        if "serverInfo" in query:
            info = {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []}
            return self._answer({"data": {"serverInfo": info}})
        return self._answer({"data": {}})

    def _rows(self, values: dict[str, Any]) -> None:
        """Answer with a stretch of a run's history, a text for each row."""
        found = self.state.runs[values["name"]].history.values()
        rows = [json.dumps(r) for r in found if values["from"] <= r["_step"] < values["to"]]
        run = {"history": rows[: values["count"]]}
        return self._answer({"data": {"project": {"run": run}}})

    def _upsert(self, values: dict[str, Any], project: dict[str, Any]) -> None:
        state = self.state
        name = values.get("name") or base64.b64decode(values["id"]).decode()
        if name in state.deleted:
            message = f"run {name} was previously created and deleted; try a new run name"
            return self._answer({"errors": [{"message": message}]}, state.deleted_status)
        run = state.run(name)
        new, run.created = not run.created, True
        kept = ("displayName", "groupName", "jobType", "tags", "config", "project", "entity")
        run.info.update({k: values[k] for k in kept if values.get(k) is not None})
        if new or "displayName" in values:
            run.complete = None
        bucket = {
            "id": base64.b64encode(name.encode()).decode(),
            "name": name,
            "displayName": run.info.get("displayName") or name,
            "description": None,
            "config": run.info.get("config") or "{}",
            "sweepName": None,
            "historyLineCount": len(run.history),
            "project": project,
        }
        return self._answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": new}}})

    def _buckets(self, query: str, values: dict[str, Any], project: dict[str, Any]) -> Any:
        """Answer for every bucket that is asked for, under its alias, with the fields named."""
        asked = re.findall(r"(?:(\w+):\s*)?bucket\(name:\s*\$(\w+)[^)]*\)\s*{([^}]*)}", query)
        assert asked, query
        model = dict(project)
        for alias, variable, wanted in asked:
            fields = re.findall(r"\w+", re.sub(r"\([^)]*\)", "", wanted))
            model[alias or "bucket"] = self._bucket(values[variable], fields)
        return model

    def _bucket(self, name: str, wanted: list[str]) -> dict[str, Any] | None:
        state = self.state
        run = state.runs.get(name)
        if run is None or not run.created:
            return None
        everything: dict[str, Any] = {
            "id": base64.b64encode(name.encode()).decode(),
            "name": name,
            "displayName": run.info.get("displayName") or name,
            "summaryMetrics": json.dumps(run.summary),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyLineCount": len(run.history),
            "historyTail": state.tail(run),
            "eventsTail": "[]",
            "config": run.info.get("config") or "{}",
            "tags": run.info.get("tags") or [],
            "notes": None,
            "wandbConfig": '{"t":1}',
        }
        return {field: everything[field] for field in wanted}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            raw = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw

    def _answer(self, value: Any, status: int = 200) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status != 200 and self.state.retry_after:
            self.send_header("Retry-After", self.state.retry_after)
        self.end_headers()
        self.wfile.write(text)

    def _cut(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True


def _basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"api:{key}".encode()).decode()


class Server(ThreadingHTTPServer):
    """Takes many connections at once, and says nothing of those that break."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the process is ended, or its standard input is."""
    handler = type("Bound", (Handler,), {"state": State()})
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
