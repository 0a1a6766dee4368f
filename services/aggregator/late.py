"""Results that came after the decision: found, kept once, told once.

Receives decided parents. Hands on the results that their first decision did not see; the
decision stands. Shadow results never take part, so they are never late either. Source:
DESIGN sections 8 and 12.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from kernel.identity import task_id
from kernel.store import decisions, outbox, parents, receipts, snapshots
from kernel.store.decisions import LateResult
from kernel.store.transaction import Tx

TOPIC = "sluice.late_results"

ATTEMPT = "attempt"
"""The source of a result that a settle brought; else the source of its receipt."""


def find(tx: Tx, since: Mapping[str, int]) -> dict[str, tuple[LateResult, ...]]:
    """Results of decided parents that no decision saw and that are not kept yet, by parent.

    `since`: parent id -> microseconds; older results are not looked at. What was seen is the
    first decision's evidence, not a time: a result may be stored between the read of the set
    and the write of the decision.
    """
    stored = snapshots.results_not_kept(tx, since)
    received = receipts.late_successes(tx, since)
    seen = decisions.seen_first(tx, stored.keys() | {row.parent_id for row in received})
    found: dict[str, dict[int, LateResult]] = {}
    for parent_id, rows in stored.items():
        for row in rows:
            if parent_id in seen and row.child.task_id not in seen[parent_id]:
                found.setdefault(parent_id, {})[row.n] = LateResult(
                    parent_id,
                    row.n,
                    _source(tx, parent_id, row.n),
                    row.child.scores or {},
                    row.result_at or 0,
                )
    for receipt in received:
        key = (receipt.parent_id, receipt.n)
        if key[0] in seen and task_id(*key) not in seen[key[0]]:
            found.setdefault(key[0], {}).setdefault(
                key[1],
                LateResult(*key, receipt.source, orjson.loads(receipt.scores), receipt.received_at),
            )
    return {
        parent_id: tuple(results[n] for n in sorted(results))
        for parent_id, results in found.items()
    }


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
            body = {"case_id": parent_id, "task_id": task_id(parent_id, result.n)}
            told.append((TOPIC, parent_id, {**body, "version": number}))
    outbox.append(tx, told)
    return len(told)


def _source(tx: Tx, parent_id: str, n: int) -> str:
    brought = (r.source for r in receipts.listed(tx, parent_id, n) if r.state == "SUCCEEDED")
    return next(brought, ATTEMPT)
