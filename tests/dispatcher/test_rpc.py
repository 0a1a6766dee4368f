"""DispatcherService over real gRPC: what callers see, and what bad input is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from kernel.lifecycle import State
from kernel.runtime.rpc import Authenticator, Caller, RpcServer, open_channel
from mesh.v1 import dispatcher_pb2 as pb
from mesh.v1 import dispatcher_pb2_grpc
from mesh.v1 import types_pb2 as types
from mesh.v1.dispatcher_pb2_grpc import (
    DispatcherServiceStub,
    add_DispatcherServiceServicer_to_server,
)
from services.dispatcher.servicer import DispatcherServicer
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.test_operator import stuck
from tests.dispatcher.world import POOL, VENDOR, World, run_once
from tests.intake.wire import refusal

CALLERS = {
    "all": Caller("ops", None, frozenset({"read", "operate"})),
    "acme": Caller("acme-app", frozenset({"acme"}), frozenset({"read"})),
    "both": Caller("group-app", frozenset({"acme", "beta"}), frozenset({"read"})),
    "other": Caller("other-ops", frozenset({"other"}), frozenset({"read", "operate"})),
    "submit": Caller("writer", None, frozenset({"submit"})),
}
NOBODY = "0" * 32 + ".1"
R = pb.ResolveUnknownRequest


@asynccontextmanager
async def serving(
    world: World, callers: dict[str, Caller] | None = None
) -> AsyncIterator[RpcServer]:
    core = world.core()
    servicer = DispatcherServicer(core, {VENDOR: 250})
    server = RpcServer(
        [pb.DESCRIPTOR.services_by_name["DispatcherService"].full_name],
        lambda grpc_server: add_DispatcherServiceServicer_to_server(servicer, grpc_server),
        "127.0.0.1:0",
        Authenticator(callers or {}),
        world.environment,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def calling(
    world: World, token: str = "", callers: dict[str, Caller] | None = None
) -> AsyncIterator[dispatcher_pb2_grpc.DispatcherServiceAsyncStub]:
    async with (
        serving(world, callers or (CALLERS if token else None)) as server,
        open_channel(server.address, token) as channel,
    ):
        yield DispatcherServiceStub(channel)


async def test_a_task_is_shown_as_it_stands(world: World) -> None:
    key = await world.task()
    await run_once(world.core())
    task_id = (await world.get(key)).task_id
    async with calling(world) as stub:
        task = (await stub.GetTask(pb.GetTaskRequest(task_id=task_id))).task
    assert task.state == types.TASK_STATE_SUCCEEDED
    assert dict(task.result.scores) == act.SCORES
    assert not task.HasField("wake_at")
    assert (task.vendor, task.pool, task.attempt, task.cost_micros) == (VENDOR, POOL, 1, 7)


@pytest.mark.parametrize("task_id", ["", "nonsense", "0" * 32, "0" * 32 + ".0"])
async def test_a_malformed_task_id_is_named(world: World, task_id: str) -> None:
    async with calling(world) as stub:
        for call in (
            stub.GetTask(pb.GetTaskRequest(task_id=task_id)),
            stub.ResolveUnknown(R(task_id=task_id, resolution=R.RESOLUTION_RETRY)),
        ):
            refused = await refusal(call)
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.fields == ["task_id"]


@pytest.mark.parametrize("identifier", ["", "nonsense", "0" * 31])
async def test_a_timeline_of_a_malformed_id_is_refused(world: World, identifier: str) -> None:
    async with calling(world) as stub:
        refused = await refusal(stub.GetTimeline(pb.GetTimelineRequest(id=identifier)))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["id"])


async def test_an_id_of_nobody_is_not_found(world: World) -> None:
    key = await world.task()
    async with calling(world) as stub:
        for call in (
            stub.GetTask(pb.GetTaskRequest(task_id=NOBODY)),
            stub.GetTimeline(pb.GetTimelineRequest(id=NOBODY)),
            stub.GetTimeline(pb.GetTimelineRequest(id="0" * 32)),
            stub.GetTimeline(pb.GetTimelineRequest(id=f"{key[0]}.99")),
            stub.ResolveUnknown(R(task_id=NOBODY, resolution=R.RESOLUTION_RETRY)),
        ):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")


async def test_another_tenants_id_is_an_id_of_nobody(world: World) -> None:
    core = world.core()
    key = await stuck(world, core)
    task_id = (await world.get(key)).task_id
    async with calling(world, "other") as stub:
        answers = [
            await refusal(call)
            for call in (
                stub.GetTask(pb.GetTaskRequest(task_id=task_id)),
                stub.GetTask(pb.GetTaskRequest(task_id=NOBODY)),
                stub.GetTimeline(pb.GetTimelineRequest(id=task_id)),
                stub.GetTimeline(pb.GetTimelineRequest(id=key[0])),
                stub.ResolveUnknown(R(task_id=task_id, resolution=R.RESOLUTION_RETRY)),
            )
        ]
        assert {each.code for each in answers} == {grpc.StatusCode.NOT_FOUND}
        assert answers[0] == answers[1], "the answer tells whether the id is somebody's"
        listed = await stub.ListUnknown(pb.ListUnknownRequest())
        assert list(listed.tasks) == []
    assert await world.state(key) is State.UNKNOWN
    assert await world.actions(key) == []


async def test_a_list_holds_what_the_caller_may_see(world: World) -> None:
    for tenant in ("acme", "beta", "other"):
        await world.task(tenant_id=tenant)
    shown: dict[str, list[str]] = {}
    for token in ("all", "acme", "both"):
        async with calling(world, token) as stub:
            found = await stub.ListTasks(pb.ListTasksRequest())
            shown[token] = sorted(task.tenant_id for task in found.tasks)
    assert shown == {
        "all": ["acme", "beta", "other"],
        "acme": ["acme"],
        "both": ["acme", "beta"],
    }
    async with calling(world, "both") as stub:
        one = pb.ListTasksRequest(filter=pb.TaskFilter(tenant_id="beta"))
        assert [t.tenant_id for t in (await stub.ListTasks(one)).tasks] == ["beta"]
        foreign = pb.ListTasksRequest(filter=pb.TaskFilter(tenant_id="other"))
        refused = await refusal(stub.ListTasks(foreign))
        assert refused.code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_list_pages_by_key_and_filters(world: World) -> None:
    keys = await world.tasks(5)
    core = world.core(concurrency=2)
    await run_once(core)
    async with calling(world) as stub:
        seen: list[str] = []
        token = ""
        while True:
            page = await stub.ListTasks(pb.ListTasksRequest(page_size=2, page_token=token))
            assert len(page.tasks) <= 2
            assert not any(task.HasField("result") for task in page.tasks), "a list reads results"
            seen += [task.task_id for task in page.tasks]
            token = page.next_page_token
            if not token:
                break
        assert seen == [f"{parent}.{n}" for parent, n in sorted(keys)]
        ready = pb.TaskFilter(state=types.TASK_STATE_READY, pool=POOL)
        found = await stub.ListTasks(pb.ListTasksRequest(filter=ready))
        assert len(found.tasks) == 3
        one = pb.TaskFilter(case_id=keys[0][0])
        assert len((await stub.ListTasks(pb.ListTasksRequest(filter=one))).tasks) == 1


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb.ListTasksRequest(page_size=-1), ["page_size"]),
        (pb.ListTasksRequest(page_size=1001), ["page_size"]),
        (pb.ListTasksRequest(page_token="nonsense"), ["page_token"]),
        (
            pb.ListTasksRequest(filter=pb.TaskFilter(case_id="x", state=99)),  # type: ignore[arg-type]
            ["filter.case_id", "filter.state"],
        ),
    ],
    ids=["negative", "too_large", "token", "filter"],
)
async def test_a_bad_list_is_refused_naming_every_field(
    world: World, request_: pb.ListTasksRequest, fields: list[str]
) -> None:
    async with calling(world) as stub:
        refused = await refusal(stub.ListTasks(request_))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, fields)


async def test_the_operators_queue_pages_oldest_first_with_age_and_cost(world: World) -> None:
    core = world.core()
    keys = []
    for _ in range(3):
        keys.append(await stuck(world, core))
        world.clock.advance(10.0)
    async with calling(world) as stub:
        seen: list[Any] = []
        token = ""
        while True:
            page = await stub.ListUnknown(pb.ListUnknownRequest(page_size=2, page_token=token))
            seen += page.tasks
            token = page.next_page_token
            if not token:
                break
    assert [each.task.task_id for each in seen] == [f"{parent}.{n}" for parent, n in keys]
    assert [each.age_seconds for each in seen] == [30.0, 20.0, 10.0]
    assert {each.cost_at_stake_micros for each in seen} == {250}
    assert all(each.needs_operator for each in seen)


@pytest.mark.parametrize("token", ["x", "1:x", "x:" + NOBODY, "9" * 19 + ":" + NOBODY])
async def test_a_queue_token_of_somebody_elses_making_is_refused(world: World, token: str) -> None:
    async with calling(world) as stub:
        refused = await refusal(stub.ListUnknown(pb.ListUnknownRequest(page_token=token)))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["page_token"])


async def test_a_bad_resolution_names_every_field(world: World) -> None:
    bad = R(resolution=R.RESOLUTION_UNSPECIFIED, operator="o" * 129, note="n" * 1025)
    async with calling(world) as stub:
        refused = await refusal(stub.ResolveUnknown(bad))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.fields == ["task_id", "resolution", "operator", "note"]
        unheard = R(task_id=NOBODY, resolution=7)  # type: ignore[arg-type]
        assert (await refusal(stub.ResolveUnknown(unheard))).fields == ["resolution"]


async def test_a_resolution_not_allowed_in_this_state_says_the_state(world: World) -> None:
    key = await world.task()
    task_id = (await world.get(key)).task_id
    async with calling(world) as stub:
        wish = R(task_id=task_id, resolution=R.RESOLUTION_EXECUTED)
        refused = await refusal(stub.ResolveUnknown(wish))
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (refused.reason, refused.metadata) == ("STATE_FORBIDS", {"state": "READY"})


async def test_an_operator_without_a_name_goes_by_the_callers(world: World) -> None:
    core = world.core()
    key = await stuck(world, core)
    task_id = (await world.get(key)).task_id
    async with calling(world, "all") as stub:
        wish = R(task_id=task_id, resolution=R.RESOLUTION_EXECUTED)
        task = (await stub.ResolveUnknown(wish)).task
    assert task.state == types.TASK_STATE_FAILED
    (action,) = await world.actions(key)
    assert action.actor == "ops"


async def test_roles_are_asked_for(world: World) -> None:
    async with calling(world, "acme") as stub:
        for call in (
            stub.ListPools(pb.ListPoolsRequest()),
            stub.ListUnknown(pb.ListUnknownRequest()),
            stub.ResolveUnknown(R(task_id=NOBODY, resolution=R.RESOLUTION_RETRY)),
        ):
            refused = await refusal(call)
            assert refused.code is grpc.StatusCode.PERMISSION_DENIED
            assert refused.metadata == {"role": "operate"}
    async with calling(world, "submit") as stub:
        refused = await refusal(stub.GetTask(pb.GetTaskRequest(task_id=NOBODY)))
        assert refused.code is grpc.StatusCode.PERMISSION_DENIED
    async with calling(world, "", CALLERS) as stub:
        refused = await refusal(stub.GetTask(pb.GetTaskRequest(task_id=NOBODY)))
        assert refused.code is grpc.StatusCode.UNAUTHENTICATED


async def test_pools_show_their_backlog_by_state(world: World) -> None:
    await world.tasks(3)
    core = world.core(concurrency=1)
    world.gateway.executes = [act.ACCEPTED]
    await run_once(core)
    async with calling(world) as stub:
        (pool,) = (await stub.ListPools(pb.ListPoolsRequest())).pools
    assert (pool.pool, pool.vendor) == (POOL, VENDOR)
    assert (pool.ready, pool.in_flight, pool.accepted, pool.unknown) == (2, 0, 1, 0)
    assert pool.HasField("oldest_ready_at")
    assert not pool.HasField("closed_until")
