"""Receives a folder; hands on a store, a core and short words for what happens to cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kernel.decision import Policy, Requirement
from kernel.environment import Environment
from kernel.lifecycle import State
from kernel.runtime.wakeups import InProcessWakeups
from kernel.store import decisions, markers, parents
from kernel.store.dialect import Statement
from kernel.store.schema import MESH
from kernel.store.tasks import Task
from kernel.store.transaction import Store, Tx
from services.aggregator.core import AggregatorCore
from tests import factories
from tests.manual_clock import ManualClock

_OUTBOX = Statement("select topic, record_key, body from outbox order by id")


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the outbox."""

    topic: str
    key: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """One database with one aggregator."""

    clock: ManualClock
    environment: Environment
    store: Store
    wakeups: InProcessWakeups
    core: AggregatorCore

    def replica(self) -> AggregatorCore:
        """A second aggregator on the same database."""
        return AggregatorCore(self.store, self.environment, self.wakeups, poll_seconds=0.05)

    async def policy(self, *wanted: Policy) -> None:
        await self.store.write(factories.add_policy, *wanted)

    async def case(
        self,
        *models: str,
        optional: tuple[str, ...] = (),
        shadow: tuple[str, ...] = (),
        seconds: float = 60.0,
        tenant_id: str = "acme",
        **more: str,
    ) -> str:
        """A case with a child for each model; returns its id."""
        of = factories.parent(self.clock.now_micros(), seconds=seconds, tenant_id=tenant_id, **more)
        wanted = [
            *((model, Requirement.REQUIRED) for model in models),
            *((model, Requirement.OPTIONAL) for model in optional),
            *((model, Requirement.SHADOW) for model in shadow),
        ]
        children = [
            factories.task(of, n, model, requirement)
            for n, (model, requirement) in enumerate(wanted, start=1)
        ]
        await self.store.write(factories.add_case, of, children)
        return of.id

    async def succeed(self, case_id: str, n: int, **scores: float) -> Task:
        given: Mapping[str, float] = scores or {"spam": 0.1}
        return await self.store.write(factories.settle, (case_id, n), scores=given)

    async def settle(self, case_id: str, n: int, state: State, reason: str = "") -> Task:
        return await self.store.write(factories.settle, (case_id, n), state, reason=reason)

    async def cancel(self, case_id: str) -> None:
        def wish(tx: Tx) -> None:
            assert parents.request_cancel(tx, case_id)
            markers.append(tx, [case_id])

        await self.store.write(wish)

    async def decided(self, case_id: str) -> list[decisions.StoredDecision]:
        return await self.store.read(decisions.listed, case_id)

    async def events(self, topic: str = "sluice.verdicts") -> list[Event]:
        def read(tx: Tx) -> list[Event]:
            rows = tx.query(_OUTBOX)
            return [Event(r.topic, r.record_key, orjson.loads(r.body)) for r in rows]

        return [event for event in await self.store.read(read) if event.topic == topic]

    async def markers(self, case_id: str) -> list[int]:
        return await self.store.read(markers.of_parent, case_id)


async def open_world(folder: Path) -> World:
    """A new database with policy default v1: reject from 0.8."""
    clock = ManualClock()
    environment = Environment(clock=clock)
    store = Store(f"sqlite:///{folder / 'mesh.db'}", clock)
    MESH.create_all(store.engine)
    wakeups = InProcessWakeups()
    core = AggregatorCore(store, environment, wakeups, poll_seconds=0.05)
    world = World(clock, environment, store, wakeups, core)
    await world.policy(factories.policy())
    return world
