"""Cancelling records the wish once, stops what waits, and says truthfully what it did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernel.errors import InvalidArgument, NotAllowedInState, NotFound
from kernel.lifecycle import CaseState, Mover, State
from kernel.store import markers, moves, parents, tasks
from kernel.store.moves import TaskMove
from kernel.store.parents import Parent
from kernel.store.tasks import Task
from kernel.store.transaction import CommitInDoubtError
from services.intake.cancellation import CancelAnswer, CancelledTask
from tests.intake.test_submit import LosingStore
from tests.intake.world import World, open_world, text_content


def anyone(tenant_id: str) -> bool:
    return True


async def submitted(world: World) -> str:
    return (await world.core.submit(text_content())).case_id


async def stored(world: World, case_id: str) -> Parent:
    case = await world.store.read(parents.get, case_id)
    assert case is not None
    return case


# The way of a task to each state, as its movers take it: (mover, to, wake ahead, flag).
_CLAIM = (Mover.CLAIM, State.IN_FLIGHT, 30, False)
_LOST = (Mover.SETTLE, State.UNKNOWN, 0, True)
WAYS: dict[str, list[tuple[Mover, State, int | None, bool]]] = {
    "READY": [],
    "RETRY_WAIT": [_CLAIM, (Mover.SETTLE, State.RETRY_WAIT, 5, False)],
    "RETRY_WAIT maybe": [_CLAIM, _LOST, (Mover.RESOLVER, State.RETRY_WAIT, 5, True)],
    "READY maybe": [
        _CLAIM,
        _LOST,
        (Mover.RESOLVER, State.RETRY_WAIT, 5, True),
        (Mover.TIMER, State.READY, 300, True),
    ],
    "UNKNOWN": [_CLAIM, _LOST],
    "IN_FLIGHT": [_CLAIM],
    "ACCEPTED": [_CLAIM, (Mover.SETTLE, State.ACCEPTED, 60, True)],
    "SUCCEEDED": [_CLAIM, (Mover.SETTLE, State.SUCCEEDED, None, False)],
    "FAILED": [_CLAIM, (Mover.SETTLE, State.FAILED, None, False)],
    "EXPIRED": [(Mover.TIMER, State.EXPIRED, None, False)],
}


async def lead(world: World, case_id: str, n: int, way: str) -> Task:
    for mover, state, wake, maybe in WAYS[way]:
        task = await world.store.read(tasks.get, (case_id, n))
        assert task is not None
        wake_at = None if wake is None else world.ahead(wake)
        move = TaskMove(task, mover, state, "", wake_at, maybe)
        assert (await world.store.write(moves.move, [move])).changed == 1
    task = await world.store.read(tasks.get, (case_id, n))
    assert task is not None
    return task


@pytest.mark.parametrize(
    ("way", "answer", "state"),
    [
        ("READY", CancelAnswer.CANCELLED, State.CANCELLED),
        ("RETRY_WAIT", CancelAnswer.CANCELLED, State.CANCELLED),
        ("RETRY_WAIT maybe", CancelAnswer.UNKNOWN, State.UNKNOWN),
        ("READY maybe", CancelAnswer.UNKNOWN, State.UNKNOWN),
        ("UNKNOWN", CancelAnswer.UNKNOWN, State.UNKNOWN),
        ("IN_FLIGHT", CancelAnswer.TOO_LATE, State.IN_FLIGHT),
        ("ACCEPTED", CancelAnswer.TOO_LATE, State.ACCEPTED),
        ("SUCCEEDED", CancelAnswer.TOO_LATE, State.SUCCEEDED),
        ("FAILED", CancelAnswer.TOO_LATE, State.FAILED),
        ("EXPIRED", CancelAnswer.TOO_LATE, State.EXPIRED),
    ],
)
async def test_i9_each_task_is_answered_by_where_it_stood(
    world: World, way: str, answer: CancelAnswer, state: State
) -> None:
    case_id = await submitted(world)
    before = await lead(world, case_id, 1, way)
    world.clock.advance(1)

    cancelled = await world.core.cancel(case_id, anyone)

    assert cancelled.state is CaseState.PENDING
    assert cancelled.tasks == (
        CancelledTask(f"{case_id}.1", answer, state),
        CancelledTask(f"{case_id}.2", CancelAnswer.CANCELLED, State.CANCELLED),
    )
    after = (await world.children(case_id))[0]
    if after.state is before.state:
        # What is at a vendor, or may be, is looked at now: a vendor that can cancel is asked.
        hastened = state in (State.ACCEPTED, State.UNKNOWN)
        assert after == (replace(before, wake_at=world.now()) if hastened else before)
    elif after.state is State.UNKNOWN:
        assert (after.wake_at, after.reason) == (world.now(), "CANCEL_REQUESTED")
        assert after.maybe_executed
    else:
        assert (after.wake_at, after.reason) == (None, "CANCEL_REQUESTED")


async def test_i9_what_is_cancelled_before_in_flight_can_never_be_claimed(world: World) -> None:
    case_id = await submitted(world)
    await world.core.cancel(case_id, anyone)
    for pool in ("text", "tone"):
        assert await world.store.write(tasks.next_ready, pool, "NORMAL", 10) == []
    for task in await world.children(case_id):
        claim = TaskMove(task, Mover.CLAIM, State.IN_FLIGHT, "", world.ahead(30), False)
        with pytest.raises(moves.ForbiddenMoveError):
            await world.store.write(moves.move, [claim])
    assert [row.mover for row in await world.store.read(moves.recorded, case_id)] == ["INTAKE"] * 2


async def test_the_wish_is_recorded_once_and_marked_for_the_aggregator(world: World) -> None:
    case_id = await submitted(world)
    await lead(world, case_id, 1, "IN_FLIGHT")
    await lead(world, case_id, 2, "IN_FLIGHT")
    first = await world.core.cancel(case_id, anyone)
    asked_at = (await stored(world, case_id)).cancel_requested_at
    assert asked_at == world.now()
    # Nothing moved, and still the aggregator must look at the case.
    assert list(await world.store.read(markers.oldest, 10)) == [case_id]
    assert [topic for topic, _, _ in world.wakeups.told] == ["sluice.changed"]

    world.clock.advance(5)
    assert await world.core.cancel(case_id, anyone) == first
    again = await stored(world, case_id)
    assert (again.cancel_requested_at, again.version) == (asked_at, 2)


async def test_cancelling_twice_answers_the_same(world: World) -> None:
    case_id = await submitted(world)
    first = await world.core.cancel(case_id, anyone)
    children = await world.children(case_id)
    assert await world.core.cancel(case_id, anyone) == first
    assert await world.children(case_id) == children


async def test_cancelling_a_cancelled_case_answers_its_state(world: World) -> None:
    case_id = await submitted(world)
    first = await world.core.cancel(case_id, anyone)
    case = await stored(world, case_id)
    await world.store.write(parents.decide, case, CaseState.CANCELLED, any_time=True)
    again = await world.core.cancel(case_id, anyone)
    assert (again.state, again.tasks) == (CaseState.CANCELLED, first.tasks)


async def test_a_second_cancel_stops_what_came_back_from_a_vendor_since_the_first(
    world: World,
) -> None:
    case_id = await submitted(world)
    task = await lead(world, case_id, 1, "IN_FLIGHT")
    assert (await world.core.cancel(case_id, anyone)).tasks[0].answer is CancelAnswer.TOO_LATE
    back = TaskMove(task, Mover.SETTLE, State.RETRY_WAIT, "THROTTLED", world.ahead(5), False)
    await world.store.write(moves.move, [back])
    assert (await world.core.cancel(case_id, anyone)).tasks[0].answer is CancelAnswer.CANCELLED


@pytest.mark.parametrize(
    "state", [CaseState.APPROVED, CaseState.REJECTED, CaseState.IN_REVIEW, CaseState.FAILED]
)
async def test_a_case_with_a_verdict_is_not_cancelled_and_its_state_is_told(
    world: World, state: CaseState
) -> None:
    case_id = await submitted(world)
    await world.store.write(parents.decide, await stored(world, case_id), state)
    with pytest.raises(NotAllowedInState) as refused:
        await world.core.cancel(case_id, anyone)
    assert refused.value.metadata == {"state": state.value}
    assert {t.state for t in await world.children(case_id)} == {State.READY}
    assert (await stored(world, case_id)).cancel_requested_at is None


async def test_an_id_of_nobody_and_one_of_another_tenant_answer_alike(world: World) -> None:
    case_id = await submitted(world)
    with pytest.raises(NotFound) as nobody:
        await world.core.cancel("0" * 32, anyone)
    with pytest.raises(NotFound) as other:
        await world.core.cancel(case_id, lambda tenant: tenant == "other")
    assert nobody.value.message == other.value.message
    assert (await stored(world, case_id)).cancel_requested_at is None
    assert {t.state for t in await world.children(case_id)} == {State.READY}


@pytest.mark.parametrize("case_id", ["", "x", "0" * 31, "A" * 32, "0" * 32 + ".1"])
async def test_what_is_no_case_id_is_named(world: World, case_id: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.core.cancel(case_id, anyone)
    assert [v.field for v in refused.value.violations] == ["case_id"]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_cancel_whose_commit_is_in_doubt_is_settled_before_the_answer(
    tmp_path: Path, committed: bool
) -> None:
    async with open_world(tmp_path, LosingStore) as world:
        assert isinstance(world.store, LosingStore)
        case_id = await submitted(world)
        world.store.committed = (committed,)
        cancelled = await world.core.cancel(case_id, anyone)
        assert {t.answer for t in cancelled.tasks} == {CancelAnswer.CANCELLED}
        assert (await stored(world, case_id)).cancel_requested_at is not None
        world.store.committed = (False, False)
        with pytest.raises(CommitInDoubtError):
            await world.core.cancel(case_id, anyone)


async def test_a_bus_that_is_away_does_not_fail_a_cancel(world: World) -> None:
    case_id = await submitted(world)
    world.wakeups.down.add("sluice.changed")
    cancelled = await world.core.cancel(case_id, anyone)
    assert {t.answer for t in cancelled.tasks} == {CancelAnswer.CANCELLED}


async def test_i9_a_claim_that_saw_the_task_before_the_cancel_loses(world: World) -> None:
    case_id = await submitted(world)
    (seen, _) = await world.children(case_id)
    await world.core.cancel(case_id, anyone)
    claim = TaskMove(seen, Mover.CLAIM, State.IN_FLIGHT, "", world.ahead(30), False)
    assert (await world.store.write(moves.move, [claim])).changed == 0
