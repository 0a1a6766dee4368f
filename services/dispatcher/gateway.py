"""The dispatcher's view of the vendor proxy.

Receives calls in the rules' own values. Hands on typed outcomes. A link that broke is no
answer: it is raised as `LinkLostError`, and the caller treats the call as one that may have
happened.
"""

from __future__ import annotations

from typing import Protocol

from kernel.attempt import CallOutcome, CallRequest, FenceAnswer, QueryOutcome


class LinkLostError(Exception):
    """The proxy did not answer; whether it acted is not known."""


class Gateway(Protocol):
    """What the dispatcher asks of the proxy; each may raise LinkLostError."""

    async def execute(self, request: CallRequest) -> CallOutcome:
        """Have a call made, or its stored outcome replayed."""

    async def fence(
        self, idempotency_key: str, vendor: str, attempt: int
    ) -> tuple[FenceAnswer, CallOutcome | None]:
        """Close all attempts up to and including `attempt` to new sends."""

    async def query(self, idempotency_key: str, vendor: str) -> QueryOutcome:
        """Ask the vendor what became of a call."""

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        """Ask the vendor to stop a call; True when it confirmed."""
