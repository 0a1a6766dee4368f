"""The story of a case or task, derived from what is stored: there is no second event log.

Receives an id. Hands on lines in order of time: accepted, attempts, receipts, decisions,
operator actions. No line holds payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from kernel.errors import NotFound
from kernel.identity import parse_task_id, task_id
from kernel.lifecycle import State
from kernel.store import decisions, moves, parents, receipts, tasks
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `at` in microseconds since the epoch, `cost_micros` in millionths."""

    at: int
    kind: str
    text: str
    task_id: str = ""
    attempt: int = 0
    actor: str = ""
    from_state: State | None = None
    to_state: State | None = None
    idempotency_key: str = ""
    external_id: str = ""
    cost_micros: int = 0


def read(tx: Tx, identifier: str, tenants: frozenset[str] | None = None) -> list[Line]:
    """The lines of a case or a task of these tenants (None: anybody's); raises NotFound."""
    key = parse_task_id(identifier)
    parent_id, n = key or (identifier, 0)
    parent = parents.get(tx, parent_id)
    visible = parent is not None and (tenants is None or parent.tenant_id in tenants)
    if parent is None or not visible or (key and tasks.get(tx, key) is None):
        raise NotFound("There is no case or task with this id.")
    lines = [Line(parent.created_at, "ACCEPTED", "accepted durably", actor="intake")]
    if parent.cancel_requested_at:
        lines.append(
            Line(parent.cancel_requested_at, "CANCEL_REQUESTED", "the caller wants it cancelled")
        )
    lines += [_attempt(row) for row in moves.recorded(tx, parent_id, n)]
    lines += [_receipt(row) for row in receipts.listed(tx, parent_id, n)]
    lines += [
        Line(
            each.decided_at,
            "DECISION",
            f"version {each.version}: {each.outcome} ({each.reason}"
            + (f", {each.rule}" if each.rule else "")
            + f") by policy {each.policy_id} v{each.policy_version}"
            + (f"; {each.note}" if each.note else ""),
            actor=each.decided_by,
        )
        for each in decisions.listed(tx, parent_id)
    ]
    lines += [
        Line(
            row.at,
            "OPERATOR",
            f"{row.action}: {row.note}" if row.note else row.action,
            task_id=task_id(parent_id, row.n) if row.n else "",
            actor=row.actor,
        )
        for row in decisions.actions(tx, parent_id, n)
    ]
    return sorted(lines, key=lambda line: line.at)


def _attempt(row: Row[Any]) -> Line:
    outcome = f"{row.outcome} " if row.outcome else ""
    reason = f"({row.reason})" if row.reason and row.reason != row.outcome else ""
    return Line(
        row.at,
        "ATTEMPT",
        f"{outcome}{reason}".strip(),
        task_id=task_id(row.parent_id, row.n),
        attempt=row.attempt,
        actor=_actor(row),
        from_state=State(row.from_state),
        to_state=State(row.to_state),
        idempotency_key=row.idempotency_key,
        external_id=row.external_id,
        cost_micros=row.cost_micros,
    )


def _actor(row: Row[Any]) -> str:
    """Who moved the task: the mover, and where a process did it, the end of its name."""
    mover = str(row.mover).lower()
    if row.owner in ("", mover):
        return mover
    service, dash, name = row.owner.rpartition("-")
    who = f"of {service}-{name[-6:]}" if dash else str(row.owner)
    return f"{mover} {who}"


def _receipt(row: Row[Any]) -> Line:
    return Line(
        row.received_at,
        "RECEIPT",
        f"{row.source}: {row.vendor_status or row.state} -> {row.disposition}",
        task_id=task_id(row.parent_id, row.n),
        attempt=row.attempt,
        actor=row.source,
        external_id=row.external_id,
        cost_micros=row.cost_micros,
    )
