"""Retries: one layer, within the task's budget, the pool's budget and what the vendor asks for."""

from __future__ import annotations

from dataclasses import replace

from kernel.budget import RetryBudget
from kernel.lifecycle import State
from tests import factories
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.world import POOL, World, claimed, resolved, run_once


async def test_case_1_09_a_vendor_that_always_throttles_is_asked_max_sends_times(
    world: World,
) -> None:
    key = await world.task()
    core = world.core()
    for sends in range(1, 5):
        world.gateway.executes = [replace(act.THROTTLED, sends=sends)]
        await run_once(core)
        world.clock.advance(8.0)
        await resolved(core)
    task = await world.get(key)
    assert (task.state, task.reason) == (State.FAILED, "RATE_LIMITED")
    assert world.gateway.verbs() == ["execute"] * 4


async def test_the_wait_doubles_with_every_try_and_ends_below_its_cap(world: World) -> None:
    key = await world.task()
    core = world.core()
    waits = []
    for _ in range(5):
        world.gateway.executes = [act.NOT_SENT]
        await run_once(core)
        task = await world.get(key)
        assert task.wake_at is not None
        waits.append((task.wake_at - world.clock.now_micros()) / 1_000_000)
        world.clock.advance(waits[-1])
        await resolved(core)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


async def test_case_4_11_a_retry_after_closes_the_pool_for_every_replica(world: World) -> None:
    first, *_ = await world.tasks(3)
    stored = (await world.get(first)).idempotency_key
    one, two = world.core(concurrency=1), world.core(concurrency=2)
    world.gateway.by_key[stored].append(replace(act.THROTTLED, retry_after_seconds=30.0))
    await run_once(one)
    for core in (one, two):
        assert await claimed(core) == [], "a replica sent into the silence that was asked for"
    world.clock.advance(29.9)
    assert await claimed(two) == []
    (pool,) = await two.list_pools()
    assert pool.closed_until is not None
    world.clock.advance(0.2)
    await run_once(two)
    assert len(world.gateway.requests) == 3
    assert (await world.get(first)).state is State.RETRY_WAIT


async def test_a_shorter_retry_after_does_not_shorten_the_silence(world: World) -> None:
    keys = await world.tasks(2)
    core = world.core()
    for key, seconds in zip(keys, (30.0, 1.0), strict=True):
        stored = (await world.get(key)).idempotency_key
        world.gateway.by_key[stored].append(replace(act.THROTTLED, retry_after_seconds=seconds))
    await run_once(core)
    (pool,) = await core.list_pools()
    assert pool.closed_until == world.clock.now_micros() + 30_000_000


async def test_a_throttle_without_retry_after_closes_nothing(world: World) -> None:
    await world.task()
    core = world.core()
    world.gateway.executes = [act.THROTTLED]
    await run_once(core)
    (pool,) = await core.list_pools()
    assert pool.closed_until is None


async def test_retries_are_at_most_a_share_of_first_attempts(world: World) -> None:
    await world.tasks(4)
    core = world.core()
    core.claimer.pools[POOL].budget = RetryBudget(share=0.5, tokens=0.0, trickle_per_second=0.0)
    world.gateway.executes = [act.BUSY]
    await run_once(core)
    world.clock.advance(1.0)
    world.gateway.calls.clear()
    world.gateway.executes = [act.COMPLETED]
    await resolved(core)
    await run_once(core)
    assert world.gateway.verbs() == ["execute"] * 2, "four first attempts earn two retries"


async def test_i7_retries_without_new_work_are_slow_and_not_for_ever(world: World) -> None:
    (key,) = await world.tasks(1)
    core = world.core()
    core.claimer.pools[POOL].budget = RetryBudget(share=0.0, tokens=0.0, trickle_per_second=0.5)
    world.gateway.executes = [act.BUSY, act.COMPLETED]
    await run_once(core)
    await core.timer_once()
    waited = 0
    while await world.state(key) is not State.SUCCEEDED:
        world.clock.advance(1.0)
        waited += 1
        await resolved(core)
        await run_once(core)
        assert waited < 20, "the retry waits for its deadline"
    assert waited >= 2


async def test_what_was_never_sent_spends_no_retry_budget(world: World) -> None:
    key = await world.task()
    core = world.core()
    core.claimer.pools[POOL].budget = RetryBudget(share=0.0, tokens=0.0, trickle_per_second=0.0)
    world.gateway.executes = [act.NOT_SENT, act.COMPLETED]
    await run_once(core)
    world.clock.advance(1.0)
    await resolved(core)
    await run_once(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_i12_the_budget_of_an_earlier_vendor_is_passed_on(world: World) -> None:
    of = factories.parent(world.clock.now_micros())
    new = replace(factories.task(of, 1, "m"), max_sends=3)
    await world.store.write(factories.add_case, of, [new])
    await run_once(world.core())
    (request,) = world.gateway.requests
    assert request.max_sends == 3
