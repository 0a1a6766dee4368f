"""Receives the move table of DESIGN section 2, written out here by hand; checks every move."""

from __future__ import annotations

import itertools

import pytest

from kernel.lifecycle import (
    CASE_MOVES,
    CLOSED,
    MOVES,
    OPEN,
    CaseMover,
    CaseState,
    Mover,
    State,
    allowed,
    case_allowed,
)

# from | to | by | the flag `maybe_executed` after the evidence that comes with the move.
TABLE = """
PLANNED RETRY_WAIT              | READY                        | TIMER                     | any
PLANNED READY RETRY_WAIT        | CANCELLED                    | INTAKE                    | no
PLANNED READY RETRY_WAIT        | UNKNOWN                      | INTAKE TIMER              | yes
PLANNED READY RETRY_WAIT        | EXPIRED                      | TIMER                     | no
READY                           | CANCELLED                    | CLAIM                     | no
READY                           | UNKNOWN                      | CLAIM                     | yes
READY                           | IN_FLIGHT                    | CLAIM                     | any
IN_FLIGHT                       | SUCCEEDED FAILED             | SETTLE                    | no
IN_FLIGHT                       | ACCEPTED RETRY_WAIT READY    | SETTLE                    | any
IN_FLIGHT                       | UNKNOWN                      | SETTLE                    | yes
IN_FLIGHT                       | IN_FLIGHT                    | TAKEOVER                  | yes
IN_FLIGHT                       | CANCELLED EXPIRED            | TAKEOVER                  | no
UNKNOWN                         | SUCCEEDED FAILED             | RESOLVER RECEIPT OPERATOR | no
UNKNOWN                         | ACCEPTED RETRY_WAIT          | RESOLVER RECEIPT OPERATOR | any
UNKNOWN                         | CANCELLED EXPIRED            | RESOLVER RECEIPT OPERATOR | no
ACCEPTED                        | SUCCEEDED FAILED             | RESOLVER RECEIPT          | no
ACCEPTED                        | UNKNOWN                      | RESOLVER                  | yes
ACCEPTED                        | CANCELLED                    | RESOLVER                  | no
READY RETRY_WAIT                | SUCCEEDED FAILED             | RECEIPT                   | no
READY RETRY_WAIT                | ACCEPTED                     | RECEIPT                   | any
FAILED EXPIRED                  | SUCCEEDED                    | RECEIPT                   | no
"""
FLAGS = {"any": (False, True), "yes": (True,), "no": (False,)}

WRITTEN = {
    (State(source), State(target), Mover(mover), flag)
    for line in TABLE.strip().splitlines()
    for sources, targets, movers, flags in [[part.strip() for part in line.split("|")]]
    for source in sources.split()
    for target in targets.split()
    for mover in movers.split()
    for flag in FLAGS[flags]
}

CASE_TABLE = {
    *((CaseState.PENDING, to, CaseMover.AGGREGATOR) for to in CaseState if to != "PENDING"),
    (CaseState.IN_REVIEW, CaseState.APPROVED, CaseMover.REVIEWER),
    (CaseState.IN_REVIEW, CaseState.REJECTED, CaseMover.REVIEWER),
    (CaseState.APPROVED, CaseState.REJECTED, CaseMover.REDECIDE),
    (CaseState.APPROVED, CaseState.IN_REVIEW, CaseMover.REDECIDE),
    (CaseState.REJECTED, CaseState.APPROVED, CaseMover.REDECIDE),
    (CaseState.REJECTED, CaseState.IN_REVIEW, CaseMover.REDECIDE),
    (CaseState.IN_REVIEW, CaseState.APPROVED, CaseMover.REDECIDE),
    (CaseState.IN_REVIEW, CaseState.REJECTED, CaseMover.REDECIDE),
    # A new decision version may say the same again.
    (CaseState.APPROVED, CaseState.APPROVED, CaseMover.REDECIDE),
    (CaseState.REJECTED, CaseState.REJECTED, CaseMover.REDECIDE),
    (CaseState.IN_REVIEW, CaseState.IN_REVIEW, CaseMover.REDECIDE),
}


@pytest.mark.parametrize("maybe_executed", [False, True])
@pytest.mark.parametrize("mover", Mover)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(State, State)))
def test_i6_a_move_is_allowed_exactly_where_the_table_has_it(
    source: State, target: State, mover: Mover, *, maybe_executed: bool
) -> None:
    expected = (source, target, mover, maybe_executed) in WRITTEN
    assert allowed(source, target, mover, maybe_executed=maybe_executed) is expected


def test_the_table_names_every_state_and_every_mover() -> None:
    assert {state for row in WRITTEN for state in row[:2]} == set(State)
    assert {row[2] for row in WRITTEN} == set(Mover)
    assert len(MOVES) == len({(m.source, m.target, m.mover, m.maybe_executed) for m in MOVES})


@pytest.mark.parametrize("move", MOVES, ids=lambda m: f"{m.source}-{m.target}-{m.mover}")
def test_i6_nothing_is_closed_or_called_failed_while_it_may_have_executed(move: object) -> None:
    source, target, mover = (getattr(move, name) for name in ("source", "target", "mover"))
    if target in CLOSED:
        assert not allowed(source, target, mover, maybe_executed=True)


@pytest.mark.parametrize("state", State)
def test_every_open_state_has_an_exit_and_a_closed_one_leaves_by_late_success_alone(
    state: State,
) -> None:
    exits = {target for source, target, _, _ in WRITTEN if source is state}
    if state in OPEN:
        assert exits
    else:
        assert exits <= {State.SUCCEEDED}


def test_open_and_closed_states_part_the_states() -> None:
    assert {State(name) for name in ("SUCCEEDED", "FAILED", "EXPIRED", "CANCELLED")} == CLOSED
    assert set(State) == OPEN | CLOSED
    assert not OPEN & CLOSED


@pytest.mark.parametrize("mover", CaseMover)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(CaseState, CaseState)))
def test_a_case_moves_exactly_as_its_table_says(
    source: CaseState, target: CaseState, mover: CaseMover
) -> None:
    assert case_allowed(source, target, mover) is ((source, target, mover) in CASE_TABLE)


def test_case_moves_hold_nothing_beside_the_table() -> None:
    assert set(CASE_MOVES) == CASE_TABLE
