"""Receives receipts in any order and number; checks tasks, verdicts and what is told."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from kernel.errors import InvalidArgument
from kernel.lifecycle import CaseState, State
from kernel.receipt import ReceiptState
from kernel.store import receipts as stored
from kernel.store import tasks
from kernel.store.receipts import NewReceipt
from services.aggregator import receipts
from tests import factories
from tests.aggregator.world import World


async def accepted(world: World, *models: str) -> str:
    case_id = await world.case(*models)
    for n in range(1, len(models) + 1):
        await world.settle(case_id, n, State.ACCEPTED)
    return case_id


async def state(world: World, case_id: str, n: int = 1) -> State:
    task = await world.store.read(tasks.get, (case_id, n))
    assert task is not None
    return task.state


async def test_case_6_03_models_count_not_deliveries(world: World) -> None:
    case_id = await accepted(world, "a", "b", "c")
    for n in (1, 1, 1, 2, 2):
        await world.core.apply_receipts([factories.receipt((case_id, n))])
        await world.core.round()
    assert (await world.core.get_case(case_id)).missing == (f"{case_id}.3",)
    assert await world.events() == []
    await asyncio.gather(
        world.core.apply_receipts([factories.receipt((case_id, 3))]),
        world.replica().apply_receipts([factories.receipt((case_id, 3))]),
    )
    await asyncio.gather(world.core.round(), world.replica().round())
    assert (await world.core.get_case(case_id)).state is CaseState.APPROVED
    await world.core.apply_receipts([factories.receipt((case_id, 1))])
    await world.core.round()
    assert len(await world.events()) == 1
    assert await world.events("sluice.late_results") == []
    assert len(await world.decided(case_id)) == 1


@pytest.mark.parametrize(
    ("facts", "final"),
    [
        (("ACCEPTED", "SUCCEEDED"), State.SUCCEEDED),
        (("ACCEPTED", "FAILED"), State.FAILED),
        (("SUCCEEDED", "FAILED"), State.SUCCEEDED),
        (("ACCEPTED", "SUCCEEDED", "FAILED"), State.SUCCEEDED),
        (("ACCEPTED", "UNMAPPED"), State.ACCEPTED),
    ],
)
async def test_case_5_01_i6_every_order_of_receipts_shows_the_same(
    world: World, facts: tuple[str, ...], final: State
) -> None:
    for order in itertools.permutations(facts):
        case_id = await accepted(world, "a")
        batch = [factories.receipt((case_id, 1), ReceiptState(fact)) for fact in order]
        seen: list[State] = []
        for receipt in batch:
            await world.core.apply_receipts([receipt])
            await world.core.apply_receipts([receipt])
            seen.append(await state(world, case_id))
        assert seen[-1] is final, order
        closed = [each for each in seen if each is State.SUCCEEDED]
        assert seen[len(seen) - len(closed) :] == closed, "a success is never taken back"
        history = await world.store.read(stored.listed, case_id)
        assert {row.receipt_id for row in history} == {r.receipt_id for r in batch}


async def test_case_5_04_one_event_told_four_times_moves_once_and_is_told_once(
    world: World,
) -> None:
    case_id = await accepted(world, "a")
    e1, e2, none = (
        factories.receipt((case_id, 1), receipt_id=f"vendor:{name}", occurred_at=1000)
        for name in ("e1", "e2", "content-hash")
    )
    replica = world.replica()
    first = await asyncio.gather(world.core.apply_receipts([e1]), replica.apply_receipts([e2]))
    rest = [*await world.core.apply_receipts([none]), *await world.core.apply_receipts([e1])]
    dispositions = sorted([*first[0], *first[1], *rest])
    assert dispositions == ["APPLIED", "DUPLICATE", "IGNORED_STALE", "IGNORED_STALE"]
    task = await world.store.read(tasks.get, (case_id, 1))
    assert task is not None
    assert (task.state, task.revision) == (State.SUCCEEDED, 4)
    await asyncio.gather(world.core.round(), replica.round())
    assert len(await world.events()) == 1
    assert len(await world.store.read(stored.listed, case_id)) == 3


async def test_a_receipt_of_a_held_task_waits_for_its_settle(world: World) -> None:
    case_id = await world.case("a")
    await world.store.write(factories.claim, (case_id, 1))
    assert await world.core.apply_receipts([factories.receipt((case_id, 1))]) == ["STORED"]
    assert await state(world, case_id) is State.IN_FLIGHT


async def test_a_receipt_that_names_no_task_of_ours_holds_up_no_other(world: World) -> None:
    case_id = await accepted(world, "a")
    unknown = receipts.received(
        receipt_id="r-1", task_id=f"{'0' * 32}.1", state=ReceiptState.SUCCEEDED
    )
    odd = receipts.received(receipt_id="r-2", task_id="../etc", state=ReceiptState.SUCCEEDED)
    good = factories.receipt((case_id, 1))
    told = await world.core.apply_receipts([unknown, odd, good])
    assert told == ["UNMATCHED", "UNMATCHED", "APPLIED"]


async def test_a_batch_larger_than_one_transaction_is_taken_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.core.RECEIPTS_AT_ONCE", 2)
    case_id = await accepted(world, "a", "b", "c")
    batch = [factories.receipt((case_id, n)) for n in (1, 2, 3)]
    assert await world.core.apply_receipts(batch) == ["APPLIED"] * 3
    assert await world.core.apply_receipts(batch) == ["DUPLICATE"] * 3


async def test_a_batch_with_unusable_ids_is_refused_and_every_one_is_named(world: World) -> None:
    case_id = await accepted(world, "a")
    good = factories.receipt((case_id, 1))
    bad = [NewReceipt(name, case_id, 1, ReceiptState.SUCCEEDED) for name in ("", "x" * 129)]
    with pytest.raises(InvalidArgument) as refused:
        await world.core.apply_receipts([good, *bad])
    assert [v.field for v in refused.value.violations] == [
        "receipts[1].receipt_id",
        "receipts[2].receipt_id",
    ]
    assert await state(world, case_id) is State.ACCEPTED


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.5])
async def test_scores_that_no_model_gives_are_kept_out(world: World, score: float) -> None:
    case_id = await accepted(world, "a")
    receipt = receipts.received(
        receipt_id="r",
        task_id=f"{case_id}.1",
        state=ReceiptState.SUCCEEDED,
        scores={"spam": score},
    )
    assert await world.core.apply_receipts([receipt]) == ["IGNORED_STALE"]
    assert await state(world, case_id) is State.ACCEPTED
