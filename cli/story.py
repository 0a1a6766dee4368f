"""A timeline as people read it.

Receives the lines that the dispatcher tells of a case or task. Hands on text: when since the
start, which task and attempt, from where to where, who, why, and the keys that a vendor knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel.runtime.rpc import open_channel
from mesh.v1 import dispatcher_pb2, types_pb2
from mesh.v1.dispatcher_pb2_grpc import DispatcherServiceStub


async def fetch(address: str, identifier: str, token: str = "") -> list[str]:
    """The story of a case or task from the dispatcher at `address`."""
    async with open_channel(address, token) as channel:
        answer = await DispatcherServiceStub(channel).GetTimeline(
            dispatcher_pb2.GetTimelineRequest(id=identifier), timeout=10
        )
    return lines(answer.events)


def lines(events: Iterable[types_pb2.TimelineEvent]) -> list[str]:
    """One text line an event, the keys once at the end."""
    told = []
    first = 0
    keys: dict[str, str] = {}
    for event in events:
        at = event.at.ToMicroseconds()
        first = first or at
        told.append(f"+{(at - first) / 1e6:8.3f} s  {_what(event)}")
        if event.idempotency_key:
            keys[event.task_id] = event.idempotency_key
    told += [f"key at the vendor of {task}: {key}" for task, key in sorted(keys.items())]
    return told


def _what(event: types_pb2.TimelineEvent) -> str:
    parts = [event.kind]
    if event.task_id:
        n = event.task_id.rpartition(".")[2]
        parts.append(f"task {n}" + (f" attempt {event.attempt}" if event.attempt else ""))
    if event.to_state:
        parts.append(f"{state_word(event.from_state)} -> {state_word(event.to_state)}")
    parts.append(event.text)
    if event.actor:
        parts.append(f"by {event.actor}")
    if event.external_id:
        parts.append(f"vendor's id {event.external_id}")
    if event.cost_micros:
        parts.append(f"cost {event.cost_micros / 1e6:.6f}")
    return "  ".join(part for part in parts if part)


def state_word(state: types_pb2.TaskState.ValueType) -> str:
    """A task's state as a word."""
    return types_pb2.TaskState.Name(state).removeprefix("TASK_STATE_")
