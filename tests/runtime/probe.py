"""Receives a handler; hands tests a service of two methods that is served for real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from kernel.environment import Environment
from kernel.runtime.rpc import Authenticator, Caller, RpcServer, open_channel

METHOD, STREAM = "/mesh.v1.ProbeService/Probe", "/mesh.v1.ProbeService/Watch"

Handler = Callable[[bytes], Awaitable[bytes]]


class Probe:
    """A service of one unary and one streaming method, served for real."""

    def __init__(self, callers: dict[str, Caller] | None = None) -> None:
        self.handle: Handler = self.echo
        self.server = RpcServer(
            ["mesh.v1.ProbeService"],
            self._register,
            "127.0.0.1:0",
            Authenticator(callers or {}),
            Environment(),
        )

    async def __aenter__(self) -> Probe:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def call(self, method: str = METHOD, token: str = "", timeout: float = 3.0) -> bytes:
        async with open_channel(self.server.address, token) as channel:
            if method == METHOD:
                unary = channel.unary_unary(method, None, None)
                return bytes(await unary(b"ping", timeout=timeout))
            stream = channel.unary_stream(method, None, None)
            parts = [bytes(part) async for part in stream(b"ping", timeout=timeout)]
            return b"".join(parts)

    async def refused(self, method: str = METHOD, token: str = "") -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.call(method, token)
        return error.value

    async def echo(self, request: bytes) -> bytes:
        return request

    async def _unary(self, request: bytes, context: Any) -> bytes:
        return await self.handle(request)

    async def _stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first "
        yield await self.handle(request)

    def _register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Probe": grpc.unary_unary_rpc_method_handler(self._unary),
            "Watch": grpc.unary_stream_rpc_method_handler(self._stream),
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("mesh.v1.ProbeService", handlers)]
        )
