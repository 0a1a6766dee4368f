"""What is no longer wanted, and what came too late: closed where nothing can have happened."""

from __future__ import annotations

import pytest

from kernel.lifecycle import State
from kernel.store.tasks import TaskKey
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.world import World, claimed, resolved, run_once, settled


async def test_i9_a_task_cancelled_before_its_claim_is_never_sent(world: World) -> None:
    key = await world.task()
    await world.cancel(key)
    await run_once(world.core())
    assert await world.state(key) is State.CANCELLED
    assert world.gateway.calls == []


async def test_i9_a_tombstone_alone_stops_a_task_at_its_claim(world: World) -> None:
    key, other = await world.tasks(2)
    await world.tombstone(key)
    core = world.core()
    await run_once(core)
    task = await world.get(key)
    assert (task.state, task.attempt) == (State.CANCELLED, 0)
    assert await world.state(other) is State.SUCCEEDED
    assert world.gateway.verbs() == ["execute"]


async def test_a_wish_to_cancel_during_the_call_lets_it_settle(world: World) -> None:
    key = await world.task()
    core = world.core()
    hang = act.Hang()
    world.gateway.executes = [hang]
    await claimed(core)
    await hang.begun.wait()
    answer = await world.cancel(key)
    assert [each.answer for each in answer.tasks] == ["TOO_LATE"]
    hang.let_go.set()
    await settled(core)
    assert await world.state(key) is State.SUCCEEDED


@pytest.mark.parametrize("waits_in", [State.RETRY_WAIT, State.READY])
async def test_what_may_have_been_executed_is_unknown_when_cancelled(
    world: World, waits_in: State
) -> None:
    core = world.core()
    key = await waiting_with_doubt(world, waits_in)
    answer = await world.cancel(key)
    assert [each.answer for each in answer.tasks] == ["UNKNOWN"]
    task = await world.get(key)
    assert (task.state, task.maybe_executed) == (State.UNKNOWN, True)
    assert task.wake_at == world.clock.now_micros()
    world.gateway.queries = [act.NOT_FOUND]
    await resolved(core)
    assert await world.state(key) is State.CANCELLED


@pytest.mark.parametrize("waits_in", [State.RETRY_WAIT, State.READY])
async def test_what_may_have_been_executed_is_unknown_at_its_deadline(
    world: World, waits_in: State
) -> None:
    core = world.core()
    key = await waiting_with_doubt(world, waits_in)
    world.clock.advance(60.0)
    world.gateway.queries = [act.NOT_FOUND]
    await core.timer_once()
    assert await world.state(key) is State.UNKNOWN
    await resolved(core)
    assert await world.state(key) is State.EXPIRED


async def test_a_tombstone_found_at_the_claim_keeps_the_doubt(world: World) -> None:
    core = world.core()
    key = await waiting_with_doubt(world, State.READY)
    await world.tombstone(key)
    await run_once(core)
    assert await world.state(key) is State.UNKNOWN
    assert world.gateway.verbs().count("execute") == 1


async def test_i7_in_doubt_and_unwanted_it_waits_for_a_person_and_does_not_spin(
    world: World,
) -> None:
    core = world.core()
    key = await waiting_with_doubt(world, State.RETRY_WAIT)
    await world.cancel(key)
    world.gateway.queries = [act.MAY_RESEND]
    world.gateway.calls.clear()
    for _ in range(3):
        await resolved(core)
    task = await world.get(key)
    assert (task.state, task.needs_operator) == (State.UNKNOWN, True)
    assert world.gateway.verbs() == ["fence", "query"]


async def test_what_cannot_start_before_its_deadline_takes_no_permit_and_expires(
    world: World,
) -> None:
    key = await world.task(seconds=2.0)
    core = world.core()
    world.clock.advance(2.0)
    assert await claimed(core) == []
    await resolved(core)
    task = await world.get(key)
    assert (task.state, task.wake_at) == (State.EXPIRED, None)
    assert world.gateway.calls == []


async def test_a_backoff_never_reaches_beyond_the_deadline(world: World) -> None:
    key = await world.task(seconds=0.5)
    core = world.core()
    world.gateway.executes = [act.THROTTLED]
    await run_once(core)
    task = await world.get(key)
    assert (task.state, task.wake_at) == (State.RETRY_WAIT, task.deadline)
    world.clock.advance(0.5)
    await resolved(core)
    assert await world.state(key) is State.EXPIRED


async def waiting_with_doubt(world: World, state: State) -> TaskKey:
    """A task whose send may have been executed and that waits to be sent again."""
    key = await world.task()
    core = world.core()
    world.gateway.executes = [act.UNKNOWN]
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.SAFE_RESEND]
    await run_once(core)
    await resolved(core)
    if state is State.READY:
        world.clock.advance(1.0)
        await core.timer_once()
    task = await world.get(key)
    assert (task.state, task.maybe_executed) == (state, True)
    return key
