"""Receives what a test wants to hear; hands the dispatcher a proxy that acts it by name.

`Gateway` in memory: every call is recorded in `calls`, in order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kernel.attempt import (
    NO_PERMIT,
    CallOutcome,
    CallRequest,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    QueryOutcome,
    Resend,
)
from services.dispatcher.gateway import LinkLostError, Occupied

T = TypeVar("T")

SCORES: Mapping[str, float] = {"spam": 0.1}

# Of what the ledger knows for sure it says that it settles the whole key.
COMPLETED = CallOutcome(
    Outcome.COMPLETED, scores=SCORES, external_id="x-1", sends=1, cost_micros=7, settles_key=True
)
RESULT_LOST = CallOutcome(Outcome.COMPLETED, sends=1, settles_key=True)
ACCEPTED = CallOutcome(Outcome.ACCEPTED, external_id="x-1", sends=1, receipt_due_seconds=5.0)
REJECTED = CallOutcome(Outcome.REJECTED, reason="INVALID_INPUT", sends=1, settles_key=True)
BUSY = CallOutcome(Outcome.REJECTED, reason="BUSY", retryable=True, sends=1, settles_key=True)
THROTTLED = CallOutcome(Outcome.THROTTLED, reason="THROTTLED", sends=1, settles_key=True)
NOT_SENT = CallOutcome(Outcome.NOT_SENT, reason="CONNECT_REFUSED", retryable=True, settles_key=True)
FULL = CallOutcome(Outcome.NOT_SENT, reason=NO_PERMIT, retryable=True)
UNKNOWN = CallOutcome(Outcome.UNKNOWN, reason="READ_TIMEOUT", sends=1)
IN_PROGRESS = CallOutcome(Outcome.IN_PROGRESS, reason="IN_PROGRESS", sends=1)
STALE = CallOutcome(Outcome.STALE_ATTEMPT, reason="STALE_ATTEMPT")
MISMATCH = CallOutcome(Outcome.REQUEST_MISMATCH, reason="REQUEST_MISMATCH", field="payload")
EXHAUSTED = CallOutcome(Outcome.BUDGET_EXHAUSTED, reason="BUDGET_EXHAUSTED", sends=4)

RUNNING = QueryOutcome(QueryAnswer.RUNNING, call=ACCEPTED)
NOT_FOUND = QueryOutcome(QueryAnswer.NOT_FOUND, resend=Resend.SAFE)
TOO_EARLY = QueryOutcome(QueryAnswer.TOO_EARLY, retry_after_seconds=3.0, reason="QUERY_FAILED")
CANNOT_TELL = QueryOutcome(QueryAnswer.CANNOT_TELL, reason="CANNOT_BE_QUERIED")
MAY_RESEND = QueryOutcome(QueryAnswer.CANNOT_TELL, resend=Resend.MARKED)
SAFE_RESEND = QueryOutcome(QueryAnswer.CANNOT_TELL, resend=Resend.SAFE)


def settled(call: CallOutcome) -> QueryOutcome:
    """The vendor, or the ledger, says how it ended."""
    return QueryOutcome(QueryAnswer.SETTLED, call=call)


LINK_LOST = LinkLostError("UNAVAILABLE")

Fence = tuple[FenceAnswer, CallOutcome | None]
NEVER_BEGUN: Fence = (FenceAnswer.NEVER_BEGUN, None)
STILL_RUNS: Fence = (FenceAnswer.IN_PROGRESS, None)
IN_DOUBT: Fence = (FenceAnswer.UNKNOWN, None)


def ended(call: CallOutcome) -> Fence:
    """The ledger has this outcome."""
    return (FenceAnswer.SETTLED, call)


class Call(NamedTuple):
    """One call of the dispatcher."""

    verb: str
    key: str
    attempt: int = 0


class Hang:
    """An answer that comes when the test lets it."""

    def __init__(self, then: CallOutcome = COMPLETED) -> None:
        self.then = then
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()


@dataclass
class ScriptedGateway:
    """Answers in turn what it was given; the last answer of each verb goes on for ever."""

    executes: list[CallOutcome | Hang | Exception] = field(default_factory=lambda: [COMPLETED])
    fences: list[Fence | Exception] = field(default_factory=list)
    queries: list[QueryOutcome | Exception] = field(default_factory=list)
    cancels: bool = False
    away: bool = False
    occupied_by: dict[str, Occupied] = field(default_factory=dict)
    occupied_gate: asyncio.Event | None = None
    occupied_asked: asyncio.Event = field(default_factory=asyncio.Event)
    fence_gate: asyncio.Event | None = None
    fence_asked: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[Call] = field(default_factory=list)
    requests: list[CallRequest] = field(default_factory=list)
    by_key: dict[str, deque[CallOutcome | Hang | Exception]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def verbs(self) -> list[str]:
        """What was asked, in order."""
        return [call.verb for call in self.calls]

    async def execute(self, request: CallRequest) -> CallOutcome:
        """Act the next answer of this key, or of all keys."""
        self.calls.append(Call("execute", request.idempotency_key, request.attempt))
        self.requests.append(request)
        own = self.by_key.get(request.idempotency_key)
        answer = own.popleft() if own else _next(self.executes, "execute")
        if isinstance(answer, Hang):
            answer.begun.set()
            await answer.let_go.wait()
            return answer.then
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fence(self, idempotency_key: str, vendor: str, attempt: int) -> Fence:
        """Act the next answer."""
        self.calls.append(Call("fence", idempotency_key, attempt))
        self.fence_asked.set()
        if self.fence_gate is not None:
            await self.fence_gate.wait()
        self._reach()
        answer = _next(self.fences, "fence")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def query(self, idempotency_key: str, vendor: str) -> QueryOutcome:
        """Act the next answer."""
        self.calls.append(Call("query", idempotency_key))
        self._reach()
        answer = _next(self.queries, "query")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def occupied(self) -> dict[str, Occupied]:
        """What the test says; nothing means that every permit is free."""
        self.occupied_asked.set()
        if self.occupied_gate is not None:
            await self.occupied_gate.wait()
        self._reach()
        return dict(self.occupied_by)

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        """Say what the test says."""
        self.calls.append(Call("cancel", idempotency_key))
        self._reach()
        return self.cancels

    def _reach(self) -> None:
        if self.away:
            raise LINK_LOST


def _next(answers: list[T], verb: str) -> T:
    if not answers:
        raise AssertionError(f"nobody told what a {verb} is to answer")
    return answers.pop(0) if len(answers) > 1 else answers[0]
