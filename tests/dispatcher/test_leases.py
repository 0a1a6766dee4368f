"""Leases: kept while a call runs, and let go of before they end when they cannot be kept."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import CallOutcome, Outcome
from kernel.errors import StoreAway
from kernel.lifecycle import State
from kernel.limits import BrokenRelationError, LeaseBounds
from kernel.store.transaction import Store
from services.dispatcher.core import DispatcherCore
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.world import BOUNDS, World, claimed, resolved, settled

# The numbers of case 2-01 (lease 5 s, renewals every 2 s, a call of 12 s) with the asserted
# relation kept: 3 * 1 + 1 < 5.
SHORT = LeaseBounds(lease_seconds=5.0, renew_interval_seconds=1.0, store_timeout_seconds=1.0)


class StuckStore:
    """A store whose writes wait, as a database does that has gone away without a word."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stuck = False
        self.refuses = False
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.read = store.read

    async def write(self, function: object, *args: object, **kwargs: object) -> object:
        if self.stuck:
            self.asked.set()
            await self.let_go.wait()
        if self.refuses:
            self.asked.set()
            raise StoreAway("away")
        return await self._store.write(function, *args, **kwargs)  # type: ignore[arg-type]


async def held(world: World, **how: object) -> tuple[DispatcherCore, act.Hang]:
    """A dispatcher with one call under way that does not end."""
    hang = act.Hang()
    world.gateway.executes = [hang]
    core = world.core(**how)  # type: ignore[arg-type]
    assert len(await claimed(core)) == 1
    await hang.begun.wait()
    return core, hang


async def advance_loops(world: World, core: DispatcherCore, seconds: float) -> None:
    """Let the renew and watch loops live through `seconds`, a tenth at a time."""
    for _ in range(round(seconds * 10)):
        await world.clock.sleeping(2)
        world.clock.advance(0.1)
        await world.store.read(lambda tx: tx.now())
        await asyncio.sleep(0)


async def test_case_2_01_renewals_keep_the_lease_during_a_call_that_is_longer_than_it(
    world: World,
) -> None:
    key = await world.task()
    core, hang = await held(world, bounds=SHORT)
    idle = [world.core(act.ScriptedGateway(), bounds=SHORT) for _ in range(3)]
    renewing = asyncio.create_task(_forever(core.claimer.leases.renew_round))
    watching = asyncio.create_task(_forever(core.claimer.leases.watch_round))
    for _ in range(12):
        await advance_loops(world, core, 1.0)
        for each in idle:
            assert await resolved(each) == 0, "somebody found an ended lease"
    hang.let_go.set()
    await settled(core)
    task = await world.get(key)
    assert (task.state, task.attempt) == (State.SUCCEEDED, 1)
    assert world.gateway.verbs() == ["execute"]
    for loop in (renewing, watching):
        loop.cancel()
    await asyncio.gather(renewing, watching, return_exceptions=True)


async def _forever(one_round: object) -> None:
    while True:
        await one_round()  # type: ignore[operator]


async def test_a_renewal_moves_the_end_of_the_lease_on_the_databases_clock(world: World) -> None:
    key = await world.task()
    core, hang = await held(world)
    renewing = asyncio.create_task(core.claimer.leases.renew_round())
    await world.clock.sleeping(1)
    world.clock.advance(BOUNDS.renew_interval_seconds)
    await renewing
    wake_at = (await world.get(key)).wake_at
    assert wake_at == world.clock.now_micros() + int(BOUNDS.lease_seconds * 1_000_000)
    hang.let_go.set()
    await settled(core)


async def test_a_worker_whose_store_hangs_stops_by_itself_before_its_lease_ends(
    world: World,
) -> None:
    key = await world.task()
    store = StuckStore(world.store)
    core, hang = await held(world, store=store, bounds=SHORT)
    taken = world.clock.suspended_seconds()
    store.stuck = True
    renewing = asyncio.create_task(core.claimer.leases.renew_round())
    watching = asyncio.create_task(_forever(core.claimer.leases.watch_round))
    (lease,) = core.claimer.held.values()
    assert lease.work is not None
    try:
        async with asyncio.timeout(20):
            while not lease.work.done():
                await world.clock.sleeping(1)
                world.clock.advance(0.1)
                await asyncio.sleep(0)
                assert world.clock.suspended_seconds() < taken + SHORT.lease_seconds, (
                    "the lease ended and the work went on"
                )
        await asyncio.sleep(0)
        assert store.asked.is_set()
        assert core.claimer.held == {}
        assert core.claimer.pools["pool-m"].running == 0
        assert await world.state(key) is State.IN_FLIGHT
    finally:
        watching.cancel()
        store.let_go.set()
        hang.let_go.set()
        await asyncio.gather(renewing, watching, return_exceptions=True)


