"""What stands between the real cores of a lab, in one process: links that can be watched and held.

Receives calls of a dispatcher, receipts of the gateway and wake-ups. Hands them on to the real
core on the other side; a gate stops a dispatcher as a paused process would stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cli.labs.witness import Witness
from kernel.attempt import CallOutcome, CallRequest, FenceAnswer, QueryOutcome
from kernel.runtime.wakeups import InProcessWakeups
from kernel.store.raw_receipts import StoredReceipt
from services.aggregator import receipts
from services.aggregator.core import AggregatorCore
from services.dispatcher.gateway import Occupied
from services.vendor_proxy.adapters import CancelAnswer
from services.vendor_proxy.core import ProxyCore

CALLER = "mesh"


class LabLink:
    """A dispatcher's gateway, straight to the vendor proxy's core.

    `before` and `after` hold an Execute back on its way out and its answer on the way in. One
    call at a time, so that equal runs draw and tell alike.
    """

    def __init__(self, who: str, proxy: ProxyCore, witness: Witness) -> None:
        self.before, self.after, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.before.set()
        self.after.set()
        self.answers: list[tuple[int, CallOutcome]] = []
        self.fences: list[FenceAnswer] = []
        self.queries: list[QueryOutcome] = []
        self._who = who
        self._proxy = proxy
        self._witness = witness
        self._turn = asyncio.Lock()

    async def execute(self, request: CallRequest) -> CallOutcome:
        """Execute, when the gates are open."""
        await self.before.wait()
        async with self._turn:
            called = f"Execute {self._called(request.idempotency_key)} attempt {request.attempt}"
            self._witness.tell(self._who, called)
            self.asked.set()
            outcome = await self._proxy.execute(CALLER, request)
            await self.after.wait()
            self.answers.append((request.attempt, outcome))
            said = str(outcome.outcome)
            if outcome.reason and outcome.reason != outcome.outcome:
                said += f" ({outcome.reason})"
            self._witness.tell(
                self._who, f"{called}: {said}{', replayed' if outcome.replayed else ''}"
            )
        return outcome

    async def fence(
        self, idempotency_key: str, vendor: str, attempt: int
    ) -> tuple[FenceAnswer, CallOutcome | None]:
        """FenceCall."""
        answer, call = await self._proxy.fence(CALLER, idempotency_key, vendor, attempt)
        self.fences.append(answer)
        called = self._called(idempotency_key)
        self._witness.tell(self._who, f"FenceCall {called} up to attempt {attempt}: {answer}")
        return answer, call

    async def query(self, idempotency_key: str, vendor: str) -> QueryOutcome:
        """QueryStatus."""
        answer = await self._proxy.query_status(CALLER, idempotency_key, vendor)
        self.queries.append(answer)
        why = f" ({answer.reason})" if answer.reason else ""
        called = self._called(idempotency_key)
        self._witness.tell(self._who, f"QueryStatus {called}: {answer.answer}{why}")
        return answer

    async def occupied(self) -> dict[str, Occupied]:
        """ListLimits."""
        return {
            each.pool: Occupied(each.concurrency, each.in_flight + each.quarantined)
            for each in self._proxy.list_limits()
        }

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        """CancelCall."""
        answer = await self._proxy.cancel_call(CALLER, idempotency_key, vendor)
        return answer is CancelAnswer.CANCELLED

    def _called(self, idempotency_key: str) -> str:
        return self._witness.called(idempotency_key)


class LabSink:
    """The way of receipts to the aggregator, which hears each batch twice.

    That is what a lost acknowledgement leads to; the second answer is the one that arrives.
    """

    def __init__(self, aggregator: AggregatorCore, witness: Witness) -> None:
        self.dispositions: list[str] = []
        self.repeated: list[str] = []
        self._aggregator = aggregator
        self._witness = witness
        self._changed = asyncio.Event()

    async def apply(self, stored: Sequence[StoredReceipt]) -> Sequence[str]:
        """ApplyReceipts, and the same again."""
        batch = [
            receipts.received(
                receipt_id=each.receipt_id,
                task_id=each.task_id,
                state=each.state,
                vendor_status=each.vendor_status,
                external_id=each.external_id,
                reason=each.reason,
                scores=each.scores,
                cost_micros=each.cost_micros or 0,
                occurred_at=each.occurred_at,
            )
            for each in stored
        ]
        first = await self._aggregator.apply_receipts(batch)
        again = await self._aggregator.apply_receipts(batch)
        self._witness.tell(
            "aggregator",
            f"receipts taken: {', '.join(first)}; the same batch again: {', '.join(again)}",
        )
        self.dispositions += first
        self.repeated += again
        self._changed.set()
        return again

    async def until(self, count: int) -> None:
        """Return once `count` receipts were handed on."""
        while len(self.dispositions) < count:
            self._changed.clear()
            await self._changed.wait()


class LabWakeups(InProcessWakeups):
    """Wake-ups that are remembered, so that a lab can wait for one and count events."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str, str]] = []
        self._changed = asyncio.Event()

    async def publish(self, topic: str, key: str, body: str) -> None:
        """Remember it, then wake."""
        self.told.append((topic, key, body))
        self._changed.set()
        await super().publish(topic, key, body)

    def count(self, topic: str, key: str) -> int:
        """How often `topic` was told with this key."""
        return sum((each_topic, each_key) == (topic, key) for each_topic, each_key, _ in self.told)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return once what was told makes `reached` true."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()
