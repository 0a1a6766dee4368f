"""Receives calls of all four kinds; checks that none passes the edge unknown or unmapped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernel.environment import Environment
from kernel.errors import NotFound
from kernel.runtime.rpc import Authenticator, Caller, RpcServer, current_caller, open_channel

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
APP = Caller("app", frozenset({"acme"}))


async def _name(request: Any, context: Any) -> bytes:
    """The caller; a request that asks for nobody finds nobody."""
    asked = [part async for part in request] if hasattr(request, "__aiter__") else [request]
    if b"nobody" in asked:
        raise NotFound("There is nobody.")
    return current_caller().name.encode()


async def _names(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield await _name(request, context)


def _register(server: grpc.aio.Server) -> None:
    handlers = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(
            _names if kind.endswith("_stream") else _name
        )
        for kind in KINDS
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("mesh.v1.KindsService", handlers)]
    )


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    authenticator = Authenticator({"t0ken": APP})
    served = RpcServer(
        ["mesh.v1.KindsService"], _register, "127.0.0.1:0", authenticator, Environment()
    )
    await served.start()
    yield served
    await served.stop(0)


async def ask(server: RpcServer, kind: str, token: str, request: bytes = b"ping") -> bytes:
    async with open_channel(server.address, token) as channel:
        method = getattr(channel, kind)(f"/mesh.v1.KindsService/{kind}", None, None)
        asked = [request] if kind.startswith("stream_") else request
        call = method(iter(asked) if isinstance(asked, list) else asked, timeout=3)
        if kind.endswith("_stream"):
            return b"".join([bytes(part) async for part in call])
        return bytes(await call)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_of_any_kind_is_known_by_its_token(server: RpcServer, kind: str) -> None:
    assert await ask(server, kind, "t0ken") == b"app"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(server, kind, "")
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_problem_in_a_call_of_any_kind_is_mapped(server: RpcServer, kind: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(server, kind, "t0ken", b"nobody")
    assert (error.value.code(), error.value.details()) == (
        grpc.StatusCode.NOT_FOUND,
        "There is nobody.",
    )


async def test_a_server_that_begins_to_stop_never_says_serving_again(server: RpcServer) -> None:
    async with open_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await server.begin_shutdown()
        await server.set_serving(True)
        for service in ("", "mesh.v1.KindsService"):
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await stub.Check(request)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await ask(server, "unary_unary", "t0ken") == b"app"  # still served until it stops
