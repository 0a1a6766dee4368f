"""The one move table of tasks and parents: states, who moves them, and under which condition.

Receives nothing. Hands on `State`, `MOVES`, `CASE_MOVES` and `allowed`; the CHECK
constraints, the enum maps and the diagram in docs/lifecycle.md derive from them.
Source: DESIGN section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a task stands."""

    PLANNED = "PLANNED"  # accepted, not yet due
    READY = "READY"  # due, waits for a permit
    IN_FLIGHT = "IN_FLIGHT"  # leased; the call may be on the wire: the point of no return
    ACCEPTED = "ACCEPTED"  # the vendor holds it; its result is still to come
    RETRY_WAIT = "RETRY_WAIT"  # provably not executed, or retry allowed; waits for its back-off
    UNKNOWN = "UNKNOWN"  # it may have executed, and nobody can prove either
    SUCCEEDED = "SUCCEEDED"  # result stored
    FAILED = "FAILED"  # definite refusal, or budget spent
    EXPIRED = "EXPIRED"  # deadline passed before the point of no return
    CANCELLED = "CANCELLED"  # cancelled before the point of no return


CLOSED = frozenset({State.SUCCEEDED, State.FAILED, State.EXPIRED, State.CANCELLED})
OPEN = frozenset(State) - CLOSED


class Mover(StrEnum):
    """Who makes a move."""

    INTAKE = "INTAKE"
    TIMER = "TIMER"
    CLAIM = "CLAIM"
    SETTLE = "SETTLE"
    TAKEOVER = "TAKEOVER"
    RESOLVER = "RESOLVER"
    RECEIPT = "RECEIPT"
    OPERATOR = "OPERATOR"


@dataclass(frozen=True, slots=True)
class Move:
    """One allowed move. `maybe_executed` is what the task's flag must be; None: either."""

    source: State
    target: State
    mover: Mover
    maybe_executed: bool | None = None


def _moves(
    sources: tuple[State, ...],
    targets: tuple[State, ...],
    movers: tuple[Mover, ...],
    maybe_executed: bool | None = None,
) -> tuple[Move, ...]:
    return tuple(
        Move(source, target, mover, maybe_executed)
        for source in sources
        for target in targets
        for mover in movers
    )


_WAITING = (State.PLANNED, State.READY, State.RETRY_WAIT)
_EVIDENCE = (Mover.RESOLVER, Mover.RECEIPT, Mover.OPERATOR)

MOVES: tuple[Move, ...] = (
    *_moves((State.PLANNED, State.RETRY_WAIT), (State.READY,), (Mover.TIMER,)),
    *_moves(_WAITING, (State.CANCELLED,), (Mover.INTAKE,), maybe_executed=False),
    *_moves(_WAITING, (State.UNKNOWN,), (Mover.INTAKE, Mover.TIMER), maybe_executed=True),
    *_moves(_WAITING, (State.EXPIRED,), (Mover.TIMER,), maybe_executed=False),
    *_moves((State.READY,), (State.CANCELLED,), (Mover.CLAIM,), maybe_executed=False),
    *_moves((State.READY,), (State.UNKNOWN,), (Mover.CLAIM,), maybe_executed=True),
    *_moves((State.READY,), (State.IN_FLIGHT,), (Mover.CLAIM,)),
    *_moves((State.IN_FLIGHT,), (State.ACCEPTED, State.RETRY_WAIT, State.READY), (Mover.SETTLE,)),
    # What may have executed is never called failed: only evidence clears the flag.
    *_moves(
        (State.IN_FLIGHT,), (State.SUCCEEDED, State.FAILED), (Mover.SETTLE,), maybe_executed=False
    ),
    *_moves((State.IN_FLIGHT,), (State.UNKNOWN,), (Mover.SETTLE,), maybe_executed=True),
    *_moves((State.IN_FLIGHT,), (State.IN_FLIGHT,), (Mover.TAKEOVER,), maybe_executed=True),
    # Only after FenceCall said NEVER_BEGUN, which is the evidence that clears the flag.
    *_moves(
        (State.IN_FLIGHT,),
        (State.CANCELLED, State.EXPIRED),
        (Mover.TAKEOVER,),
        maybe_executed=False,
    ),
    *_moves((State.UNKNOWN,), (State.ACCEPTED, State.RETRY_WAIT), _EVIDENCE),
    *_moves((State.UNKNOWN,), (State.SUCCEEDED, State.FAILED), _EVIDENCE, maybe_executed=False),
    # Proved not executed, and no longer wanted.
    *_moves((State.UNKNOWN,), (State.CANCELLED, State.EXPIRED), _EVIDENCE, maybe_executed=False),
    *_moves(
        (State.ACCEPTED,),
        (State.SUCCEEDED, State.FAILED),
        (Mover.RECEIPT, Mover.RESOLVER),
        maybe_executed=False,
    ),
    *_moves((State.ACCEPTED,), (State.UNKNOWN,), (Mover.RESOLVER,), maybe_executed=True),
    # The vendor confirmed a cancel.
    *_moves((State.ACCEPTED,), (State.CANCELLED,), (Mover.RESOLVER,), maybe_executed=False),
    *_moves((State.READY, State.RETRY_WAIT), (State.ACCEPTED,), (Mover.RECEIPT,)),
    *_moves(
        (State.READY, State.RETRY_WAIT),
        (State.SUCCEEDED, State.FAILED),
        (Mover.RECEIPT,),
        maybe_executed=False,
    ),
    # Late adoption: a success that arrives after a failure is the stronger fact.
    *_moves(
        (State.FAILED, State.EXPIRED),
        (State.SUCCEEDED,),
        (Mover.RECEIPT,),
        maybe_executed=False,
    ),
)

_ALLOWED = {
    (move.source, move.target, move.mover, flag)
    for move in MOVES
    for flag in (False, True)
    if move.maybe_executed is None or move.maybe_executed is flag
}


def allowed(source: State, target: State, mover: Mover, *, maybe_executed: bool = False) -> bool:
    """Whether `mover` may take a task from `source` to `target`.

    `maybe_executed` is the task's flag after the evidence that comes with the move.
    """
    return (source, target, mover, maybe_executed) in _ALLOWED


class CaseState(StrEnum):
    """Where a case stands."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    IN_REVIEW = "IN_REVIEW"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CaseMover(StrEnum):
    """Who moves a case."""

    AGGREGATOR = "AGGREGATOR"
    REVIEWER = "REVIEWER"
    REDECIDE = "REDECIDE"


_VERDICTS = (CaseState.APPROVED, CaseState.REJECTED, CaseState.IN_REVIEW)

CASE_MOVES: frozenset[tuple[CaseState, CaseState, CaseMover]] = frozenset(
    [
        (CaseState.PENDING, target, CaseMover.AGGREGATOR)
        for target in CaseState
        if target is not CaseState.PENDING
    ]
    + [
        (CaseState.IN_REVIEW, target, CaseMover.REVIEWER)
        for target in (CaseState.APPROVED, CaseState.REJECTED)
    ]
    + [(source, target, CaseMover.REDECIDE) for source in _VERDICTS for target in _VERDICTS]
)


def case_allowed(source: CaseState, target: CaseState, mover: CaseMover) -> bool:
    """Whether `mover` may take a case from `source` to `target`."""
    return (source, target, mover) in CASE_MOVES
