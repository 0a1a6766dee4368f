"""Between protos and the rules' own values: one place for each mapping.

Receives either side, hands on the other. Enum maps derive from the rules' enums by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from kernel.attempt import CallOutcome, CallRequest, OnUnknown, OnUnknownMode, Outcome
from kernel.lifecycle import State
from kernel.store.tasks import Task
from mesh.v1 import types_pb2 as types
from mesh.v1 import vendor_proxy_pb2 as proxy


def timestamp(micros: int | None) -> Timestamp | None:
    """Microseconds since the epoch as a Timestamp; None and 0 are absent."""
    if not micros:
        return None
    stamp = Timestamp()
    stamp.FromMicroseconds(micros)
    return stamp


def micros(message: Any, field: str) -> int:
    """A Timestamp field in microseconds since the epoch, 0 when it is absent or no time at all."""
    if not message.HasField(field):
        return 0
    try:
        return int(getattr(message, field).ToMicroseconds())
    except ValueError:  # its seconds or nanos are out of range
        return 0


def result(scores: Mapping[str, float] | None) -> types.ModelResult | None:
    """A model's scores, absent when there are none."""
    return None if scores is None else types.ModelResult(scores=dict(scores))


def scores(message: Any, field: str = "result") -> dict[str, float] | None:
    """The scores of a message's result, None when it has none."""
    return dict(getattr(message, field).scores) if message.HasField(field) else None


def on_unknown_message(rule: OnUnknown) -> types.OnUnknown:
    """The rule as a message."""
    return types.OnUnknown(
        mode=types.OnUnknown.Mode.Value(f"MODE_{rule.mode}"),
        max_duplicates=rule.max_duplicates,
        max_cost_micros=rule.max_cost_micros,
    )


def on_unknown(message: types.OnUnknown) -> OnUnknown | None:
    """The message as a rule, None when its mode is unspecified or unknown."""
    modes = types.OnUnknown.Mode
    if message.mode not in modes.values() or message.mode == modes.MODE_UNSPECIFIED:
        return None
    mode = OnUnknownMode(modes.Name(message.mode).removeprefix("MODE_"))
    return OnUnknown(mode, message.max_duplicates, message.max_cost_micros)


def call_request_message(request: CallRequest) -> proxy.ExecuteRequest:
    """An Execute."""
    message = proxy.ExecuteRequest(
        tenant_id=request.tenant_id,
        idempotency_key=request.idempotency_key,
        task_id=request.task_id,
        attempt=request.attempt,
        vendor=request.vendor,
        pool=request.pool,
        units=dict(request.units),
        deadline=timestamp(request.deadline),
        max_sends=request.max_sends,
        on_unknown=on_unknown_message(request.on_unknown),
        model_id=request.model_id,
        model_version=request.model_version,
        kind=request.kind,
        granted_sends=request.granted_sends,
    )
    if request.payload_ref:
        message.payload_ref = request.payload_ref
    else:
        message.payload = request.payload
    return message


def call_request(message: proxy.ExecuteRequest) -> CallRequest:
    """An Execute as the rules see it."""
    return CallRequest(
        tenant_id=message.tenant_id,
        idempotency_key=message.idempotency_key,
        vendor=message.vendor,
        pool=message.pool,
        attempt=message.attempt,
        deadline=micros(message, "deadline"),
        max_sends=message.max_sends,
        kind=message.kind,
        model_id=message.model_id,
        model_version=message.model_version,
        task_id=message.task_id,
        payload_ref=message.payload_ref,
        payload=message.payload,
        units=dict(message.units),
        on_unknown=on_unknown(message.on_unknown) or OnUnknown(),
        granted_sends=message.granted_sends,
    )


def call_outcome_message(outcome: CallOutcome) -> proxy.ExecuteResponse:
    """The answer to an Execute."""
    return proxy.ExecuteResponse(
        outcome=proxy.Outcome.Value(f"OUTCOME_{outcome.outcome}"),
        reason=outcome.reason,
        retryable=outcome.retryable,
        result=result(outcome.scores),
        external_id=outcome.external_id,
        retry_after_seconds=outcome.retry_after_seconds,
        replayed=outcome.replayed,
        sends=outcome.sends,
        possible_duplicate=outcome.possible_duplicate,
        possible_duplicates=outcome.possible_duplicates,
        cost_micros=outcome.cost_micros,
        field=outcome.field,
        receipt_due_seconds=outcome.receipt_due_seconds,
        settles_key=outcome.settles_key,
    )


def call_outcome(message: proxy.ExecuteResponse) -> CallOutcome:
    """The answer to an Execute; an outcome that this version does not know is UNKNOWN."""
    name = (
        proxy.Outcome.Name(message.outcome).removeprefix("OUTCOME_")
        if message.outcome in proxy.Outcome.values()
        else ""
    )
    known = name in Outcome.__members__
    return CallOutcome(
        outcome=Outcome(name) if known else Outcome.UNKNOWN,
        reason=message.reason if known else "UNREADABLE_OUTCOME",
        retryable=message.retryable,
        scores=scores(message),
        external_id=message.external_id,
        retry_after_seconds=(
            message.retry_after_seconds if message.HasField("retry_after_seconds") else None
        ),
        replayed=message.replayed,
        sends=message.sends,
        possible_duplicates=message.possible_duplicates,
        cost_micros=message.cost_micros,
        field=message.field,
        receipt_due_seconds=message.receipt_due_seconds,
        settles_key=message.settles_key,
    )


def task_state(state: State) -> types.TaskState.ValueType:
    """The wire's word for a task's state."""
    return types.TaskState.Value(f"TASK_STATE_{state}")


def task_message(task: Task) -> types.Task:
    """A task as callers see it."""
    return types.Task(
        task_id=task.task_id,
        tenant_id=task.tenant_id,
        state=task_state(task.state),
        requirement=types.Requirement.Value(f"REQUIREMENT_{task.requirement}"),
        model_id=task.model_id,
        model_version=task.model_version,
        vendor=task.vendor,
        pool=task.pool,
        attempt=task.attempt,
        sends=task.sends,
        max_sends=task.max_sends,
        deadline=timestamp(task.deadline),
        wake_at=timestamp(task.wake_at),
        reason=task.reason,
        external_id=task.external_id,
        idempotency_key=task.idempotency_key,
        maybe_executed=task.maybe_executed,
        possible_duplicates=task.possible_duplicates,
        cost_micros=task.cost_micros,
        result=result(task.scores),
        positions=task.positions,
        unknown_since=timestamp(task.unknown_since),
        created_at=timestamp(task.created_at),
    )
