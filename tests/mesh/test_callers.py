"""Declared callers: every service asks who calls, and the services present a token of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


async def _refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    code = refused.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def test_a_gateway_caller_of_some_tenants_cannot_touch_the_tasks_of_the_mesh(
    tmp_path: Path,
) -> None:
    environment = Environment()
    workspace = open_workspace(tmp_path)
    tokens = {"B": "example-b-token", "MESH": "example-mesh-token"}

    def secrets(reference: str) -> str | None:
        kind, _, name = reference.partition(":")
        return tokens.get(name) if kind == "env" else workspace.secret(reference)

    settings = load_settings(
        workspace,
        None,
        callers={
            "b": {"token": "env:B", "tenants": ["beta"], "roles": ["gateway"]},
            "mesh": {"token": "env:MESH", "roles": ["gateway"]},
        },
        service_token="env:MESH",
        **FREE_PORTS,
        **default_vendors("http://127.0.0.1:9"),
    )
    processes.upgrade(settings, environment)
    receipts = aggregator_pb2.ApplyReceiptsRequest(
        receipts=[aggregator_pb2.Receipt(receipt_id="r1", task_id=f"{'0' * 32}.1")]
    )
    execute = vendor_proxy_pb2.ExecuteRequest(
        tenant_id="beta",
        idempotency_key="k-1",
        task_id=f"{'0' * 32}.1",
        attempt=1,
        vendor="textguard",
        pool="text",
        payload=b"x",
        max_sends=1,
        kind="TEXT",
    )
    execute.deadline.FromMicroseconds(environment.clock.now_micros() + 60_000_000)
    async with (
        processes.run(settings, secrets, environment) as running,
        open_channel(running.aggregator, tokens["B"]) as to_aggregator,
        open_channel(running.vendor_proxy, tokens["B"]) as to_proxy,
        open_channel(running.vendor_proxy, tokens["MESH"]) as mesh_at_proxy,
    ):
        told = AggregatorServiceStub(to_aggregator).ApplyReceipts(receipts)
        assert await _refused(told) is grpc.StatusCode.PERMISSION_DENIED
        call = VendorProxyServiceStub(to_proxy).Execute(execute)
        assert await _refused(call) is grpc.StatusCode.PERMISSION_DENIED
        # Nor does the mesh itself name a task under a key that is not the task's.
        wrong_key = VendorProxyServiceStub(mesh_at_proxy).Execute(execute)
        assert await _refused(wrong_key) is grpc.StatusCode.INVALID_ARGUMENT
