"""Receives a running intake; hands tests its stub, requests, and refusals as plain values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from kernel.runtime.rpc import Authenticator, Caller, open_channel
from mesh.v1 import intake_pb2, intake_pb2_grpc
from services.intake.app import IntakeApp
from tests.intake.world import World

CALLERS = {
    "token-acme": Caller("acme-app", frozenset({"acme"}), frozenset({"submit", "read"})),
    "token-read": Caller("reader", None, frozenset({"read"})),
    "token-other": Caller("other-app", frozenset({"other"}), frozenset({"submit"})),
}


@asynccontextmanager
async def serving(
    world: World, callers: dict[str, Caller] | None = None
) -> AsyncIterator[IntakeApp]:
    app = IntakeApp(
        world.settings,
        world.environment,
        world.store,
        world.vault,
        world.wakeups,
        Authenticator(callers or {}),
    )
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def calling(
    app: IntakeApp, token: str = ""
) -> AsyncIterator[intake_pb2_grpc.IntakeServiceAsyncStub]:
    async with open_channel(app.address, token) as channel:
        yield intake_pb2_grpc.IntakeServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call's error: its code, ErrorInfo and field violations."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    fields: list[str]
    text: str


async def refusal(call: Awaitable[Any]) -> Refusal:
    """What the call was refused with; fails when it was not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return _refusal(error)
    raise AssertionError("the call was not refused")


def _refusal(error: grpc.aio.AioRpcError) -> Refusal:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it has what is asked
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details if status else ():
        detail.Unpack(info)
        detail.Unpack(bad)
    return Refusal(
        error.code(),
        error.details() or "",
        info.reason,
        dict(info.metadata),
        [each.field for each in bad.field_violations],
        f"{error.details()} {status}",
    )


def text_request(text: str = "hello", **more: Any) -> intake_pb2.SubmitContentRequest:
    values: dict[str, Any] = {
        "tenant_id": "acme",
        "content_id": "post-1",
        "content_version": 1,
        "parts": [intake_pb2.ContentPart(kind=intake_pb2.PART_KIND_TEXT, text=text)],
    }
    return intake_pb2.SubmitContentRequest(**{**values, **more})


def at(micros: int) -> Timestamp:
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1_000)
