"""The loops together, and their end: open calls settle, nothing new begins."""

from __future__ import annotations

import asyncio

from kernel.lifecycle import State
from tests import factories
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.test_leases import StuckStore
from tests.dispatcher.world import World, in_flight_elsewhere


async def advanced(world: World, work: asyncio.Task[None]) -> None:
    """Move the clock on until `work` has ended."""
    while not work.done():
        await asyncio.sleep(0)
        world.clock.advance(0.05)
    await work


async def test_the_loops_run_a_task_to_its_end_and_recover_another(world: World) -> None:
    lost, fresh = await world.tasks(2)
    await in_flight_elsewhere(world, lost)
    world.gateway.fences = [act.NEVER_BEGUN]
    core = world.core()
    core.start()
    for key in (lost, fresh):
        await world.until_stored(key, State.SUCCEEDED)
    assert core.loops.healthy
    await advanced(world, asyncio.create_task(core.stop(1.0)))


async def test_at_a_stop_open_calls_settle_and_nothing_new_is_claimed(world: World) -> None:
    first, second = await world.tasks(2)
    hang = act.Hang()
    world.gateway.executes = [hang]
    core = world.core(concurrency=1)
    core.start()
    await hang.begun.wait()
    stopping = asyncio.create_task(core.stop(10.0))
    await world.clock.sleeping(1)
    hang.let_go.set()
    await world.until_stored(first, State.SUCCEEDED)
    await advanced(world, stopping)
    assert await world.state(second) is State.READY
    assert world.gateway.verbs() == ["execute"]


async def test_a_dispatcher_that_drains_takes_nothing_over(world: World) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    core = world.core()
    core.claimer.draining = True
    world.gateway.fences = [act.NEVER_BEGUN]
    assert await core.timer_once() == 0
    await core.resolver.take_over(await world.get(key), wanted=True)
    assert (await world.get(key)).attempt == 1


async def test_a_stop_while_the_proxy_is_asked_for_permits_claims_nothing(world: World) -> None:
    key = await world.task()
    core = world.core()
    world.gateway.occupied_gate = asyncio.Event()
    core.claimer.look()
    claiming = asyncio.create_task(core.claimer.claim_round())
    await world.gateway.occupied_asked.wait()
    core.claimer.draining = True
    world.gateway.occupied_gate.set()
    await claiming
    assert await world.state(key) is State.READY


async def test_a_call_that_outlives_the_drain_keeps_its_row_for_whoever_takes_over(
    world: World,
) -> None:
    key = await world.task()
    hang = act.Hang()
    world.gateway.executes = [hang]
    core = world.core()
    core.start()
    await hang.begun.wait()
    await advanced(world, asyncio.create_task(core.stop(1.0)))
    task = await world.get(key)
    assert (task.state, task.attempt, task.owner) == (State.IN_FLIGHT, 1, core.owner)
    assert core.claimer.held == {}


async def test_a_claim_that_is_being_written_at_the_stop_is_not_left_behind(
    world: World,
) -> None:
    key = await world.task()
    store = StuckStore(world.store)
    core = world.core(store=store)
    store.stuck = True
    core.claimer.look()
    claiming = asyncio.create_task(core.claimer.claim_round())
    await store.asked.wait()
    stopping = asyncio.create_task(core.claimer.drain(10.0))
    await world.clock.sleeping(1)
    store.stuck = False
    store.let_go.set()
    await claiming
    await core.claimer.settle_round()
    await advanced(world, stopping)
    assert await world.state(key) is State.SUCCEEDED


async def test_stopping_while_the_resolver_is_full_leaves_no_loose_ends(world: World) -> None:
    keys = await world.tasks(40)
    for key in keys[:-1]:
        await world.store.write(factories.claim, key, "dead-worker")
    await in_flight_elsewhere(world, keys[-1])
    core = world.core()
    world.gateway.fence_gate = asyncio.Event()
    assert await core.timer_once() == 40
    await world.gateway.fence_asked.wait()
    await core.resolver.stop()
    await core.resolver.idle()
