"""Receipts as a set: what is shown is a function of the facts, never of their order.

Receives the receipts of one call. Hands on what they say together (`merge`), and the move
that follows for a task in a given state (`move_for`). Pure. Source: DESIGN sections 7, 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kernel.lifecycle import Mover, State, allowed


class ReceiptState(StrEnum):
    """A vendor's word, translated by its status map."""

    ACCEPTED = "ACCEPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNMAPPED = "UNMAPPED"  # stored, counted, shown; moves nothing


@dataclass(frozen=True, slots=True)
class ReceiptFact:
    """One receipt. `occurred_at` is the vendor's own time in microseconds."""

    receipt_id: str
    state: ReceiptState
    occurred_at: int
    scores: Mapping[str, float] | None = None
    external_id: str = ""
    reason: str = ""
    cost_micros: int = 0


@dataclass(frozen=True, slots=True)
class Merged:
    """What a set of receipts says together; `state` None: nothing that moves a task."""

    state: State | None
    scores: Mapping[str, float] | None = None
    external_id: str = ""
    reason: str = ""
    cost_micros: int = 0
    conflict: bool = False


_RANK = {
    ReceiptState.UNMAPPED: 0,
    ReceiptState.ACCEPTED: 1,
    ReceiptState.FAILED: 2,
    ReceiptState.SUCCEEDED: 3,
}


def merge(receipts: Iterable[ReceiptFact]) -> Merged:
    """The union of distinct facts, by rank ACCEPTED < FAILED < SUCCEEDED.

    A success beside a failure shows the success and flags a conflict; of two successes
    the one that the vendor dates first is shown, ids breaking ties.
    """
    facts = sorted(receipts, key=lambda r: (-_RANK[r.state], r.occurred_at, r.receipt_id))
    if not facts or facts[0].state is ReceiptState.UNMAPPED:
        return Merged(None)
    first = facts[0]
    states = {r.state for r in facts}
    successes = [r.scores for r in facts if r.state is ReceiptState.SUCCEEDED]
    conflict = {ReceiptState.SUCCEEDED, ReceiptState.FAILED} <= states or any(
        scores != successes[0] for scores in successes
    )
    return Merged(
        State(first.state.value),
        first.scores,
        next((r.external_id for r in facts if r.external_id), ""),
        first.reason,
        max(r.cost_micros for r in facts),
        conflict,
    )


def move_for(state: State, merged: Merged) -> State | None:
    """Where the merged receipts take a task that stands in `state`; None: it stays.

    A held task (IN_FLIGHT) stays: its settle reads the stored receipts.
    """
    if merged.state is None or state is State.IN_FLIGHT:
        return None
    if allowed(state, merged.state, Mover.RECEIPT, maybe_executed=False):
        return merged.state
    return None
