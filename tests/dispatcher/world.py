"""Receives a folder; hands tests a dispatcher on real SQLite, a scripted proxy and a clock.

Rounds are run by hand, one at a time, so that a test says what happens between them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.environment import Environment
from kernel.lifecycle import State
from kernel.limits import LeaseBounds
from kernel.receipt import ReceiptState
from kernel.retry import Backoff
from kernel.runtime.wakeups import InProcessWakeups
from kernel.store import decisions, migrations, moves, parents, receipts, tasks
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Store, Tx
from kernel.vendor import PoolProfile
from services.dispatcher.core import DispatcherCore
from services.intake.cancellation import Cancelled, cancel_case
from tests import factories
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.manual_clock import ManualClock

MODEL = "m"
POOL, VENDOR = "pool-m", "vendor-m"
BOUNDS = LeaseBounds()
AT_LEAST_ONCE = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)


@dataclass
class World:
    """One database, one scripted proxy, and as many dispatchers as a test opens."""

    clock: ManualClock
    environment: Environment
    store: Store
    gateway: ScriptedGateway
    cores: list[DispatcherCore] = field(default_factory=list)

    def core(
        self,
        gateway: ScriptedGateway | None = None,
        *,
        concurrency: int = 4,
        store: Any = None,
        **how: Any,
    ) -> DispatcherCore:
        """One more dispatcher on the same database."""
        core = DispatcherCore(
            store or self.store,
            gateway or self.gateway,
            {POOL: PoolProfile(POOL, VENDOR, concurrency)},
            self.environment,
            InProcessWakeups(),
            how.pop("bounds", BOUNDS),
            backoff=how.pop("backoff", Backoff(base_seconds=1.0, cap_seconds=8.0, floor=1.0)),
            query_backoff=Backoff(base_seconds=1.0, cap_seconds=8.0, floor=1.0),
            poll_seconds=0.01,
            **how,
        )
        self.cores.append(core)
        return core

    async def task(self, **fields: Any) -> TaskKey:
        """One READY task, due in a minute."""
        return (await self.tasks(1, **fields))[0]

    async def tasks(self, count: int, *, seconds: float = 60.0, **fields: Any) -> list[TaskKey]:
        """READY tasks, each of a case of its own."""
        keys = []
        for _ in range(count):
            of = factories.parent(self.clock.now_micros(), seconds=seconds, **fields)
            new = factories.task(of, 1, MODEL)
            await self.store.write(factories.add_case, of, [new])
            keys.append((of.id, 1))
        return keys

    async def get(self, key: TaskKey) -> Task:
        """The row as it stands."""
        found = await self.store.read(tasks.get, key)
        assert found is not None
        return found

    async def state(self, key: TaskKey) -> State:
        """Where the task stands."""
        return (await self.get(key)).state

    async def path(self, key: TaskKey) -> list[State]:
        """The states that the task went through, READY first."""
        rows = await self.store.read(moves.recorded, *key)
        return [State.READY, *(State(row.to_state) for row in rows)]

    async def until_stored(self, key: TaskKey, state: State) -> Task:
        """Ask until the row stands there; the suite's time-out is the bound."""
        found = await self.get(key)
        while found.state is not state:
            found = await self.get(key)
        return found

    async def cancel(self, key: TaskKey) -> Cancelled:
        """The caller's wish, as intake writes it."""
        return await self.store.write(cancel_case, key[0], lambda _: True)

    async def tombstone(self, key: TaskKey) -> None:
        """A wish that has not reached the tasks."""

        def wish(tx: Tx) -> None:
            assert parents.request_cancel(tx, key[0])

        await self.store.write(wish)

    async def receive(
        self, key: TaskKey, state: ReceiptState = ReceiptState.SUCCEEDED, **how: Any
    ) -> str:
        """A receipt arrives; returns its disposition."""
        (told,) = await self.store.write(receipts.take, [factories.receipt(key, state, **how)])
        return told

    async def late(self, key: TaskKey) -> list[Any]:
        """The task's receipts from settles that lost their fence."""
        rows = await self.store.read(receipts.listed, *key)
        return [row for row in rows if row.source == receipts.LATE_ATTEMPT]

    async def actions(self, key: TaskKey) -> list[Any]:
        """What operators did to it."""
        return list(await self.store.read(decisions.actions, key[0], key[1]))


async def claimed(core: DispatcherCore) -> list[Task]:
    """One claim round; what is held after it."""
    core.claimer.look()
    await core.claimer.claim_round()
    return [held.task for held in core.claimer.held.values()]


async def settled(core: DispatcherCore) -> None:
    """Wait until every call under way has answered, and settle all answers."""
    works = [held.work for held in core.claimer.held.values() if held.work is not None]
    await asyncio.gather(*works, return_exceptions=True)
    while core.claimer.held:
        await core.claimer.settle_round()


async def run_once(core: DispatcherCore) -> None:
    """Claim, execute, settle."""
    await claimed(core)
    await settled(core)


async def resolved(core: DispatcherCore) -> int:
    """One scan of due rows, and all that follows from it; returns how many were found."""
    found = await core.timer_once()
    await core.resolver.idle()
    await settled(core)
    return found


async def in_flight_elsewhere(world: World, key: TaskKey) -> Task:
    """Held by a dispatcher that has just died: its lease has run out."""
    found = await world.store.write(factories.claim, key, "dead-worker")
    world.clock.advance(BOUNDS.lease_seconds + 0.001)
    return found


def make_schema(path: Path) -> None:
    """An empty database of the newest schema."""
    store = Store(f"sqlite:///{path}", ManualClock())
    migrations.upgrade(store.engine, "mesh")
    store.engine.dispose()


@asynccontextmanager
async def open_world(folder: Path, empty: Path) -> AsyncIterator[World]:
    """A world on a copy of `empty`, whose clock moves only when a test moves it."""
    clock = ManualClock()
    shutil.copy(empty, folder / "mesh.db")
    store = Store(f"sqlite:///{folder / 'mesh.db'}", clock)
    world = World(clock, Environment(clock, random.Random(7)), store, ScriptedGateway())
    try:
        yield world
    finally:
        for core in world.cores:
            core.claimer.draining = True
            await core.loops.stop()
            await core.resolver.stop()
            await core.claimer.leases.abandon()
        await store.close()
