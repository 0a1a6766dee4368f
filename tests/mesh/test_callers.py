"""Declared callers: every service asks who calls, and the services present a token of their own."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from cli import processes, vendor_process
from cli.demo import FREE_PORTS
from cli.workspace import default_vendors, load_settings, open_workspace
from kernel.environment import Environment
from kernel.runtime.rpc import open_channel
from mesh.v1 import aggregator_pb2, dispatcher_pb2, types_pb2, vendor_proxy_pb2
from mesh.v1 import intake_pb2 as intake
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub
from mesh.v1.dispatcher_pb2_grpc import DispatcherServiceStub
from mesh.v1.intake_pb2_grpc import IntakeServiceStub
from mesh.v1.vendor_proxy_pb2_grpc import VendorProxyServiceStub

TOKENS = {"WEB": "example-web-token", "MESH": "example-mesh-token", "OPS": "example-ops-token"}
CALLERS = {
    "web": {"token": "env:WEB", "tenants": ["acme"], "roles": ["submit", "read"]},
    "mesh": {"token": "env:MESH", "roles": ["gateway"]},
    "ops": {"token": "env:OPS", "roles": ["operate"]},
}


def _content(tenant_id: str) -> intake.SubmitContentRequest:
    return intake.SubmitContentRequest(
        tenant_id=tenant_id,
        content_id="post-1",
        content_version=1,
        parts=[
            intake.ContentPart(kind=intake.PART_KIND_TEXT, text="hello"),
            intake.ContentPart(
                kind=intake.PART_KIND_VIDEO, uri="https://example.com/v.mp4", duration_seconds=2
            ),
        ],
    )


async def test_a_mesh_with_declared_callers_judges_and_keeps_strangers_out(tmp_path: Path) -> None:
    environment = Environment()
    workspace = open_workspace(tmp_path)

    def secrets(reference: str) -> str | None:
        kind, _, name = reference.partition(":")
        return TOKENS.get(name) if kind == "env" else workspace.secret(reference)

    simulator = await vendor_process.start(
        0, vendor_process.controls(workspace.keys["receipts"], faults=False), environment
    )
    settings = load_settings(
        workspace,
        None,
        callers=CALLERS,
        service_token="env:MESH",
        **FREE_PORTS,
        **default_vendors(f"http://127.0.0.1:{simulator.port}"),
    )
    processes.upgrade(settings, environment)
    try:
        async with (
            processes.run(settings, secrets, environment) as running,
            open_channel(running.intake, TOKENS["WEB"]) as to_intake,
            open_channel(running.aggregator, TOKENS["WEB"]) as to_aggregator,
            open_channel(running.intake) as stranger,
            open_channel(running.vendor_proxy, TOKENS["WEB"]) as web_at_proxy,
            open_channel(running.vendor_proxy, TOKENS["OPS"]) as ops_at_proxy,
            open_channel(running.dispatcher, TOKENS["OPS"]) as ops_at_dispatcher,
        ):
            accepted = await IntakeServiceStub(to_intake).SubmitContent(_content("acme"))
            state = types_pb2.CASE_STATE_PENDING
            async for message in AggregatorServiceStub(to_aggregator).WatchCase(
                aggregator_pb2.WatchCaseRequest(case_id=accepted.case_id), timeout=30
            ):
                state = message.case.state
            assert state == types_pb2.CASE_STATE_APPROVED

            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await IntakeServiceStub(stranger).SubmitContent(_content("acme"))
            assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as elsewhere:
                await IntakeServiceStub(to_intake).SubmitContent(_content("other"))
            assert elsewhere.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError) as gateway:
                await VendorProxyServiceStub(web_at_proxy).Execute(
                    vendor_proxy_pb2.ExecuteRequest(tenant_id="acme")
                )
            assert gateway.value.code() is grpc.StatusCode.PERMISSION_DENIED

            await VendorProxyServiceStub(ops_at_proxy).ListLimits(
                vendor_proxy_pb2.ListLimitsRequest()
            )
            await DispatcherServiceStub(ops_at_dispatcher).ListPools(
                dispatcher_pb2.ListPoolsRequest()
            )
    finally:
        await simulator.stop()
