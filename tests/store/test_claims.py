"""Receives READY tasks on a real store; checks who gets them, in which order, and who does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel.attempt import CallOutcome, Outcome, WaitRules
from kernel.lifecycle import Mover, State
from kernel.retry import Backoff
from kernel.store import closures, moves, parents, receipts, tasks
from kernel.store.dialect import Statement
from kernel.store.tasks import TaskKey
from kernel.store.transaction import Store, Tx
from services.dispatcher import pipeline
from services.dispatcher.pipeline import Finished
from tests import factories
from tests.manual_clock import ManualClock
from tests.store.stores import (
    LEASE,
    SECOND,
    brought_to,
    claimed,
    dump,
    got,
    move,
    plan,
    rows,
)

POOL = "pool-text"
WAITS = WaitRules(Backoff(), Backoff(), draw=0.5)


def claim(store: Store, most: int = 10, owner: str = "worker-1") -> list[TaskKey]:
    held = store.write_now(pipeline.claim, POOL, most, owner, LEASE)
    return [task.key for task in held]


def with_tags(tx: Tx, tags: list[int], priorities: list[str] | None = None) -> list[TaskKey]:
    """READY tasks of one pool with these start tags; they are inserted in this order."""
    keys = []
    for at, tag in enumerate(tags):
        of = factories.parent(tx.now())
        priority = priorities[at] if priorities else "NORMAL"
        child = replace(factories.task(of, 1, "text"), priority=priority)
        factories.add_case(tx, of, [child])
        tx.execute(
            Statement("update tasks set start_tag = :tag where parent_id = :id"), tag=tag, id=of.id
        )
        keys.append((of.id, 1))
    return keys


def test_the_smallest_start_tag_goes_first_whatever_the_order_of_insertion(store: Store) -> None:
    keys = store.write_now(with_tags, [30, 10, 20, 10])
    assert claim(store, 3) == [keys[1], keys[3], keys[2]]
    assert claim(store, 3) == [keys[0]]
    assert claim(store, 3) == []


def test_a_higher_class_goes_first_whatever_its_start_tag(store: Store) -> None:
    keys = store.write_now(with_tags, [1, 2, 3], ["BULK", "CRITICAL", "NORMAL"])
    assert claim(store, 2) == [keys[1], keys[2]]


def test_a_claim_takes_what_it_has_places_for_and_never_from_another_pool(store: Store) -> None:
    keys = store.write_now(plan, ["text", "image", "text2"])
    assert claim(store, 5) == [keys[0]]
    task = store.read_now(got, keys[0])
    assert (task.state, task.owner, task.attempt) == (State.IN_FLIGHT, "worker-1", 1)
    assert store.read_now(got, keys[1]).state is State.READY


def test_a_claimed_task_is_handed_on_as_it_is_stored(store: Store) -> None:
    store.write_now(plan)
    (held,) = store.write_now(pipeline.claim, POOL, 1, "worker-1", LEASE)
    stored = store.read_now(got, held.key)
    assert held == replace(stored, claimed_at=held.claimed_at, wake_at=held.wake_at, reason="")
    assert stored.wake_at is not None
    assert stored.claimed_at is not None
    assert LEASE <= stored.wake_at - stored.claimed_at + SECOND <= LEASE + 2 * SECOND


def test_what_cannot_start_before_its_deadline_is_left_to_the_timer(
    store: Store, clock: ManualClock
) -> None:
    (key,) = store.write_now(plan, seconds=10.0)
    clock.advance(10.0)
    assert claim(store) == []
    assert store.read_now(got, key).state is State.READY
    assert [task.key for task in store.read_now(tasks.due, 5)] == [key]


def test_case_4_11_a_closed_pool_is_not_claimed_from_until_it_opens(
    store: Store, clock: ManualClock
) -> None:
    store.write_now(plan)
    store.write_now(closures.close, POOL, 30 * SECOND)
    store.write_now(closures.close, POOL, 5 * SECOND)  # never shortens
    assert claim(store) == []
    clock.advance(29.9)
    assert claim(store) == []
    clock.advance(0.2)
    assert len(claim(store)) == 1
    assert store.read_now(closures.closed) == {}


def test_i9_a_tombstoned_task_is_cancelled_by_the_claim_and_never_handed_on(store: Store) -> None:
    (wanted,) = store.write_now(plan)
    (unwanted,) = store.write_now(plan)
    assert store.write_now(parents.request_cancel, unwanted[0])
    assert claim(store) == [wanted]
    task = store.read_now(got, unwanted)
    assert (task.state, task.reason, task.attempt) == (State.CANCELLED, "CANCEL_REQUESTED", 0)


def again_ready(tx: Tx) -> TaskKey:
    """A READY task whose earlier send may have executed."""
    (key,) = plan(tx)
    brought_to(tx, key, State.UNKNOWN)
    move(tx, key, Mover.RESOLVER, State.RETRY_WAIT, maybe=True)
    move(tx, key, Mover.TIMER, State.READY, maybe=True)
    return key


def test_i9_a_tombstoned_task_that_may_have_executed_becomes_unknown(store: Store) -> None:
    key = store.write_now(again_ready)
    store.write_now(parents.request_cancel, key[0])
    assert claim(store) == []
    task = store.read_now(got, key)
    assert (task.state, task.maybe_executed) == (State.UNKNOWN, True)
    assert task.unknown_since is not None


def test_a_deadline_makes_a_task_that_may_have_executed_unknown_and_not_expired(
    store: Store,
) -> None:
    key = store.write_now(again_ready)
    (plain,) = store.write_now(plan)

    def expire(tx: Tx) -> None:
        moves.move(tx, [pipeline.expire(got(tx, each), tx.now()) for each in (key, plain)])

    store.write_now(expire)
    assert store.read_now(got, key).state is State.UNKNOWN
    assert store.read_now(got, plain).state is State.EXPIRED


# ---- takeover ---------------------------------------------------------------------------


def test_i2_of_two_takeovers_one_wins_and_the_task_says_it_may_have_executed(
    store: Store,
) -> None:
    (key,) = store.write_now(plan)
    seen = store.write_now(claimed, key)
    first = store.write_now(pipeline.take_over, seen, "worker-2", LEASE)
    second = store.write_now(pipeline.take_over, seen, "worker-3", LEASE)
    assert first is not None
    assert second is None
    task = store.read_now(got, key)
    assert (task.owner, task.attempt, task.maybe_executed) == ("worker-2", 2, True)
    assert (first.owner, first.attempt, first.maybe_executed) == ("worker-2", 2, True)


def test_i2_a_takeover_of_a_task_that_was_settled_meanwhile_changes_nothing(store: Store) -> None:
    (key,) = store.write_now(plan)
    seen = store.write_now(claimed, key)
    store.write_now(move, key, Mover.SETTLE, State.SUCCEEDED, scores={"a": 0.1})
    before = store.read_now(dump)
    assert store.write_now(pipeline.take_over, seen, "worker-2", LEASE) is None
    assert store.read_now(dump) == before


def test_case_2_02_a_worker_that_was_replaced_changes_no_task_and_its_result_is_kept(
    store: Store,
) -> None:
    (key,) = store.write_now(plan)
    first = store.write_now(claimed, key, "worker-1")
    second = store.write_now(pipeline.take_over, first, "worker-2", LEASE)
    assert second is not None
    good = CallOutcome(Outcome.COMPLETED, scores={"a": 0.9}, sends=1, cost_micros=7)
    settled = store.write_now(pipeline.settle, [Finished(second, good)], WAITS)
    assert (settled.changed, settled.fenced) == (1, 0)
    stored = store.read_now(got, key)
    stale = CallOutcome(Outcome.COMPLETED, scores={"a": 0.1}, sends=1, cost_micros=7)
    lost = store.write_now(pipeline.settle, [Finished(first, stale)], WAITS)
    assert (lost.changed, lost.fenced) == (0, 1)
    assert store.read_now(got, key) == stored
    assert (stored.attempt, stored.scores) == (2, {"a": 0.9})
    (late,) = store.read_now(receipts.listed, key[0])
    assert (late.source, late.attempt, late.cost_micros) == ("late_attempt", 1, 7)
    assert late.disposition == "CONFLICT"


# ---- one clock, and one claim -----------------------------------------------------------


def test_case_2_05_only_the_databases_clock_judges_a_lease(
    store: Store, clock: ManualClock
) -> None:
    (key,) = store.write_now(plan, seconds=600.0)
    held = store.write_now(claimed, key)
    store.write_now(moves.renew, [held], 60 * SECOND)
    assert store.read_now(tasks.due, 10) == []
    clock.advance(59.0)
    assert store.read_now(tasks.due, 10) == []
    store.write_now(moves.renew, [held], 60 * SECOND)
    clock.advance(59.0)
    assert store.read_now(tasks.due, 10) == []
    clock.advance(1.0)
    assert [task.key for task in store.read_now(tasks.due, 10)] == [key]


def test_case_7_10_a_task_is_claimed_once_however_often_it_is_asked_for(store: Store) -> None:
    keys = store.write_now(with_tags, list(range(20)))
    taken = [claim(store, 3, f"worker-{at}") for at in range(10)]
    assert sorted(key for batch in taken for key in batch) == sorted(keys)
    assert len(store.read_now(rows, "attempts")) == 20


@pytest.mark.parametrize("state", [s for s in State if s is not State.READY])
def test_only_a_ready_task_is_claimed(store: Store, state: State) -> None:
    (key,) = store.write_now(plan)
    store.write_now(brought_to, key, state)
    assert claim(store) == []
