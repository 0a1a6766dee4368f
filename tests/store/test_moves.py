"""Receives moves on a real store; checks fences, records, markers and what may never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from kernel.lifecycle import CLOSED, OPEN, Mover, State
from kernel.store import markers, moves, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Store, Tx
from tests.store.stores import (
    LEASE,
    SECOND,
    brought_to,
    claimed,
    due_now,
    dump,
    got,
    move,
    plan,
    rows,
    run,
)


def settle_of(task: Task, state: State = State.SUCCEEDED, **more: object) -> moves.TaskMove:
    wake_at = None if state in CLOSED else task.deadline
    return moves.TaskMove(
        task,
        Mover.SETTLE,
        state,
        "",
        wake_at,
        state is State.UNKNOWN,
        **more,  # type: ignore[arg-type]
    )


# ---- fences (I2) ------------------------------------------------------------------------

STALE: list[Callable[[Task], Task]] = [
    lambda held: replace(held, owner="worker-2"),
    lambda held: replace(held, owner=""),
    lambda held: replace(held, attempt=held.attempt - 1),
    lambda held: replace(held, attempt=held.attempt + 1),
    lambda held: replace(held, n=held.n + 1),
]


@pytest.mark.parametrize("stale", STALE)
def test_i2_a_settle_without_the_fence_changes_no_row(
    store: Store, stale: Callable[[Task], Task]
) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    before = store.read_now(dump)
    lost = store.write_now(moves.move, [settle_of(stale(held), scores={"a": 1.0})])
    assert (lost.changed, len(lost.lost)) == (0, 1)
    assert store.read_now(dump) == before


def test_i2_a_settle_of_a_task_that_was_settled_changes_no_row(store: Store) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    assert store.write_now(moves.move, [settle_of(held, scores={"a": 1.0})]).changed == 1
    before = store.read_now(dump)
    for state in (State.SUCCEEDED, State.FAILED, State.RETRY_WAIT, State.UNKNOWN):
        assert store.write_now(moves.move, [settle_of(held, state)]).changed == 0
    assert store.read_now(dump) == before


def test_i2_in_a_batch_only_those_without_a_fence_lose_and_each_is_named(store: Store) -> None:
    keys = store.write_now(plan, ["a", "b", "c", "d"])
    held = [store.write_now(claimed, key) for key in keys]
    batch = [settle_of(task) for task in held]
    batch[1] = settle_of(replace(held[1], owner="worker-2"))
    batch[3] = settle_of(replace(held[3], attempt=7))
    won = store.write_now(moves.move, batch)
    assert won.changed == 2
    assert [lost.task.n for lost in won.lost] == [2, 4]
    states = [task.state for task in store.read_now(tasks.children, keys[0][0])]
    assert states == ["SUCCEEDED", "IN_FLIGHT", "SUCCEEDED", "IN_FLIGHT"]


@pytest.mark.parametrize("stale", STALE)
def test_i2_a_renewal_without_the_fence_renews_nothing(
    store: Store, stale: Callable[[Task], Task]
) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    before = store.read_now(dump)
    assert store.write_now(moves.renew, [stale(held)], 2 * LEASE) == set()
    assert store.read_now(dump) == before


def test_i2_a_renewal_of_a_task_that_is_no_longer_held_renews_nothing(store: Store) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    store.write_now(move, key, Mover.SETTLE, State.RETRY_WAIT)
    before = store.read_now(dump)
    assert store.write_now(moves.renew, [held], LEASE) == set()
    assert store.read_now(dump) == before


def test_a_renewal_counts_from_now_and_names_what_is_still_held(store: Store) -> None:
    keys = store.write_now(plan, ["a", "b"])
    held = [store.write_now(claimed, key) for key in keys]

    def renew(tx: Tx) -> tuple[set[tuple[str, int, int]], int, int | None]:
        before = tx.now()
        kept = moves.renew(tx, [held[0], replace(held[1], owner="other")], 2 * LEASE)
        return kept, before, got(tx, keys[0]).wake_at

    kept, before, wake_at = store.write_now(renew)
    assert kept == {(*keys[0], 1)}
    assert wake_at is not None
    assert before + 2 * LEASE <= wake_at <= before + 2 * LEASE + SECOND
    assert store.write_now(moves.renew, [], LEASE) == set()


# ---- what is recorded -------------------------------------------------------------------


def test_each_move_appends_one_attempt_row_with_its_own_revision(store: Store) -> None:
    (key,) = store.write_now(plan)
    store.write_now(claimed, key)
    store.write_now(move, key, Mover.SETTLE, State.RETRY_WAIT, outcome="THROTTLED")
    store.write_now(move, key, Mover.TIMER, State.READY)
    store.write_now(claimed, key)
    store.write_now(move, key, Mover.SETTLE, State.SUCCEEDED, scores={"a": 0.5}, cost_micros=9)
    recorded = store.read_now(moves.recorded, key[0])
    assert [(r.revision, r.attempt, r.mover, r.from_state, r.to_state) for r in recorded] == [
        (2, 1, "CLAIM", "READY", "IN_FLIGHT"),
        (3, 1, "SETTLE", "IN_FLIGHT", "RETRY_WAIT"),
        (4, 1, "TIMER", "RETRY_WAIT", "READY"),
        (5, 2, "CLAIM", "READY", "IN_FLIGHT"),
        (6, 2, "SETTLE", "IN_FLIGHT", "SUCCEEDED"),
    ]
    last = recorded[-1]
    assert (last.owner, last.vendor, last.cost_micros) == ("worker-1", "vendor-text", 9)
    assert last.idempotency_key == store.read_now(got, key).idempotency_key


TELLS = [State.ACCEPTED, State.UNKNOWN, State.SUCCEEDED, State.FAILED]


@pytest.mark.parametrize("state", [*TELLS, State.RETRY_WAIT, State.READY])
def test_a_move_that_a_verdict_can_depend_on_leaves_one_marker(store: Store, state: State) -> None:
    keys = store.write_now(plan, ["a", "b"])
    held = [store.write_now(claimed, key) for key in keys]
    assert store.read_now(markers.of_parent, keys[0][0]) == []
    maybe = state in (State.UNKNOWN, State.ACCEPTED)
    batch = [replace(settle_of(task, state), maybe_executed=maybe) for task in held]
    store.write_now(moves.move, batch)
    marked = store.read_now(markers.of_parent, keys[0][0])
    assert len(marked) == (1 if state in TELLS else 0)


@pytest.mark.parametrize(
    ("mover", "state"),
    [(Mover.INTAKE, State.CANCELLED), (Mover.TIMER, State.EXPIRED)],
)
def test_closing_a_waiting_task_leaves_a_marker_whoever_does_it(
    store: Store, mover: Mover, state: State
) -> None:
    (key,) = store.write_now(plan)
    store.write_now(move, key, mover, state)
    assert len(store.read_now(markers.of_parent, key[0])) == 1


# ---- the table --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "mover", "target", "maybe"),
    [
        (State.SUCCEEDED, Mover.RECEIPT, State.READY, False),
        (State.SUCCEEDED, Mover.RECEIPT, State.FAILED, False),
        (State.CANCELLED, Mover.RECEIPT, State.SUCCEEDED, False),
        (State.READY, Mover.SETTLE, State.SUCCEEDED, False),
        (State.IN_FLIGHT, Mover.INTAKE, State.CANCELLED, False),
        (State.IN_FLIGHT, Mover.TIMER, State.EXPIRED, False),
        (State.IN_FLIGHT, Mover.SETTLE, State.FAILED, True),
        (State.IN_FLIGHT, Mover.SETTLE, State.UNKNOWN, False),
        (State.RETRY_WAIT, Mover.INTAKE, State.CANCELLED, True),
        (State.RETRY_WAIT, Mover.TIMER, State.EXPIRED, True),
        (State.UNKNOWN, Mover.OPERATOR, State.CANCELLED, True),
    ],
)
def test_i6_a_move_that_the_table_does_not_have_writes_nothing_at_all(
    store: Store, state: State, mover: Mover, target: State, *, maybe: bool
) -> None:
    (key, other) = store.write_now(plan, ["a", "b"])
    task = store.write_now(brought_to, key, state)
    held = store.write_now(claimed, other)
    before = store.read_now(dump)
    wake_at = None if target in CLOSED else task.deadline
    forbidden = moves.TaskMove(task, mover, target, "", wake_at, maybe)
    with pytest.raises(moves.ForbiddenMoveError, match=f"{mover}.*{state}.*{target}"):
        store.write_now(moves.move, [settle_of(held), forbidden])
    assert store.read_now(dump) == before


def test_two_moves_of_one_task_in_a_batch_are_refused_as_a_whole(store: Store) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    before = store.read_now(dump)
    with pytest.raises((moves.ForbiddenMoveError, IntegrityError)):
        store.write_now(moves.move, [settle_of(held), settle_of(held, State.FAILED)])
    assert store.read_now(dump) == before


# ---- columns that only rise, and those that follow the state ----------------------------


def test_i10_sends_duplicates_and_cost_only_rise(store: Store) -> None:
    (key,) = store.write_now(plan)
    counts = [(3, 1, 500), (1, 0, 100), (4, 2, 600)]
    seen = []
    for sends, duplicates, cost in counts:
        store.write_now(claimed, key)
        store.write_now(
            move,
            key,
            Mover.SETTLE,
            State.READY,
            sends=sends,
            possible_duplicates=duplicates,
            cost_micros=cost,
        )
        task = store.read_now(got, key)
        seen.append((task.sends, task.possible_duplicates, task.cost_micros))
    assert seen == [(3, 1, 500), (3, 1, 500), (4, 2, 600)]


def test_an_external_id_and_scores_stay_where_a_move_brings_none(store: Store) -> None:
    (key,) = store.write_now(plan)
    store.write_now(claimed, key)
    store.write_now(move, key, Mover.SETTLE, State.ACCEPTED, maybe=True, external_id="v-1")
    store.write_now(move, key, Mover.RECEIPT, State.SUCCEEDED, scores={"a": 0.5})
    task = store.read_now(got, key)
    assert (task.external_id, task.scores) == ("v-1", {"a": 0.5})
    assert task.result_at is not None


def test_unknown_since_is_set_on_the_way_in_and_cleared_on_the_way_out(store: Store) -> None:
    (key,) = store.write_now(plan)
    store.write_now(claimed, key)

    def to_unknown(tx: Tx) -> tuple[int, Task]:
        return tx.now(), move(tx, key, Mover.SETTLE, State.UNKNOWN, maybe=True)

    before, task = store.write_now(to_unknown)
    assert task.unknown_since is not None
    assert before <= task.unknown_since <= before + SECOND
    store.write_now(
        moves.linger, task, Mover.RESOLVER, wake_at=before + 9 * SECOND, tries=1, reason="TOO_EARLY"
    )
    assert store.read_now(got, key).unknown_since == task.unknown_since
    store.write_now(move, key, Mover.RESOLVER, State.RETRY_WAIT)
    assert store.read_now(got, key).unknown_since is None


@pytest.mark.parametrize("state", [*State])
def test_a_row_is_closed_exactly_when_its_wake_at_is_null(store: Store, state: State) -> None:
    (key,) = store.write_now(plan)
    task = store.write_now(brought_to, key, state)
    assert task.state is state
    assert (task.wake_at is None) is (state in CLOSED)
    wrong = "wake_at = null" if state in OPEN else "wake_at = 1"
    with pytest.raises(DBAPIError, match=r"(?i)constraint"):
        store.write_now(run, f"update tasks set {wrong}")
    assert store.read_now(got, key) == task


@pytest.mark.parametrize(
    "assignment",
    [
        "state = 'DONE'",
        "requirement = 'MAYBE'",
        "unknown_since = 1",
        "state = 'UNKNOWN'",
        "state = 'SUCCEEDED'",
    ],
)
def test_i6_the_schema_refuses_a_row_that_no_move_makes(store: Store, assignment: str) -> None:
    store.write_now(plan)
    with pytest.raises(DBAPIError, match=r"(?i)constraint"):
        store.write_now(run, f"update tasks set {assignment}")


@pytest.mark.parametrize("assignment", ["state = 'DONE'", "wake_at = null", "state = 'APPROVED'"])
def test_the_schema_refuses_a_parent_that_no_decision_makes(store: Store, assignment: str) -> None:
    store.write_now(plan)
    with pytest.raises(DBAPIError, match=r"(?i)constraint"):
        store.write_now(run, f"update parents set {assignment}")


# ---- the one scan that finds everything -------------------------------------------------


@pytest.mark.parametrize("state", [*State])
def test_i7_the_due_scan_finds_every_open_state_and_no_closed_one(
    store: Store, state: State
) -> None:
    (key,) = store.write_now(plan)
    store.write_now(brought_to, key, state)
    assert store.read_now(tasks.due, 10) == []
    if state in CLOSED:
        return
    store.write_now(due_now, key)
    assert [task.key for task in store.read_now(tasks.due, 10)] == [key]


def test_a_reserved_row_is_left_alone_until_its_wait_is_over(store: Store) -> None:
    (key,) = store.write_now(plan)
    store.write_now(brought_to, key, State.UNKNOWN)
    store.write_now(due_now, key)
    (task,) = store.read_now(tasks.due, 10)
    store.write_now(moves.reserve, [task], 5 * SECOND)
    assert store.read_now(tasks.due, 10) == []
    reserved = store.read_now(got, key)
    # A second one that saw the same row comes too late: it does not push the event on.
    store.write_now(moves.reserve, [task], 500 * SECOND)
    assert store.read_now(got, key).wake_at == reserved.wake_at
    assert reserved.revision == task.revision
    assert store.read_now(rows, "change_markers") != []


def test_lingering_is_refused_when_the_task_moved_meanwhile(store: Store) -> None:
    (key,) = store.write_now(plan)
    seen = store.write_now(brought_to, key, State.UNKNOWN)
    store.write_now(move, key, Mover.RECEIPT, State.SUCCEEDED, scores={"a": 0.1})
    before = store.read_now(dump)
    assert not store.write_now(
        moves.linger, seen, Mover.RESOLVER, wake_at=1, tries=9, reason="TOO_EARLY"
    )
    assert store.read_now(dump) == before
