"""Receives raw HTTP over TCP; answers each request with the bytes, or the silence, of a script."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Play = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawVendor:
    """One TCP server; `requests` are what came in whole, `answers` are played in turn."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    answers: list[Play] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                self.requests.append(head + body)
                self.arrived.set()
                await self.answers.pop(0)(writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            self.open.discard(task)
            self.closed.set()


def raw(answer: bytes, *, then_close: bool = False) -> Play:
    """Answer with these bytes."""

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        if then_close:
            writer.close()

    return play


def http(status: int, body: str | bytes = b"", **headers: str) -> Play:
    """A well-formed answer; header names with underscores for dashes."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw("\r\n".join(lines).encode() + b"\r\n\r\n" + content)


async def reset(writer: asyncio.StreamWriter) -> None:
    """Send a TCP reset instead of an answer."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close without an answer."""
    writer.close()


async def silence(writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


@asynccontextmanager
async def raw_vendor(*answers: Play) -> AsyncIterator[RawVendor]:
    """A server on a free port."""
    vendor = RawVendor(answers=list(answers))
    server = await asyncio.start_server(vendor.serve_one, "127.0.0.1", 0)
    vendor.port = server.sockets[0].getsockname()[1]
    try:
        yield vendor
    finally:
        server.close()
        for task in list(vendor.open):
            task.cancel()
        await asyncio.gather(*vendor.open, return_exceptions=True)
        await server.wait_closed()
