"""DispatcherService over gRPC: protos in, protos out, nothing decided here.

Receives requests of authenticated callers. Hands on the core's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel.environment import MICROS_PER_SECOND
from kernel.errors import FieldViolation, InvalidArgument
from kernel.identity import is_parent_id, parse_task_id
from kernel.lifecycle import State
from kernel.runtime import wire
from kernel.runtime.rpc import Caller, current_caller
from kernel.store.tasks import Task
from mesh.v1 import dispatcher_pb2 as pb
from mesh.v1 import types_pb2 as types
from mesh.v1.dispatcher_pb2_grpc import DispatcherServiceServicer
from services.dispatcher.core import DispatcherCore, PoolView
from services.dispatcher.operator import Resolution
from services.dispatcher.timeline import Line

_DEFAULT_PAGE, _MOST_PAGE = 100, 1000
_TOKEN_DIGITS = 18  # of microseconds since the epoch, within 64 bits


class DispatcherServicer(DispatcherServiceServicer):
    """The service's edge."""

    def __init__(self, core: DispatcherCore, prices: Mapping[str, int]) -> None:
        """`prices`: millionths of the currency unit that a call costs, by vendor."""
        self._core = core
        self._prices = dict(prices)

    async def GetTask(self, request: pb.GetTaskRequest, context: Any) -> pb.GetTaskResponse:  # noqa: N802
        """One task."""
        caller = _reader()
        task = await self._core.get_task(request.task_id, caller.tenants)
        return pb.GetTaskResponse(task=wire.task_message(task))

    async def ListTasks(self, request: pb.ListTasksRequest, context: Any) -> pb.ListTasksResponse:  # noqa: N802
        """Tasks by key order."""
        caller = _reader()
        wanted = request.filter
        bad = []
        if wanted.case_id and not is_parent_id(wanted.case_id):
            bad.append(FieldViolation("filter.case_id", "must be 32 lower-case hexadecimal digits"))
        if wanted.state not in types.TaskState.values():
            bad.append(FieldViolation("filter.state", "must be a state of tasks"))
        if bad:
            raise InvalidArgument(*bad)
        if wanted.tenant_id:
            caller.require("read", wanted.tenant_id)
        most = _page_size(request.page_size)
        state = types.TaskState.Name(wanted.state).removeprefix("TASK_STATE_")
        found = await self._core.list_tasks(
            after=_task_token(request.page_token),
            most=most,
            tenant_id=wanted.tenant_id,
            parent_id=wanted.case_id,
            state=state if wanted.state else "",
            pool=wanted.pool,
            tenants=caller.tenants,
        )
        return pb.ListTasksResponse(
            tasks=[wire.task_message(task) for task in found],
            next_page_token=found[-1].task_id if len(found) == most else "",
        )

    async def GetTimeline(  # noqa: N802
        self, request: pb.GetTimelineRequest, context: Any
    ) -> pb.GetTimelineResponse:
        """The story of a case or task."""
        caller = _reader()
        lines = await self._core.story(request.id, caller.tenants)
        return pb.GetTimelineResponse(events=[_event(line) for line in lines])

    async def ListPools(self, request: pb.ListPoolsRequest, context: Any) -> pb.ListPoolsResponse:  # noqa: N802
        """Pools with their backlog."""
        current_caller().require("operate")
        return pb.ListPoolsResponse(pools=[_pool(each) for each in await self._core.list_pools()])

    async def ListUnknown(  # noqa: N802
        self, request: pb.ListUnknownRequest, context: Any
    ) -> pb.ListUnknownResponse:
        """The operator's queue."""
        caller = current_caller()
        caller.require("operate")
        most = _page_size(request.page_size)
        found = await self._core.list_unknown(
            after=_unknown_token(request.page_token), most=most, tenants=caller.tenants
        )
        now = await self._core.now()
        last = found[-1] if len(found) == most else None
        return pb.ListUnknownResponse(
            tasks=[_unknown(task, now, self._prices) for task in found],
            next_page_token=f"{last.unknown_since}:{last.task_id}" if last else "",
        )

    async def ResolveUnknown(  # noqa: N802
        self, request: pb.ResolveUnknownRequest, context: Any
    ) -> pb.ResolveUnknownResponse:
        """An operator's word."""
        caller = current_caller()
        caller.require("operate")
        operator = caller.speaking_for(request.operator)
        kinds = pb.ResolveUnknownRequest
        bad = []
        if parse_task_id(request.task_id) is None:
            bad.append(FieldViolation("task_id", "must be <case id>.<n>"))
        name = (
            kinds.Resolution.Name(request.resolution).removeprefix("RESOLUTION_")
            if request.resolution in kinds.Resolution.values()
            else ""
        )
        if name not in Resolution.__members__:
            bad.append(FieldViolation("resolution", "EXECUTED, NOT_EXECUTED or RETRY"))
        if len(operator.encode()) > 128:
            bad.append(FieldViolation("operator", "at most 128 bytes, caller included"))
        if len(request.note.encode()) > 1024:
            bad.append(FieldViolation("note", "at most 1024 bytes"))
        if bad:
            raise InvalidArgument(*bad)
        task = await self._core.resolve_unknown(
            request.task_id,
            Resolution(name),
            operator,
            request.note,
            caller.tenants,
        )
        return pb.ResolveUnknownResponse(task=wire.task_message(task))


