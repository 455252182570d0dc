"""One folder as the embedded broker's object store: the five S3 verbs that the broker uses.

`python -m mlops_events.control.store FOLDER --port N` serves it on 127.0.0.1; `--fd N` on a socket
that the parent listens on, so that requests wait while this process is restarted.
"""

import argparse
import asyncio
import html
import logging
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

import msgspec

from mlops_events.control.http1 import HttpConnection, Request, Response
from mlops_events.control.lock import FolderLock
from mlops_events.control.logs import log_to
from mlops_events.control.retention import Retention, excess
from mlops_events.control.segments import Entry, ObjectLog
from mlops_events.schemas.errors import MlopsEventsError
from mlops_events.schemas.settings import Secret, load

__all__ = ["ObjectStore", "StoreSettings", "main", "serve"]

log = logging.getLogger(__name__)

_PAGE = 10_000
_TICK_S = 5.0


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How safe the store is and what it keeps; read with the prefix "store".

    With `fsync_s` 0 a write is on the disk before it is acknowledged; else at most that much later:
    what a power cut may cost. Death of the process costs nothing either way. Requests must carry
    `access_key`; without one every request is answered.
    """

    fsync_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    segment_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 32 << 20
    access_key: Secret = Secret()
    retention: Retention = Retention()


class ObjectStore:
    """Answers requests from an `ObjectLog`, and keeps it on the disk and within its bounds.

    Args:
        objects: where the objects are.
        settings: when to sync, what to keep, whom to answer.
        clock_ms: the time since the epoch.
    """

    def __init__(
        self,
        objects: ObjectLog,
        settings: StoreSettings,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._objects = objects
        self._settings = settings
        key = settings.access_key.reveal()
        self._credential = f"Credential={key}/" if key else ""
        self._clock_ms = clock_ms
        self._written = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []

    def handle(self, request: Request) -> "Response | asyncio.Task[Response]":
        """Answer one request; an answer that waits for the disk comes as a task."""
        if self._credential not in request.headers.get("authorization", ""):
            return _error(403, "AccessDenied")
        _, _, key = request.path.lstrip("/").partition("/")
        try:
            match request.method, bool(key):
                case "GET" | "HEAD", True:
                    return self._get(key, request)
                case "PUT", True:
                    return self._written_first(self._put(key, request))
                case "DELETE", True:
                    self._objects.delete(key)
                    return self._written_first(Response(status=204))
                case "GET", False:
                    return self._list(request)
                case "POST", False if "delete" in request.query:
                    return self._written_first(self._delete_many(request))
                case _:
                    return _error(501, "NotImplemented")
        except OSError as error:
            log.error("the object store cannot write", extra={"error": str(error)})
            return _error(507, "InsufficientStorage")

    async def keep(self) -> None:
        """Sync and clean up for ever.

        Raises:
            OSError: what was written cannot be put on the disk; nothing more may be acknowledged.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_synced())
            tasks.create_task(self._keep_small())

    async def clean(self) -> int:
        """Delete what is beyond the limits, give back its disk space; return the batches deleted."""
        objects = self._objects
        dropped = sum(
            objects.drop_oldest(folder, count)
            for folder, count in excess(
                objects, self._settings.retention, now_ms=self._clock_ms()
            ).items()
        )
        while segment := objects.victim():
            objects.rewrite(segment)
            await asyncio.to_thread(objects.sync)
            objects.remove(segment)
        return dropped

    async def _keep_synced(self) -> None:
        while True:
            await self._written.wait()
            self._written.clear()
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self._objects.sync)
            for one in waiting:
                if not one.done():
                    one.set_result(None)
            await asyncio.sleep(self._settings.fsync_s)

    async def _keep_small(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self.clean()
            except OSError as error:
                log.error("the object store cannot clean up", extra={"error": str(error)})

    def _written_first(self, answer: Response) -> "Response | asyncio.Task[Response]":
        self._written.set()
        if self._settings.fsync_s > 0 or answer.status >= 300:
            return answer
        synced = asyncio.get_running_loop().create_future()
        self._waiting.append(synced)
        return asyncio.ensure_future(_after(synced, answer))

    def _put(self, key: str, request: Request) -> Response:
        have = self._objects.get(key)
        wanted = request.headers.get("if-match")
        if have and request.headers.get("if-none-match") == "*":
            return _error(412, "PreconditionFailed")
        if wanted and (have is None or wanted != _etag(have)):
            return _error(412, "PreconditionFailed")
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            return _error(501, "NotImplemented")
        entry = self._objects.put(key, request.body, modified_ms=self._clock_ms())
        return Response(headers={"ETag": _etag(entry)})

    def _get(self, key: str, request: Request) -> Response:
        entry = self._objects.get(key)
        if entry is None:
            return _error(404, "NoSuchKey")
        headers = {
            "ETag": _etag(entry),
            "Last-Modified": formatdate(entry.modified_ms / 1000, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status=304, headers=headers)
        if request.method == "HEAD":
            return Response(headers=headers, length=entry.size)
        span = request.headers.get("range")
        if span is None:
            return Response(headers=headers, body=self._objects.read(entry))
        found = _range(span, entry.size)
        if found is None:
            return _error(416, "InvalidRange")
        start, stop = found
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        return Response(status=206, headers=headers, body=self._objects.read(entry, start, stop))

    def _list(self, request: Request) -> Response:
        prefix = request.query.get("prefix", "")
        delimiter = request.query.get("delimiter", "")
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        lines: list[bytes] = []
        folders: dict[str, None] = {}
        last = ""
        for key, entry in self._objects.scan(prefix, after=after):
            if len(lines) + len(folders) == _PAGE:
                break
            last = key
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders[prefix + rest.split(delimiter)[0] + delimiter] = None
            else:
                lines.append(entry.line or _line(key, entry))
        else:
            last = ""
        return Response(
            headers={"Content-Type": "application/xml"}, body=_page(lines, folders, last)
        )

    def _delete_many(self, request: Request) -> Response:
        keys = [html.unescape(k) for k in re.findall(r"<Key>(.*?)</Key>", request.body.decode())]
        for key in keys:
            self._objects.delete(key)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        body = f'<?xml version="1.0"?><DeleteResult>{done}</DeleteResult>'
        return Response(headers={"Content-Type": "application/xml"}, body=body.encode())


async def _after(synced: "asyncio.Future[None]", answer: Response) -> Response:
    await synced
    return answer


def _etag(entry: Entry) -> str:
    return f'"{entry.version:x}"'


def _range(span: str, size: int) -> tuple[int, int] | None:
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", span)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    start = int(match[1])
    stop = min(int(match[2]) + 1, size) if match[2] else size
    return (start, stop) if start < stop else None


def _line(key: str, entry: Entry) -> bytes:
    modified = datetime.fromtimestamp(entry.modified_ms / 1000, UTC).isoformat(
        timespec="milliseconds"
    )
    entry.line = (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
        f"<Size>{entry.size}</Size></Contents>"
    ).encode()
    return entry.line


def _page(lines: list[bytes], folders: dict[str, None], last: str) -> bytes:
    more = (
        f"<IsTruncated>true</IsTruncated>"
        f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        if last
        else "<IsTruncated>false</IsTruncated>"
    )
    shared = "".join(
        f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders
    )
    return b"".join(
        (
            b'<?xml version="1.0"?><ListBucketResult>',
            more.encode(),
            *lines,
            shared.encode(),
            b"</ListBucketResult>",
        )
    )


def _error(status: int, code: str) -> Response:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return Response(status=status, headers={"Content-Type": "application/xml"}, body=body)


async def serve(folder: Path, settings: StoreSettings, *, listener: socket.socket) -> None:
    """Serve a folder until SIGTERM or SIGINT.

    Raises:
        FolderInUseError: another process serves this folder.
        DamagedStoreError: the folder cannot be read.
        OSError: the disk failed.
    """
    with FolderLock(folder, wait_s=10):
        objects = ObjectLog(folder, segment_bytes=settings.segment_bytes)
        if objects.torn_bytes:
            log.warning("cut off an unfinished write", extra={"bytes": objects.torn_bytes})
        store = ObjectStore(objects, settings)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpConnection(store.handle), sock=listener)
        keeper = asyncio.create_task(store.keep())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, keeper.cancel)
        log.info("serving", extra={"objects": len(objects), "bytes": objects.live_bytes})
        try:
            await keeper
        except asyncio.CancelledError:
            log.info("stopping")
        finally:
            server.close()
            objects.close()


def main() -> int:
    """Run the store as a process of its own and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m mlops_events.control.store")
    parser.add_argument("folder", type=Path)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--port", type=int)
    place.add_argument("--fd", type=int)
    arguments = parser.parse_args()
    log_to(sys.stderr)
    listener = (
        socket.create_server(("127.0.0.1", arguments.port))
        if arguments.fd is None
        else socket.socket(fileno=arguments.fd)
    )
    try:
        settings = load(StoreSettings, "store")
        asyncio.run(serve(arguments.folder, settings, listener=listener))
    except MlopsEventsError as error:
        log.error("the object store cannot start", extra={"reason": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