async def test_a_renewal_of_what_somebody_else_holds_does_not_keep_it(world: World) -> None:
    key = await world.task()
    core, hang = await held(world, bounds=SHORT)
    (lease,) = core.claimer.held.values()
    other = world.core(act.ScriptedGateway(fences=[act.IN_DOUBT]), bounds=SHORT)
    ends = lease.ends
    await other.resolver.take_over(await world.get(key), wanted=True)
    await settled(other)
    renewing = asyncio.create_task(core.claimer.leases.renew_round())
    await world.clock.sleeping(1)
    world.clock.advance(SHORT.renew_interval_seconds)
    await renewing
    assert lease.ends == ends
    world.clock.advance(3.5)
    core.claimer.leases.drop_ended()
    with pytest.raises(asyncio.CancelledError):
        await (lease.work or asyncio.sleep(0))
    hang.let_go.set()


async def test_a_claim_whose_answer_took_longer_than_the_lease_is_not_begun(
    world: World,
) -> None:
    key = await world.task()
    store = StuckStore(world.store)
    core = world.core(store=store)
    store.stuck = True
    core.claimer.look()
    claiming = asyncio.create_task(core.claimer.claim_round())
    await store.asked.wait()
    world.clock.advance(BOUNDS.lease_seconds)
    store.let_go.set()
    await claiming
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert core.claimer.held == {}
    assert world.gateway.verbs() == []
    assert await world.state(key) is State.IN_FLIGHT


async def test_a_settle_whose_write_fails_is_kept_and_written_later(world: World) -> None:
    key = await world.task()
    store = StuckStore(world.store)
    core, hang = await held(world, store=store)
    hang.let_go.set()
    (lease,) = core.claimer.held.values()
    await (lease.work or asyncio.sleep(0))
    store.refuses = True
    for _ in range(3):
        with pytest.raises(StoreAway):
            await core.claimer.settle_round()
    assert await world.state(key) is State.IN_FLIGHT
    store.refuses = False
    await core.claimer.settle_round()
    assert await world.state(key) is State.SUCCEEDED
    assert core.claimer.held == {}


async def test_a_kept_settle_that_lost_its_fence_meanwhile_takes_the_receipts_path(
    world: World,
) -> None:
    key = await world.task()
    store = StuckStore(world.store)
    core, hang = await held(world, store=store)
    hang.let_go.set()
    (lease,) = core.claimer.held.values()
    await (lease.work or asyncio.sleep(0))
    store.refuses = True
    with pytest.raises(StoreAway):
        await core.claimer.settle_round()
    world.clock.advance(BOUNDS.lease_seconds)
    other = world.core(act.ScriptedGateway(fences=[act.IN_DOUBT]))
    await resolved(other)
    assert await world.state(key) is State.UNKNOWN
    store.refuses = False
    await core.claimer.settle_round()
    task = await world.get(key)
    assert (task.state, task.attempt) == (State.SUCCEEDED, 2)
    assert core.claimer.fenced == 1
    (late,) = await world.late(key)
    assert late.disposition == "APPLIED"


async def test_one_answer_that_cannot_be_written_does_not_hold_the_others_up(
    world: World,
) -> None:
    """Case 3-08's point: what is poisoned blocks nothing behind it."""
    bad, good = await world.tasks(2)
    stored = (await world.get(bad)).idempotency_key
    broken = CallOutcome(Outcome.UNKNOWN, reason="\ud800")
    world.gateway.by_key[stored].append(broken)
    core = world.core()
    await claimed(core)
    await settled(core)
    assert await world.state(good) is State.SUCCEEDED
    assert await world.state(bad) is State.IN_FLIGHT, "whoever takes over asks the ledger"
    assert core.claimer.pools["pool-m"].running == 0


def test_bounds_that_a_renewal_cannot_keep_are_refused() -> None:
    with pytest.raises(BrokenRelationError):
        LeaseBounds(
            lease_seconds=5.0, renew_interval_seconds=1.5, store_timeout_seconds=0.5
        ).assert_relations()
