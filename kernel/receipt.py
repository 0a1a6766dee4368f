"""Receipts as a set: what is shown is a function of the facts, never of their order.

Receives the receipts of one task. Hands on what they say together (`merge`), and what the task
shows after them (`after_receipts`). Pure. Source: DESIGN sections 7 and 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernel.attempt import RESULT_LOST
from kernel.lifecycle import CLOSED, Mover, State, allowed


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


class Disposition(StrEnum):
    """What a receipt is worth beside the others of its task."""

    APPLIED = "APPLIED"  # it is what the task shows
    STORED = "STORED"  # waits: for the settle of a held task, or for the other executions
    IGNORED_STALE = "IGNORED_STALE"  # says nothing new
    DUPLICATE = "DUPLICATE"  # stored before
    LATE = "LATE"  # evidence for a task that is closed otherwise
    CONFLICT = "CONFLICT"  # contradicts what is shown; listed
    UNMATCHED = "UNMATCHED"  # no such task


@dataclass(frozen=True, slots=True)
class Shown:
    """A task after its receipts. `scores` and `state` are as before where nothing moves.

    `dispositions` by receipt id.
    """

    state: State
    scores: Mapping[str, float] | None
    merged: Merged
    reason: str
    dispositions: Mapping[str, Disposition]


def after_receipts(
    state: State,
    scores: Mapping[str, float] | None,
    possible_duplicates: int,
    receipts: Sequence[ReceiptFact],
) -> Shown:
    """What a task shows after all its receipts: a function of their set (I6).

    A failure is the end only when every execution that there may have been has failed: with
    possible duplicates it waits for the others. A success without its result is a failure
    with RESULT_LOST. Scores that came by receipt are those of the success that the vendor
    dates first, whenever it arrives.
    """
    merged = merge(receipts)
    target = move_for(state, merged)
    reason = merged.reason
    if target is State.FAILED and not _all_failed(receipts, possible_duplicates):
        target = None
    if target is State.SUCCEEDED and merged.scores is None:
        target = None if state in CLOSED else State.FAILED
        reason = RESULT_LOST
    shown = target or state
    if target is State.SUCCEEDED or _came_by_receipt(state, scores, receipts):
        scores = merged.scores
    return Shown(
        shown, scores, merged, reason, _dispose(shown, scores, receipts, moved=target is not None)
    )


def _all_failed(receipts: Iterable[ReceiptFact], possible_duplicates: int) -> bool:
    failed = {r.external_id for r in receipts if r.state is ReceiptState.FAILED}
    return len(failed) > possible_duplicates


def _came_by_receipt(
    state: State, scores: Mapping[str, float] | None, receipts: Iterable[ReceiptFact]
) -> bool:
    successes = [r.scores for r in receipts if r.state is ReceiptState.SUCCEEDED]
    return state is State.SUCCEEDED and scores is not None and scores in successes


def _dispose(
    shown: State,
    scores: Mapping[str, float] | None,
    receipts: Iterable[ReceiptFact],
    *,
    moved: bool,
) -> dict[str, Disposition]:
    told: dict[str, Disposition] = {}
    for fact in sorted(receipts, key=lambda r: (-_RANK[r.state], r.occurred_at, r.receipt_id)):
        worth = _worth(shown, scores, fact)
        told[fact.receipt_id] = worth if moved or worth is not Disposition.APPLIED else _STALE
        moved = moved and worth is not Disposition.APPLIED  # one receipt moves a task
    return told


def _worth(shown: State, scores: Mapping[str, float] | None, fact: ReceiptFact) -> Disposition:
    if shown is State.IN_FLIGHT:
        return Disposition.STORED
    if fact.state.value == shown:
        same = shown is not State.SUCCEEDED or fact.scores == scores
        return Disposition.APPLIED if same else Disposition.CONFLICT
    if fact.state in (ReceiptState.UNMAPPED, ReceiptState.ACCEPTED):
        return _STALE
    if shown is State.SUCCEEDED:
        return Disposition.CONFLICT
    if shown is State.FAILED and fact.scores is None:
        return Disposition.APPLIED  # a success whose result is lost
    # A failure of one execution waits for the others that there may be.
    waits = fact.state is ReceiptState.FAILED and shown not in CLOSED
    return Disposition.STORED if waits else Disposition.LATE


_STALE = Disposition.IGNORED_STALE
