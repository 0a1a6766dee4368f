"""Receives receipts, in every order and beside settles; checks what they do to a task."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel.attempt import CallOutcome, Outcome, WaitRules
from kernel.lifecycle import Mover, State
from kernel.receipt import ReceiptState
from kernel.retry import Backoff
from kernel.store import markers, receipts
from kernel.store.receipts import NewReceipt
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Store
from services.dispatcher import pipeline
from services.dispatcher.pipeline import Finished
from tests import factories
from tests.store.stores import LEASE, brought_to, claimed, dump, got, move, plan

WAITS = WaitRules(Backoff(), Backoff(), draw=0.5)
few = settings(
    derandomize=True,
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
GOOD = {"spam": 0.1}


def in_state(store: Store, state: State) -> TaskKey:
    (key,) = store.write_now(plan)
    store.write_now(brought_to, key, state)
    store.write_now(lambda tx: markers.delete(tx, markers.of_parent(tx, key[0])))
    return key


def take(store: Store, *arrived: NewReceipt) -> list[str]:
    return store.write_now(receipts.take, arrived)


def settle(store: Store, task: Task, **call: object) -> pipeline.Settled:
    outcome = CallOutcome(**call)  # type: ignore[arg-type]
    return store.write_now(pipeline.settle, [Finished(task, outcome)], WAITS)


# ---- dispositions -----------------------------------------------------------------------

S, F, A, U = (ReceiptState(name) for name in ("SUCCEEDED", "FAILED", "ACCEPTED", "UNMAPPED"))
TABLE = [
    # state of the task, receipt, disposition, state afterwards
    (State.ACCEPTED, S, "APPLIED", State.SUCCEEDED),
    (State.ACCEPTED, F, "APPLIED", State.FAILED),
    (State.ACCEPTED, A, "IGNORED_STALE", State.ACCEPTED),
    (State.ACCEPTED, U, "IGNORED_STALE", State.ACCEPTED),
    (State.UNKNOWN, S, "APPLIED", State.SUCCEEDED),
    (State.UNKNOWN, F, "APPLIED", State.FAILED),
    (State.UNKNOWN, A, "APPLIED", State.ACCEPTED),
    (State.UNKNOWN, U, "IGNORED_STALE", State.UNKNOWN),
    (State.RETRY_WAIT, S, "APPLIED", State.SUCCEEDED),
    (State.RETRY_WAIT, F, "APPLIED", State.FAILED),
    (State.RETRY_WAIT, A, "APPLIED", State.ACCEPTED),
    (State.READY, S, "APPLIED", State.SUCCEEDED),
    (State.PLANNED, S, "LATE", State.PLANNED),
    (State.IN_FLIGHT, S, "STORED", State.IN_FLIGHT),
    (State.IN_FLIGHT, F, "STORED", State.IN_FLIGHT),
    (State.IN_FLIGHT, A, "STORED", State.IN_FLIGHT),
    (State.SUCCEEDED, F, "CONFLICT", State.SUCCEEDED),
    (State.SUCCEEDED, A, "IGNORED_STALE", State.SUCCEEDED),
    (State.FAILED, F, "IGNORED_STALE", State.FAILED),
    (State.FAILED, S, "APPLIED", State.SUCCEEDED),
    (State.EXPIRED, S, "APPLIED", State.SUCCEEDED),
    (State.EXPIRED, F, "LATE", State.EXPIRED),
    (State.CANCELLED, S, "LATE", State.CANCELLED),
    (State.CANCELLED, F, "LATE", State.CANCELLED),
]


@pytest.mark.parametrize(("state", "said", "disposition", "after"), TABLE)
def test_i6_each_receipt_does_to_each_state_what_the_table_says(
    store: Store, state: State, said: ReceiptState, disposition: str, after: State
) -> None:
    key = in_state(store, state)
    arrived = factories.receipt(key, said)
    assert take(store, arrived) == [disposition]
    assert store.read_now(got, key).state is after
    (row,) = store.read_now(receipts.listed, key[0])
    assert (row.receipt_id, row.disposition) == (arrived.receipt_id, disposition)
    told = after is not state or disposition in ("LATE", "CONFLICT")
    assert bool(store.read_now(markers.of_parent, key[0])) is told


def test_case_5_04_a_receipt_is_taken_once_by_its_id(store: Store) -> None:
    key = in_state(store, State.ACCEPTED)
    one = factories.receipt(key, scores=GOOD)
    assert take(store, one, one) == ["APPLIED", "DUPLICATE"]
    before = store.read_now(dump)
    assert take(store, one) == ["DUPLICATE"]
    assert take(store, one, one) == ["DUPLICATE", "DUPLICATE"]
    assert store.read_now(dump) == before


def test_receipts_of_nobody_are_kept_and_hold_nothing_up(store: Store) -> None:
    key = in_state(store, State.ACCEPTED)
    nobody = factories.receipt(("f" * 32, 1))
    assert take(store, nobody, factories.receipt(key)) == ["UNMATCHED", "APPLIED"]
    (row,) = store.read_now(receipts.listed, "f" * 32)
    assert row.disposition == "UNMATCHED"
    assert take(store) == []


def test_a_success_without_its_result_is_a_lost_result(store: Store) -> None:
    key = in_state(store, State.UNKNOWN)
    without = NewReceipt("r-lost", *key, state=ReceiptState.SUCCEEDED)
    take(store, without)
    task = store.read_now(got, key)
    assert (task.state, task.reason, task.maybe_executed) == (State.FAILED, "RESULT_LOST", False)


def test_evidence_clears_the_doubt_and_an_acceptance_keeps_it(store: Store) -> None:
    doubted = in_state(store, State.UNKNOWN)
    take(store, factories.receipt(doubted, ReceiptState.ACCEPTED))
    task = store.read_now(got, doubted)
    assert (task.state, task.maybe_executed) == (State.ACCEPTED, True)
    assert task.wake_at is not None
    take(store, factories.receipt(doubted, ReceiptState.FAILED))
    assert store.read_now(got, doubted).maybe_executed is False


# ---- receipt against settle -------------------------------------------------------------


def test_case_5_02_a_receipt_of_a_held_task_is_stored_and_the_settle_applies_it(
    store: Store,
) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    assert take(store, factories.receipt(key, scores=GOOD)) == ["STORED"]
    # The answer never came: the stored receipt settles the doubt, and nothing is sent again.
    assert settle(store, held, outcome=Outcome.UNKNOWN, reason="RESET", sends=1).changed == 1
    task = store.read_now(got, key)
    assert (task.state, task.scores, task.maybe_executed) == (State.SUCCEEDED, GOOD, False)
    (row,) = store.read_now(receipts.listed, key[0])
    assert row.disposition == "APPLIED"


@pytest.mark.parametrize(
    ("outcome", "said", "after", "disposition"),
    [
        (Outcome.ACCEPTED, S, State.SUCCEEDED, "APPLIED"),
        (Outcome.ACCEPTED, F, State.FAILED, "APPLIED"),
        (Outcome.THROTTLED, S, State.SUCCEEDED, "APPLIED"),
        (Outcome.UNKNOWN, F, State.FAILED, "APPLIED"),
        (Outcome.REJECTED, S, State.SUCCEEDED, "APPLIED"),
        (Outcome.UNKNOWN, U, State.UNKNOWN, "IGNORED_STALE"),
    ],
)
def test_i6_receipt_first_or_settle_first_ends_the_same(
    store: Store, outcome: Outcome, said: ReceiptState, after: State, disposition: str
) -> None:
    ends = []
    for receipt_first in (True, False):
        (key,) = store.write_now(plan)
        held = store.write_now(claimed, key)
        if receipt_first:
            assert take(store, factories.receipt(key, said, scores=GOOD)) == ["STORED"]
            settle(store, held, outcome=outcome, sends=1)
        else:
            settle(store, held, outcome=outcome, sends=1)
            take(store, factories.receipt(key, said, scores=GOOD))
        task = store.read_now(got, key)
        ends.append((task.state, task.scores, task.maybe_executed))
        assert store.read_now(receipts.listed, key[0])[0].disposition == disposition
    assert ends[0] == ends[1]
    assert ends[0][0] is after


def test_a_settle_with_the_same_result_as_a_stored_receipt_has_nothing_to_list(
    store: Store,
) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    take(store, factories.receipt(key, scores=GOOD))
    settle(store, held, outcome=Outcome.COMPLETED, scores=GOOD, sends=1)
    (row,) = store.read_now(receipts.listed, key[0])
    assert row.disposition in ("IGNORED_STALE", "IGNORED_STALE")
    assert store.read_now(receipts.waiting, [key]) == set()


def test_i2_a_result_that_lost_its_fence_settles_a_task_that_nobody_holds(store: Store) -> None:
    (key,) = store.write_now(plan)
    first = store.write_now(claimed, key)
    second = store.write_now(pipeline.take_over, first, "worker-2", LEASE)
    assert second is not None
    settle(store, second, outcome=Outcome.UNKNOWN, sends=1)
    lost = settle(store, first, outcome=Outcome.COMPLETED, scores=GOOD, sends=1, cost_micros=5)
    assert (lost.changed, lost.fenced) == (0, 1)
    task = store.read_now(got, key)
    assert (task.state, task.scores, task.cost_micros) == (State.SUCCEEDED, GOOD, 5)
    (row,) = store.read_now(receipts.listed, key[0])
    assert (row.source, row.disposition) == ("late_attempt", "APPLIED")


def test_i2_a_result_that_lost_its_fence_waits_while_another_holds_the_task(store: Store) -> None:
    (key,) = store.write_now(plan)
    first = store.write_now(claimed, key)
    second = store.write_now(pipeline.take_over, first, "worker-2", LEASE)
    assert second is not None
    settle(store, first, outcome=Outcome.COMPLETED, scores=GOOD, sends=1)
    assert store.read_now(pipeline.has_waiting_receipt, second)
    settle(store, first, outcome=Outcome.COMPLETED, scores=GOOD, sends=1)  # told twice
    settle(store, second, outcome=Outcome.UNKNOWN, sends=1)
    assert store.read_now(got, key).state is State.SUCCEEDED
    assert len(store.read_now(receipts.listed, key[0])) == 1


def test_i3_a_failure_of_one_of_several_possible_executions_waits_for_the_others(
    store: Store,
) -> None:
    (key,) = store.write_now(plan)
    held = store.write_now(claimed, key)
    settle(store, held, outcome=Outcome.UNKNOWN, sends=2, possible_duplicates=1)

    def failed(external_id: str) -> NewReceipt:
        receipt = factories.receipt(key, ReceiptState.FAILED)
        return replace(receipt, external_id=external_id)

    assert take(store, failed("v-1")) == ["STORED"]
    assert take(store, failed("v-1")) == ["STORED"]
    task = store.read_now(got, key)
    assert (task.state, task.maybe_executed) == (State.UNKNOWN, True)
    assert take(store, failed("v-2"))[0] in ("APPLIED", "IGNORED_STALE")
    assert store.read_now(got, key).state is State.FAILED
    told = [row.disposition for row in store.read_now(receipts.listed, key[0])]
    assert sorted(told) == ["APPLIED", "IGNORED_STALE", "IGNORED_STALE"]


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.COMPLETED])
def test_i6_a_refusal_that_lost_its_fence_moves_nothing(store: Store, outcome: Outcome) -> None:
    (key,) = store.write_now(plan)
    first = store.write_now(claimed, key)
    second = store.write_now(pipeline.take_over, first, "worker-2", LEASE)
    assert second is not None
    settle(store, second, outcome=Outcome.COMPLETED, scores=GOOD, sends=1)
    before = store.read_now(got, key)
    settle(store, first, outcome=outcome, sends=1, cost_micros=3)
    assert store.read_now(got, key) == before
    (row,) = store.read_now(receipts.listed, key[0])
    # An attempt that was refused as stale sent nothing; no cost of another is told.
    assert row.vendor_status == outcome
    assert row.cost_micros == (0 if outcome is Outcome.STALE_ATTEMPT else 3)


# ---- a function of the set --------------------------------------------------------------


@st.composite
def said_of(draw: st.DrawFn) -> list[tuple[ReceiptState, float, int]]:
    size = draw(st.integers(1, 4))
    return [
        (
            draw(st.sampled_from(ReceiptState)),
            draw(st.sampled_from([0.0, 0.5])),
            draw(st.integers(0, 2)),
        )
        for _ in range(size)
    ]


def facts_of(key: TaskKey, said: list[tuple[ReceiptState, float, int]]) -> list[NewReceipt]:
    return [
        factories.receipt(
            key,
            state,
            scores={"a": score} if state is ReceiptState.SUCCEEDED else None,
            receipt_id=f"{key[0]}-{at}",
            occurred_at=occurred_at,
        )
        for at, (state, score, occurred_at) in enumerate(said)
    ]


@few
@given(said=said_of(), data=st.data())
def test_i6_the_state_of_a_task_is_the_same_in_every_order_and_grouping(
    store: Store, said: list[tuple[ReceiptState, float, int]], data: st.DataObject
) -> None:
    start = data.draw(st.sampled_from([State.ACCEPTED, State.UNKNOWN, State.RETRY_WAIT]))
    states = set()
    orders = [list(range(len(said))), data.draw(st.permutations(range(len(said))))]
    for order, at_once in itertools.product(orders, (True, False)):
        key = in_state(store, start)
        arrived = facts_of(key, said)
        sequence = [arrived[at] for at in order]
        if at_once:
            take(store, *sequence)
        else:
            for each in sequence:
                take(store, each)
        states.add(store.read_now(got, key).state)
    assert len(states) == 1


@few
@given(said=said_of(), data=st.data())
def test_i6_receipts_around_a_settle_end_the_same_wherever_it_falls(
    store: Store, said: list[tuple[ReceiptState, float, int]], data: st.DataObject
) -> None:
    outcome = data.draw(st.sampled_from([Outcome.ACCEPTED, Outcome.UNKNOWN, Outcome.THROTTLED]))
    states = set()
    for cut in range(len(said) + 1):
        (key,) = store.write_now(plan)
        held = store.write_now(claimed, key)
        arrived = facts_of(key, said)
        if arrived[:cut]:
            assert set(take(store, *arrived[:cut])) == {"STORED"}
        settle(store, held, outcome=outcome, sends=1)
        take(store, *arrived[cut:])
        states.add(store.read_now(got, key).state)
        left = store.read_now(receipts.listed, key[0])
        assert "STORED" not in {row.disposition for row in left}
    assert len(states) == 1


def test_a_receipt_after_a_move_by_somebody_else_moves_what_is_there_now(store: Store) -> None:
    key = in_state(store, State.UNKNOWN)

    store.write_now(move, key, Mover.RESOLVER, State.RETRY_WAIT)
    assert take(store, factories.receipt(key, scores=GOOD)) == ["APPLIED"]
    assert store.read_now(got, key).state is State.SUCCEEDED


@pytest.mark.parametrize(("vendor", "idempotency_key"), [("another", ""), ("", "another")])
def test_a_receipt_of_another_call_is_no_evidence_for_the_task_that_it_names(
    store: Store, vendor: str, idempotency_key: str
) -> None:
    (key,) = store.write_now(plan)
    store.write_now(brought_to, key, State.UNKNOWN)
    receipt = receipts.NewReceipt(
        "stray",
        *key,
        ReceiptState.SUCCEEDED,
        scores={"violence": 0.1},
        vendor=vendor,
        idempotency_key=idempotency_key,
    )
    assert store.write_now(receipts.take, [receipt]) == ["UNMATCHED"]
    assert store.read_now(got, key).state is State.UNKNOWN
    assert store.read_now(receipts.listed, key[0]) == []
