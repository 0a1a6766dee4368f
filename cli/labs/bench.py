"""The bench of every lab: what can be done with the assembled cores, and what can be seen.

Receives assembled cores (`cli/labs/assembly.py`). Hands on steps such as submit, claim and
settle, and facts from the store and from the vendor's own books. Loops that would look by
themselves are not started: a lab makes each look when it wants it, so that runs are alike.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cli.labs.clock import LabClock
from cli.labs.link import LabLink, LabSink, LabWakeups
from cli.labs.report import Row, Rows
from cli.labs.witness import Witness
from cli.vendor_process import VendorControl
from kernel.decision import Decision, decide
from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.runtime.settings import Settings
from kernel.runtime.wakeups import CHANGED
from kernel.store import decisions, moves, parents, policies, receipts, snapshots, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Store, Tx
from services.aggregator.core import AggregatorCore
from services.aggregator.snapshot import snapshot_of
from services.dispatcher.core import DispatcherCore
from services.intake.admission import Content, Kind, Part
from services.intake.core import IntakeCore, Submitted
from services.intake.relay import Relay
from services.vendor_proxy.app import ProxyParts

TENANT = "acme"


@dataclass(slots=True)
class Worker:
    """One dispatcher, a step at a time."""

    name: str
    core: DispatcherCore
    link: LabLink

    async def claim(self) -> list[Task]:
        """Look at every pool once: claim what fits and begin to execute it."""
        self.core.claimer.look()
        await self.core.claimer.claim_round()
        return [held.task for held in self.core.claimer.held.values()]

    async def settle(self) -> None:
        """Wait for the answers of all calls under way, then write them in one settle."""
        works = [held.work for held in self.core.claimer.held.values() if held.work is not None]
        await asyncio.gather(*works)
        await self.core.claimer.settle_round()

    async def settle_next(self) -> None:
        """Wait for the next answer, whoever begins its call, then write it."""
        await self.core.claimer.settle_round()


@dataclass(slots=True)
class Bench:
    """Everything that a lab works with."""

    clock: LabClock
    environment: Environment
    settings: Settings
    witness: Witness
    wakeups: LabWakeups
    mesh: Store
    intake: IntakeCore
    aggregator: AggregatorCore
    gateway: ProxyParts
    sink: LabSink
    relay: Relay
    vendor: VendorControl
    workers: list[Worker] = field(default_factory=list)

    def worker(self, name: str) -> Worker:
        """One more dispatcher on the same database."""
        link = LabLink(name, self.gateway.core, self.witness)
        core = DispatcherCore(
            self.mesh,
            link,
            self.settings.pool_profiles(),
            self.environment,
            self.wakeups,
            self.settings.lease_bounds(),
        )
        self.witness.name(core.owner, name)
        worker = Worker(name, core, link)
        self.workers.append(worker)
        return worker

    async def submit(
        self, name: str, content_id: str, version: int = 1, *, lane: str = "", text: str = "a text"
    ) -> Submitted:
        """Hand in one text; its case is called `name` in everything that is shown."""
        answer = await self.intake.submit(
            Content(
                tenant_id=TENANT,
                content_id=content_id,
                content_version=version,
                parts=(Part(Kind.TEXT, text=text),),
                labels={"lane": lane} if lane else {},
            )
        )
        self.witness.name(answer.case_id, name)
        for task in await self.mesh.read(tasks.children, answer.case_id):
            self.witness.name(task.idempotency_key, self.witness.task(*task.key))
        self.witness.tell(
            "intake",
            f"submit {content_id} version {version}: {answer.disposition}, {name}, "
            f"{len(answer.tasks)} tasks",
        )
        return answer

    def pass_time(self, seconds: float, why: str) -> None:
        """Advance the clock of everything."""
        self.clock.advance(seconds)
        self.witness.tell("clock", f"{seconds:g} s pass: {why}")

    async def look_at_due(self, worker: Worker, case_id: str) -> None:
        """One scan of due rows by a dispatcher, until its resolver has told of the case."""
        told = self.wakeups.count(CHANGED, case_id)
        if await worker.core.timer_once():
            await self.wakeups.until(lambda: self.wakeups.count(CHANGED, case_id) > told)

    async def aggregate(self) -> None:
        """One round of the aggregator, and the relay's rounds that tell of it."""
        await self.aggregator.round()
        await self.relay_all()

    async def relay_all(self) -> None:
        """Publish the outbox."""
        while await self.relay.publish():
            pass

    def events(self, topic: str, case_id: str) -> int:
        """How many events of a topic were published for a case."""
        return self.wakeups.count(topic, case_id)

    async def task(self, case_id: str, n: int = 1) -> Task:
        """One task as it is stored; raises LookupError."""
        found = await self.mesh.read(tasks.get, (case_id, n))
        if found is None:
            raise LookupError(f"no task {n} of {self.witness.called(case_id)}")
        return found

    async def states_met(self, case_id: str) -> list[str]:
        """Every state that a case's tasks were moved to, in order."""
        recorded = await self.mesh.read(moves.recorded, case_id)
        # That an UNKNOWN call goes on being UNKNOWN is recorded too, and is no move.
        return [str(row.to_state) for row in recorded if row.from_state != row.to_state]

    async def decisions(self, case_id: str) -> list[str]:
        """The outcomes of a case's decisions, the first version first."""
        found = await self.mesh.read(decisions.listed, case_id)
        return [str(each.outcome) for each in found]

    async def receipts(self, case_id: str) -> list[Row]:
        """What is stored of receipts, and of settles that lost their fence."""
        return [
            {
                "task": self.witness.task(row.parent_id, row.n),
                "source": row.source,
                "attempt": row.attempt,
                "state": row.state,
                "vendor_status": row.vendor_status,
                "cost_micros": row.cost_micros,
                "disposition": row.disposition,
            }
            for row in await self.mesh.read(receipts.listed, case_id)
        ]

    async def decide(self, case_id: str) -> Decision:
        """What the rule says of a case now, with nothing written; raises LookupError."""

        def read(tx: Tx) -> Decision:
            parent = parents.get(tx, case_id)
            if parent is None:
                raise LookupError(case_id)
            policy = policies.get(tx, parent.policy_id, parent.policy_version)
            if policy is None:
                raise LookupError(parent.policy_id)
            children = snapshots.children(tx, [case_id])[case_id]
            return decide(snapshot_of(parent, children), policy.policy, tx.now())

        return await self.mesh.read(read)

    async def snapshot(self, title: str, *case_ids: str) -> list[Rows]:
        """The rows of these cases as they are stored now: parents, then tasks."""

        def read(tx: Tx) -> tuple[list[Row], list[Row]]:
            above: list[Row] = []
            below: list[Row] = []
            for case_id in case_ids:
                parent = parents.get(tx, case_id)
                if parent is None:
                    continue
                above.append(
                    {
                        "parent": self.witness.called(case_id),
                        "state": str(parent.state),
                        "version": parent.version,
                        "decisions": len(decisions.listed(tx, case_id)),
                        "late_results": len(decisions.late_results(tx, case_id)),
                        "wakes_in_s": _seconds(parent.wake_at, tx.now()),
                    }
                )
                below += [self._task_row(task, tx.now()) for task in tasks.children(tx, case_id)]
            return above, below

        above, below = await self.mesh.read(read)
        return [Rows(f"{title}: parents", above), Rows(f"{title}: tasks", below)]

    async def calls(self, *vendors: str) -> list[Row]:
        """The books of these vendors, one row a request key."""
        rows: list[Row] = []
        for vendor in vendors:
            ledger = await self.vendor.ledger(vendor)
            rows += [
                {
                    "vendor": vendor,
                    "key": key,
                    "task": self.witness.called(key),
                    "requests": page["requests"],
                    "executions": page["executions"],
                    "charges": page["charges"],
                    "cost_micros": page["cost_micros"],
                }
                for key, page in sorted(
                    ledger["keys"].items(), key=lambda entry: self.witness.called(entry[0])
                )
            ]
        return rows

    async def receipt(self, vendor: str, task: Task, status: str, **fields: Any) -> bool:
        """Have the vendor send one signed receipt; False when the gateway knew the fact.

        Returns once the aggregator has taken it. Raises RuntimeError when it is refused.
        """
        counts = self.gateway.core.receipt_counts
        before = counts.stored
        body = {"key": task.idempotency_key, "status": status, **fields}
        url = f"{self.vendor.endpoint}/_control/{vendor}/receipts"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            told = await answer.json()
        if answer.status != 200 or told["status"] >= 300:
            raise RuntimeError(f"the receipt was refused: {told}")
        await self.sink.until(counts.stored)
        return counts.stored > before

    async def stop(self) -> None:
        """End what the dispatchers have under way."""
        for worker in self.workers:
            await worker.core.resolver.stop()
            await worker.core.claimer.leases.abandon()

    def _task_row(self, task: Task, now: int) -> Row:
        return {
            "task": self.witness.task(*task.key),
            "model": task.model_id,
            "needed": str(task.requirement),
            "state": str(task.state),
            "attempt": task.attempt,
            "owner": self.witness.called(task.owner) if task.owner else None,
            "sends": task.sends,
            "maybe_executed": task.maybe_executed,
            "needs_operator": task.needs_operator,
            "reason": task.reason or None,
            "wakes_in_s": _seconds(task.wake_at, now),
        }


def _seconds(wake_at: int | None, now: int) -> float | None:
    """Seconds to the next event; None: the row is closed."""
    return None if wake_at is None else (wake_at - now) / MICROS_PER_SECOND
