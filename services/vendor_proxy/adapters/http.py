"""One HTTP exchange with a vendor: sent at most once, followed nowhere, cut on time.

Receives a request and its `Transmission`. Hands on the reply, or says whether a byte may have
left: `NotSentError` when none did, `InDoubtError` when one may have (DESIGN section 7, the
table of outcomes). Redirects are off, and nothing is repeated.
"""

from __future__ import annotations

import asyncio
import io
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import ClientRequest, ClientResponse
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection

from kernel.environment import Clock, Environment
from services.vendor_proxy.adapters import NotSentError, Transmission

REPLY_BYTES = 4 * 1024 * 1024
_AT_ONCE_BYTES = 1024 * 1024
# Idle connections are given up before most servers do, so that few calls meet a dying one.
_KEEPALIVE_SECONDS = 10.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: unsent bytes are dropped


class InDoubtError(Exception):
    """Bytes may have left and no whole answer came back; `reason` says what was seen."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Exchange:
    """One request's way: its transmission, and the connection that it went out on."""

    def __init__(self, transmission: Transmission, clock: Clock, write_seconds: float) -> None:
        self.transmission = transmission
        self.reason = ""
        self._clock = clock
        self._write_seconds = write_seconds
        self._transport: asyncio.Transport | None = None
        self._write_bound: asyncio.Task[None] | None = None

    def open(self, conn: Connection) -> None:
        """The pre-send check, and the last thing before the first byte; raises NotSentError."""
        transport = conn.transport
        if transport is None or transport.is_closing():
            raise NotSentError("CONNECTION_CLOSED")
        self.transmission.open()
        self._transport = transport
        self._write_bound = asyncio.create_task(self._cut_when_not_written())

    def written(self) -> None:
        """All bytes were handed over; they have left unless the connection holds some back."""
        if self._all_left() and self._write_bound is not None:
            self._write_bound.cancel()

    def end(self, *, whole: bool) -> None:
        """The exchange is over; without a whole answer its connection goes."""
        if self._write_bound is not None:
            self._write_bound.cancel()
        if not whole or not self._all_left():
            self._cut()

    def _all_left(self) -> bool:
        return self._transport is None or self._transport.get_write_buffer_size() == 0

    async def _cut_when_not_written(self) -> None:
        await self._clock.sleep(self._write_seconds)
        self.reason = "WRITE_TIMEOUT"
        self._cut()

    def _cut(self) -> None:
        """Drop the connection with all bytes that have not left: none leaves later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()


class _CheckedRequest(ClientRequest):
    """A request whose pre-send check runs in the step that writes its first byte."""

    exchange: _Exchange | None = None

    async def send(self, conn: Connection) -> ClientResponse:
        """A request without a body leaves from here."""
        if self.exchange is not None and not self.body:
            self.exchange.open(conn)
            response = await super().send(conn)
            self.exchange.written()
            return response
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Headers and body leave from here: aiohttp holds the headers back until it."""
        if self.exchange is None:
            await super().write_bytes(writer, conn, content_length)
            return
        try:
            self.exchange.open(conn)
        except NotSentError as refused:
            self.exchange.reason = refused.reason
            if conn.protocol is not None:
                conn.protocol.set_exception(refused)
            return
        await super().write_bytes(writer, conn, content_length)
        self.exchange.written()


class Http:
    """The HTTP side of one vendor: a session of its own, and the bounds of each exchange.

    `write_seconds` bounds the time from the first byte to the last one.
    """

    def __init__(self, environment: Environment, write_seconds: float) -> None:
        self._clock = environment.clock
        self._write_seconds = write_seconds
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def exchange(
        self,
        method: str,
        url: str,
        transmission: Transmission,
        *,
        timeout_seconds: float,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> HttpReply:
        """Send one request and read its whole answer within `timeout_seconds`.

        Raises NotSentError when no byte left, InDoubtError when one may have.
        """
        exchange = _Exchange(transmission, self._clock, self._write_seconds)
        talk = asyncio.create_task(self._talk(method, url, exchange, headers, body))
        timer = asyncio.create_task(self._clock.sleep(timeout_seconds))
        whole = False
        try:
            await asyncio.wait({talk, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                raise self._failed(transmission, "CONNECT_TIMEOUT", "READ_TIMEOUT")
            reply = talk.result()
            whole = True
            return reply
        except (NotSentError, InDoubtError, asyncio.CancelledError):
            raise
        except Exception as error:
            reason = exchange.reason or _reason(error)
            raise self._failed(transmission, reason, reason) from error
        finally:
            transmission.close()
            exchange.end(whole=whole)
            talk.cancel()
            timer.cancel()
            await asyncio.gather(talk, timer, return_exceptions=True)

    @staticmethod
    def _failed(transmission: Transmission, before: str, after: str) -> Exception:
        return InDoubtError(after) if transmission.close() else NotSentError(before)

    async def _talk(
        self,
        method: str,
        url: str,
        exchange: _Exchange,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> HttpReply:
        async def attach(request: ClientRequest, handler: Any) -> ClientResponse:
            assert isinstance(request, _CheckedRequest)  # noqa: S101 - the session's own class
            request.exchange = exchange
            response: ClientResponse = await handler(request)
            return response

        async with self._open_session().request(
            method,
            url,
            data=_sendable(body),
            headers=headers,
            allow_redirects=False,
            middlewares=(attach,),
        ) as response:
            content = bytearray()
            while chunk := await response.content.read(REPLY_BYTES):
                content += chunk
                if len(content) > REPLY_BYTES:
                    raise InDoubtError("REPLY_TOO_LARGE")
            return HttpReply(response.status, response.headers, bytes(content))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
                request_class=_CheckedRequest,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            )
        return self._session


def _sendable(body: bytes | None) -> bytes | io.BytesIO | None:
    # A large body goes out in pieces, so that other calls get their turns.
    return io.BytesIO(body) if body is not None and len(body) > _AT_ONCE_BYTES else body


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "NAME_NOT_RESOLVED"
        case aiohttp.ClientSSLError():
            return "TLS_REFUSED"
        case aiohttp.ClientConnectorError():
            return "CONNECT_REFUSED"
        case aiohttp.InvalidURL():
            return "BAD_ENDPOINT"
        case aiohttp.ClientPayloadError():
            return "REPLY_TRUNCATED"
        case aiohttp.ServerDisconnectedError():
            return "CONNECTION_CUT"
        case aiohttp.ClientOSError() | OSError():
            return "CONNECTION_RESET"
        case aiohttp.ClientResponseError():
            return "REPLY_UNREADABLE"
        case _:
            return "EXCHANGE_FAILED"
