"""Results that came after the decision: found, kept once, told once.

Receives a decided parent. Hands on the results that its first decision did not see; the
decision stands. Shadow results never take part, so they are never late either. Source:
DESIGN sections 8 and 12.
"""

from __future__ import annotations

import orjson

from kernel.decision import Requirement
from kernel.store import decisions, outbox, parents, receipts, snapshots, tasks
from kernel.store.decisions import LateResult
from kernel.store.parents import Parent
from kernel.store.transaction import Tx

TOPIC = "sluice.late_results"

ATTEMPT = "attempt"
"""The source of a result that a settle brought; else the source of its receipt."""


def find(tx: Tx, parent: Parent, since: int) -> tuple[LateResult, ...]:
    """Results stored at `since` (microseconds) or later that no decision saw, and not kept yet.

    What was seen is the first decision's evidence, not a time: a result may be stored
    between the read of the set and the write of the decision.
    """
    decided = decisions.first(tx, parent.id)
    if decided is None:
        return ()
    seen = {evidence.task_id for evidence in decided.evidence}
    kept = {late.n for late in decisions.late_results(tx, parent.id)}
    found: dict[int, LateResult] = {}
    for row in snapshots.results_since(tx, parent.id, since):
        child = row.child
        if child.requirement is Requirement.SHADOW or child.task_id in seen or row.n in kept:
            continue
        if child.scores is not None:
            source = _source(tx, parent.id, row.n)
            found[row.n] = LateResult(
                parent.id, row.n, source, child.scores, row.result_at or parent.deadline
            )
    for receipt in receipts.late_successes(tx, parent.id):
        if receipt.n in kept or receipt.n in found:
            continue
        task = tasks.get(tx, (parent.id, receipt.n))
        if task is None or task.requirement is Requirement.SHADOW or task.task_id in seen:
            continue
        found[receipt.n] = LateResult(
            parent.id,
            receipt.n,
            receipt.source,
            orjson.loads(receipt.scores),
            receipt.received_at,
        )
    return tuple(found[n] for n in sorted(found))


def keep(tx: Tx, results: tuple[LateResult, ...]) -> int:
    """Keep results of one parent, each with its one event; returns how many were new.

    The event's version is the result's number among the parent's late ones: it rises.
    """
    if not results:
        return 0
    parent_id = results[0].parent_id
    parents.lock(tx, parent_id)
    told = []
    for result in results:
        number = decisions.keep_late(tx, result)
        if number:
            task_id = f"{parent_id}.{result.n}"
            told.append(
                (TOPIC, parent_id, {"case_id": parent_id, "task_id": task_id, "version": number})
            )
    outbox.append(tx, told)
    return len(told)


def _source(tx: Tx, parent_id: str, n: int) -> str:
    brought = (r.source for r in receipts.listed(tx, parent_id, n) if r.state == "SUCCEEDED")
    return next(brought, ATTEMPT)