def _reader() -> Caller:
    caller = current_caller()
    caller.require("read")
    return caller


def _page_size(asked: int) -> int:
    if not 0 <= asked <= _MOST_PAGE:
        raise InvalidArgument(FieldViolation("page_size", f"0 to {_MOST_PAGE}"))
    return asked or _DEFAULT_PAGE


def _task_token(token: str) -> tuple[str, int]:
    if not token:
        return ("", 0)
    key = parse_task_id(token)
    if key is None:
        raise InvalidArgument(FieldViolation("page_token", "a token that this service gave"))
    return key


def _unknown_token(token: str) -> tuple[int, str, int]:
    if not token:
        return (0, "", 0)
    since, _, task_id = token.partition(":")
    key = parse_task_id(task_id)
    if key is None or not since.isascii() or not since.isdigit() or len(since) > _TOKEN_DIGITS:
        raise InvalidArgument(FieldViolation("page_token", "a token that this service gave"))
    return (int(since), *key)


def _state(state: State | None) -> types.TaskState.ValueType:
    return wire.task_state(state) if state else types.TASK_STATE_UNSPECIFIED


def _event(line: Line) -> types.TimelineEvent:
    return types.TimelineEvent(
        at=wire.timestamp(line.at),
        kind=line.kind,
        task_id=line.task_id,
        attempt=line.attempt,
        actor=line.actor,
        from_state=_state(line.from_state),
        to_state=_state(line.to_state),
        text=line.text,
        idempotency_key=line.idempotency_key,
        external_id=line.external_id,
        cost_micros=line.cost_micros,
    )


def _pool(view: PoolView) -> pb.Pool:
    return pb.Pool(
        pool=view.name,
        vendor=view.vendor,
        window=view.window,
        ready=view.counts.get(State.READY, 0),
        in_flight=view.counts.get(State.IN_FLIGHT, 0),
        accepted=view.counts.get(State.ACCEPTED, 0),
        retry_wait=view.counts.get(State.RETRY_WAIT, 0),
        unknown=view.counts.get(State.UNKNOWN, 0),
        oldest_ready_at=wire.timestamp(view.oldest_ready_at),
        closed_until=wire.timestamp(view.closed_until),
    )


def _unknown(task: Task, now: int, prices: Mapping[str, int]) -> pb.UnknownTask:
    sends = max(task.sends, 1)
    return pb.UnknownTask(
        task=wire.task_message(task),
        age_seconds=(now - (task.unknown_since or now)) / MICROS_PER_SECOND,
        cost_at_stake_micros=max(task.cost_micros, sends * prices.get(task.vendor, 0)),
        needs_operator=task.needs_operator,
    )
