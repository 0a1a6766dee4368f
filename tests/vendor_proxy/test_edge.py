"""Receives the service over a real gRPC channel; shows requests in, answers and errors out."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from kernel.runtime.rpc import Authenticator, Caller, open_channel
from kernel.runtime.settings import Settings
from mesh.v1 import types_pb2
from mesh.v1 import vendor_proxy_pb2 as pb
from mesh.v1.vendor_proxy_pb2_grpc import VendorProxyServiceStub
from services.vendor_proxy.app import VendorProxyApp
from tests.vendor_proxy.letters import body_of, signed
from tests.vendor_proxy.world import POOL, VENDOR, World


@asynccontextmanager
async def served(world: World, authenticator: Authenticator, token: str = "") -> AsyncIterator[Any]:
    settings = Settings.model_validate(
        {
            "hash_key": base64.b64encode(b"k" * 32).decode(),
            "vendor_proxy_addr": "127.0.0.1:0",
            "vendor_proxy_http_addr": "127.0.0.1:0",
            "aggregator_addr": "127.0.0.1:1",
            "vendors": {
                VENDOR: {
                    "endpoint": f"{world.url}/v/{VENDOR}",
                    "query_by_key": True,
                    "receipts": True,
                    "receipt_secret": "env:RECEIPTS",
                    "status_map": {"succeeded": "SUCCEEDED"},
                    "price_micros": 5,
                }
            },
            "pools": {POOL: {"vendor": VENDOR, "concurrency": 3}},
        }
    )
    app = VendorProxyApp(
        settings,
        world.environment,
        world.store,
        world.vault,
        authenticator,
        world.secrets.get,
    )
    await app.start()
    try:
        async with open_channel(app.address, token) as channel:
            yield VendorProxyServiceStub(channel)
    finally:
        await app.stop()


def request(world: World, **fields: object) -> pb.ExecuteRequest:
    message = pb.ExecuteRequest(
        tenant_id="t1",
        idempotency_key="k1",
        attempt=1,
        vendor=VENDOR,
        pool=POOL,
        payload=b"hello",
        max_sends=2,
        model_id="m",
        kind="TEXT",
        units={"tokens": 3},
        on_unknown=types_pb2.OnUnknown(mode=types_pb2.OnUnknown.MODE_AT_MOST_ONCE),
    )
    message.deadline.FromMicroseconds(world.clock.now_micros() + 60_000_000)
    message.MergeFrom(pb.ExecuteRequest(**fields))  # type: ignore[arg-type]
    return message


async def test_every_method_answers_over_the_wire(world: World) -> None:
    await world.control(capabilities={"query_by_key": True})
    async with served(world, Authenticator({})) as stub:
        done = await stub.Execute(request(world))
        assert done.outcome == pb.OUTCOME_COMPLETED
        assert dict(done.result.scores)
        assert (done.sends, done.replayed) == (1, False)

        call = (await stub.GetCall(pb.GetCallRequest(idempotency_key="k1", vendor=VENDOR))).call
        assert (call.caller, call.state, call.attempt) == ("local", "SETTLED", 1)
        assert call.response.result == done.result
        assert not call.HasField("occupied_until")

        asked = await stub.QueryStatus(pb.QueryStatusRequest(idempotency_key="k1", vendor=VENDOR))
        assert asked.answer == pb.QueryStatusResponse.ANSWER_SETTLED
        assert asked.response.result == done.result

        fenced = await stub.FenceCall(
            pb.FenceCallRequest(idempotency_key="k2", vendor=VENDOR, attempt=1)
        )
        assert fenced.answer == pb.FenceCallResponse.ANSWER_NEVER_BEGUN
        assert not fenced.HasField("response")

        cancelled = await stub.CancelCall(pb.CancelCallRequest(idempotency_key="k1", vendor=VENDOR))
        assert cancelled.answer == pb.CancelCallResponse.ANSWER_TOO_LATE

        body = body_of(reference="unknown-call")
        ingested = await stub.IngestReceipt(
            pb.IngestReceiptRequest(vendor_account=VENDOR, body=body, headers=signed(world, body))
        )
        assert ingested.stored

        (limit,) = (await stub.ListLimits(pb.ListLimitsRequest())).limits
        assert (limit.pool, limit.vendor, limit.concurrency) == (POOL, VENDOR, 3)
        changed = await stub.SetLimit(pb.SetLimitRequest(pool=POOL, concurrency=1))
        assert changed.limit.concurrency == 1
        assert changed.in_force_at.ToMicroseconds() == world.clock.now_micros()


async def test_bad_input_is_named_and_an_unknown_key_is_not_found(world: World) -> None:
    async with served(world, Authenticator({})) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Execute(request(world, vendor="nobody", kind="SONG"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "kind" in (refused.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await stub.GetCall(pb.GetCallRequest(idempotency_key="none", vendor=VENDOR))
        assert missing.value.code() is grpc.StatusCode.NOT_FOUND


async def test_calls_are_scoped_by_the_authenticated_caller(world: World) -> None:
    callers = {"one": Caller("first"), "two": Caller("second", roles=frozenset({"read"}))}
    async with served(world, Authenticator(callers), "one") as stub:
        await stub.Execute(request(world, caller="first"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Execute(request(world, caller="second"))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        call = (await stub.GetCall(pb.GetCallRequest(idempotency_key="k1", vendor=VENDOR))).call
        assert call.caller == "first"
    async with served(world, Authenticator(callers), "two") as stub:
        with pytest.raises(grpc.aio.AioRpcError) as lacking:
            await stub.GetCall(pb.GetCallRequest(idempotency_key="k1", vendor=VENDOR))
        assert lacking.value.code() is grpc.StatusCode.PERMISSION_DENIED
