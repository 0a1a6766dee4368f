"""Receives dispatchers whose own clocks are wrong; checks that only the database's clock counts."""

from __future__ import annotations

import asyncio
import re

import pytest
from sqlalchemy import event

from kernel.attempt import CallOutcome, CallRequest, FenceAnswer, QueryAnswer, QueryOutcome
from kernel.environment import Environment
from kernel.lifecycle import State
from kernel.limits import LeaseBounds
from kernel.runtime.wakeups import InProcessWakeups
from kernel.store import moves
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile
from services.dispatcher.core import DispatcherCore
from services.dispatcher.gateway import Occupied
from tests.manual_clock import ManualClock
from tests.store.stores import SECOND, got, plan

POOLS = {"pool-text": PoolProfile("pool-text", "vendor-text", 5)}
BOUNDS = LeaseBounds(lease_seconds=60.0)
DAY = 86_400 * SECOND


class SilentGateway:
    """A proxy whose vendor never answers."""

    def __init__(self) -> None:
        self.executes: list[CallRequest] = []
        self.fences = 0

    async def execute(self, request: CallRequest) -> CallOutcome:
        self.executes.append(request)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def fence(
        self, idempotency_key: str, vendor: str, attempt: int
    ) -> tuple[FenceAnswer, CallOutcome | None]:
        self.fences += 1
        return FenceAnswer.NEVER_BEGUN, None

    async def query(self, idempotency_key: str, vendor: str) -> QueryOutcome:
        return QueryOutcome(QueryAnswer.CANNOT_TELL)

    async def occupied(self) -> dict[str, Occupied]:
        return {"pool-text": Occupied(5, len(self.executes))}

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        return False


def dispatcher(store: Store, clock: ManualClock) -> tuple[DispatcherCore, SilentGateway]:
    gateway = SilentGateway()
    wakeups = InProcessWakeups()
    core = DispatcherCore(store, gateway, POOLS, Environment(clock=clock), wakeups, BOUNDS)
    return core, gateway


async def claim_once(core: DispatcherCore) -> None:
    core.claimer.look()
    await core.claimer.claim_round()


async def stop(*cores: DispatcherCore) -> None:
    for core in cores:
        await core.resolver.stop()
        await core.claimer.leases.abandon()


async def test_case_2_05_a_wrong_clock_neither_steals_nor_shortens_a_lease(
    store: Store, clock: ManualClock
) -> None:
    now = clock.now_micros()
    ahead, behind = ManualClock(now + 120 * SECOND), ManualClock(now - 120 * SECOND)
    slow = ManualClock(now - 300 * SECOND)
    (key,) = await store.write(plan, seconds=600.0)
    holder, held_by = dispatcher(store, slow)
    await claim_once(holder)
    assert (await store.read(got, key)).wake_at == now + 60 * SECOND
    others = [dispatcher(store, each) for each in (ahead, behind)]
    for core, _ in others:
        await claim_once(core)
        assert await core.timer_once() == 0
    clock.advance(59.0)
    assert [await core.timer_once() for core, _ in others] == [0, 0]
    # The holder renews with a clock that is five minutes behind.
    (task,) = [held.task for held in holder.claimer.held.values()]
    assert len(await store.write(moves.renew, [task], 60 * SECOND)) == 1
    assert (await store.read(got, key)).wake_at == clock.now_micros() + 60 * SECOND
    clock.advance(59.0)
    assert [await core.timer_once() for core, _ in others] == [0, 0]
    assert [gateway.executes for _, gateway in others] == [[], []]
    assert [gateway.fences for _, gateway in others] == [0, 0]
    clock.advance(1.0)
    assert await others[0][0].timer_once() == 1
    await stop(holder, *(core for core, _ in others))
    task_now = await store.read(got, key)
    assert (task_now.state, len(held_by.executes)) == (State.IN_FLIGHT, 1)


NUMBER = re.compile(r"\d{15,17}")


@pytest.mark.parametrize("days_off", [-3000, 3000])
async def test_case_2_05_no_statement_carries_a_time_of_the_applications_clock(
    store: Store, clock: ManualClock, days_off: int
) -> None:
    wrong = ManualClock(clock.now_micros() + days_off * DAY)
    carried: list[int] = []

    def seen(_c: object, _cursor: object, _sql: str, given: object, *_: object) -> None:
        carried.extend(int(found) for found in NUMBER.findall(repr(given)))

    (key,) = await store.write(plan, seconds=600.0)
    event.listen(store.engine, "before_cursor_execute", seen)
    core, _ = dispatcher(store, wrong)
    await claim_once(core)
    (held,) = core.claimer.held.values()
    renewing = asyncio.ensure_future(core.claimer.leases.renew_round())
    await wrong.sleeping(1)
    wrong.advance(BOUNDS.renew_interval_seconds)
    await renewing
    clock.advance(60.0)
    other, _ = dispatcher(store, wrong)
    assert await other.timer_once() == 1
    event.remove(store.engine, "before_cursor_execute", seen)
    await stop(core, other)
    assert held.task.key == key
    assert carried, "deadlines of tasks and leases count from the database's now"
    assert [each for each in carried if abs(each - wrong.now_micros()) < 1000 * DAY] == []
