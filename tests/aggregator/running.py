"""Receives a mesh; hands tests its aggregator as a service, callers, and refusals as values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from kernel.runtime.rpc import Authenticator, Caller, open_channel
from kernel.runtime.settings import Settings
from mesh.v1 import aggregator_pb2 as pb
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub
from services.aggregator.app import AggregatorApp
from tests.aggregator.world import World

CALLERS = {
    "gateway-token": Caller("proxy", None, frozenset({"gateway"})),
    "desk-token": Caller("desk", frozenset({"acme"}), frozenset({"read", "review"})),
    "rules-token": Caller("rules", None, frozenset({"read", "review"})),
    "reader-token": Caller("reader", frozenset({"umbrella"}), frozenset({"read"})),
}


@dataclass(frozen=True, slots=True)
class Running:
    """The app with one stub for each caller."""

    app: AggregatorApp
    stubs: dict[str, Any]

    @property
    def desk(self) -> Any:
        return self.stubs["desk-token"]


def settings_of(**policies: Any) -> Settings:
    return Settings.model_validate(
        {"aggregator_addr": "127.0.0.1:0", "poll_seconds": 0.05, "policies": policies}
    )


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[Running]:
    settings = settings_of(declared={"rules": [{"category": "*", "reject_at": 0.5}]})
    app = AggregatorApp(
        settings, world.environment, world.store, world.wakeups, Authenticator(CALLERS)
    )
    await app.start()
    channels = {token: open_channel(app.address, token) for token in (*CALLERS, "")}
    yield Running(
        app,
        {token: AggregatorServiceStub(channel) for token, channel in channels.items()},
    )
    for channel in channels.values():
        await channel.close(None)
    await app.stop()


async def refused(call: Any) -> tuple[grpc.StatusCode, Any, set[str]]:
    """The status code, the ErrorInfo and the fields that BadRequest names."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    failed: Any = error.value
    status = rpc_status.from_call(failed)
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        if detail.Is(bad.DESCRIPTOR):
            detail.Unpack(bad)
    assert info.domain == "sluice"
    return error.value.code(), info, {violation.field for violation in bad.field_violations}


async def final(running: Running, case_id: str) -> Any:
    """The last case of its watch."""
    last = None
    async for answer in running.desk.WatchCase(pb.WatchCaseRequest(case_id=case_id)):
        last = answer.case
    return last
