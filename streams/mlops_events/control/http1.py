"""The least of an HTTP/1.1 server, for one trusted client on this machine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import msgspec

__all__ = ["Handler", "HttpConnection", "Request", "Response"]

_MAX_HEAD = 64 << 10
_MAX_BODY = 64 << 20


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request; the names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; `length` replaces the body's own in an answer to HEAD."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""
    length: int | None = None


Handler = Callable[[Request], Response | Awaitable[Response]]


class HttpConnection(asyncio.Protocol):
    """One connection: requests are answered one after the other, in order.

    A request that is no HTTP/1.1 with a length, or too large, ends the connection.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._pending: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checkers
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the answer that nobody waits for."""
        self._transport = None
        if self._pending:
            self._pending.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer each request that is now whole."""
        self._buffer += data
        if self._pending is None:
            self._answer_all()

    def _answer_all(self) -> None:
        while self._transport is not None and (request := self._take()) is not None:
            answer = self._handler(request)
            if isinstance(answer, Response):
                self._send(answer)
            else:
                self._pending = asyncio.ensure_future(self._answer_later(answer))
                break

    async def _answer_later(self, answer: Awaitable[Response]) -> None:
        self._send(await answer)
        self._pending = None
        self._answer_all()

    def _take(self) -> Request | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MAX_HEAD:
                self._refuse()
            return None
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        parts = first.split(" ")
        length = headers.get("content-length", "0")
        if (
            len(parts) != 3
            or "transfer-encoding" in headers
            or not length.isdecimal()
            or int(length) > _MAX_BODY
        ):
            self._refuse()
            return None
        stop = end + 4 + int(length)
        if len(buffer) < stop:
            return None
        body = bytes(buffer[end + 4 : stop])
        del buffer[:stop]
        path, _, query = parts[1].partition("?")
        return Request(
            method=parts[0],
            path=unquote(path),
            query=dict(parse_qsl(query, keep_blank_values=True)) if query else {},
            headers=headers,
            body=body,
        )

    def _refuse(self) -> None:
        self._buffer.clear()
        self._send(Response(status=400, headers={"Connection": "close"}))
        if self._transport is not None:
            self._transport.close()

    def _send(self, answer: Response) -> None:
        if self._transport is None:
            return
        length = len(answer.body) if answer.length is None else answer.length
        head = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.status not in (204, 304):
            head.append(f"Content-Length: {length}")
        head.append("\r\n")
        self._transport.write("\r\n".join(head).encode("latin-1") + answer.body)
