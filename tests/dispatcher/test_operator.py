"""What an operator may do to an UNKNOWN task, and what is kept of it."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidArgument, NotAllowedInState, NotFound
from kernel.lifecycle import State
from kernel.store.tasks import TaskKey
from services.dispatcher.core import DispatcherCore
from services.dispatcher.operator import Resolution
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.world import World, resolved, run_once


async def stuck(world: World, core: DispatcherCore) -> TaskKey:
    """A task that only a person can settle."""
    key = await world.task()
    world.gateway.executes = [act.UNKNOWN]
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.CANNOT_TELL]
    await run_once(core)
    await resolved(core)
    assert (await world.get(key)).needs_operator
    return key


@pytest.mark.parametrize(
    ("resolution", "state", "reason", "granted", "maybe"),
    [
        (Resolution.EXECUTED, State.FAILED, "RESULT_LOST", 0, False),
        (Resolution.NOT_EXECUTED, State.RETRY_WAIT, "NEVER_BEGUN", 1, False),
        (Resolution.RETRY, State.RETRY_WAIT, "OPERATOR_RETRY", 1, True),
    ],
)
async def test_each_resolution_moves_the_task_and_is_recorded(
    world: World,
    resolution: Resolution,
    state: State,
    reason: str,
    granted: int,
    maybe: bool,
) -> None:
    core = world.core()
    key = await stuck(world, core)
    before = await world.get(key)
    after = await core.resolve_unknown(before.task_id, resolution, "ana", "the vendor said so")
    assert after == await world.get(key)
    assert (after.state, after.reason, after.needs_operator) == (state, reason, False)
    assert (after.granted_sends, after.maybe_executed) == (granted, maybe)
    (action,) = await world.actions(key)
    assert (action.actor, action.action) == ("ana", f"RESOLVE_{resolution}")
    assert action.note == "the vendor said so"


async def test_a_retry_is_sent_again_with_leave_for_one_more_send(world: World) -> None:
    core = world.core()
    key = await stuck(world, core)
    await core.resolve_unknown((await world.get(key)).task_id, Resolution.RETRY, "ana", "")
    world.gateway.executes = [act.COMPLETED]
    await resolved(core)
    await run_once(core)
    assert await world.state(key) is State.SUCCEEDED
    request = world.gateway.requests[-1]
    assert (request.attempt, request.granted_sends) == (2, 1)


async def test_not_executed_closes_what_is_no_longer_wanted(world: World) -> None:
    core = world.core()
    key = await stuck(world, core)
    await world.tombstone(key)
    task_id = (await world.get(key)).task_id
    after = await core.resolve_unknown(task_id, Resolution.NOT_EXECUTED, "ana", "")
    assert after.state is State.CANCELLED


@pytest.mark.parametrize("passed", [False, True], ids=["cancelled", "late"])
async def test_a_retry_of_what_is_no_longer_wanted_is_refused_and_records_nothing(
    world: World, passed: bool
) -> None:
    core = world.core()
    key = await stuck(world, core)
    if passed:
        world.clock.advance(60.0)
    else:
        await world.tombstone(key)
    before = await world.get(key)
    with pytest.raises(NotAllowedInState) as refused:
        await core.resolve_unknown(before.task_id, Resolution.RETRY, "ana", "")
    assert refused.value.metadata == {"state": "UNKNOWN"}
    assert await world.get(key) == before
    assert await world.actions(key) == []


@pytest.mark.parametrize("resolution", Resolution)
async def test_a_task_in_another_state_is_left_alone(world: World, resolution: Resolution) -> None:
    core = world.core()
    key = await world.task()
    task_id = (await world.get(key)).task_id
    with pytest.raises(NotAllowedInState) as refused:
        await core.resolve_unknown(task_id, resolution, "ana", "")
    assert refused.value.metadata == {"state": "READY"}
    await run_once(core)
    with pytest.raises(NotAllowedInState) as refused:
        await core.resolve_unknown(task_id, resolution, "ana", "")
    assert refused.value.metadata == {"state": "SUCCEEDED"}
    assert await world.actions(key) == []


async def test_ids_that_are_nobodys(world: World) -> None:
    core = world.core()
    with pytest.raises(NotFound):
        await core.resolve_unknown("0" * 32 + ".1", Resolution.RETRY, "ana", "")
    with pytest.raises(InvalidArgument):
        await core.resolve_unknown("task 7", Resolution.RETRY, "ana", "")


async def test_evidence_that_comes_after_a_word_of_executed_is_kept(world: World) -> None:
    core = world.core()
    key = await stuck(world, core)
    task_id = (await world.get(key)).task_id
    await core.resolve_unknown(task_id, Resolution.EXECUTED, "ana", "")
    assert await world.receive(key) in {"LATE", "APPLIED"}
