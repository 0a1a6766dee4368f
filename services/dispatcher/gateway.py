"""The dispatcher's view of the vendor proxy.

Receives calls in the rules' own values. Hands on typed outcomes. A link that broke is no
answer: it is raised as `LinkLostError`, and the caller treats the call as one that may have
happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernel.attempt import CallOutcome, CallRequest, FenceAnswer, QueryOutcome


class LinkLostError(Exception):
    """The proxy did not answer; whether it acted is not known."""


@dataclass(frozen=True, slots=True)
class Occupied:
    """A pool as the proxy sees it: permits in all, and those in use or quarantined."""

    limit: int
    in_use: int


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

    async def occupied(self) -> dict[str, Occupied]:
        """Every pool's permits: nothing is claimed that could not start."""

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        """Ask the vendor to stop a call; True when it confirmed."""
