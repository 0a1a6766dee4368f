"""Receives a job and the script's wishes; hands on its receipts, in their order and time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from kernel.environment import Environment
from vendors.simulator.calls import Job, State
from vendors.simulator.chance import Chance
from vendors.simulator.courier import Receipt
from vendors.simulator.ledger import rfc3339
from vendors.simulator.script import Do, Entry


@dataclass(frozen=True, slots=True)
class Manner:
    """How a job's receipts are told. `late_seconds` holds back the final one."""

    silent: bool
    duplicate: bool
    reorder: bool
    forge: bool
    late_seconds: float

    @classmethod
    def of(cls, entries: tuple[Entry, ...]) -> Manner:
        """The manner that these entries ask for together."""
        wished = {entry.do for entry in entries}
        late = [entry.late_ms for entry in entries if entry.do is Do.LATE_RECEIPT]
        return cls(
            silent=Do.NO_RECEIPT in wished,
            duplicate=Do.DUPLICATE_RECEIPT in wished,
            reorder=Do.REORDER_RECEIPTS in wished,
            forge=Do.FORGED_RECEIPT in wished,
            late_seconds=max(late, default=0) / 1_000,
        )


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells jobs' receipts through `send` and `forge`, which give one receipt to the receiver."""

    environment: Environment
    chance: Chance
    send: Callable[[Receipt], Awaitable[None]]
    forge: Callable[[Receipt], Awaitable[None]]

    async def tell(self, job: Job, manner: Manner) -> None:
        """Send all receipts of one job: `processing` where it is asynchronous, then the end."""
        if manner.silent:
            return
        if job.asynchronous and not manner.reorder:
            await self._send(self._processing(job), manner)
        await job.ended.wait()
        if manner.forge:
            await self.forge(replace(self._final(job), status="failed", result=None))
        if manner.late_seconds:
            await self.environment.clock.sleep(manner.late_seconds)
        await self._send(self._final(job), manner)
        if job.asynchronous and manner.reorder:
            await self._send(self._processing(job), manner)

    async def _send(self, receipt: Receipt, manner: Manner) -> None:
        await self.send(receipt)
        if manner.duplicate:
            same = self.chance.same_event_id()
            await self.send(
                receipt if same else replace(receipt, event_id=self.environment.new_id())
            )

    def _processing(self, job: Job) -> Receipt:
        return Receipt(
            reference=job.reference,
            status="processing",
            occurred_at=rfc3339(job.begun_micros),
            event_id=self.environment.new_id(),
            external_id=job.external_id,
        )

    def _final(self, job: Job) -> Receipt:
        succeeded = job.state is State.SUCCEEDED
        return Receipt(
            reference=job.reference,
            status=job.state.lower(),
            occurred_at=rfc3339(job.ended_micros),
            event_id=self.environment.new_id(),
            external_id=job.external_id,
            result={"scores": job.scores} if succeeded else None,
            cost_micros=job.price_micros if succeeded else None,
        )
