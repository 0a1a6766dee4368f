"""Budgets that bound retries: one per task, one per pool.

Receives counts. Hands on whether one more try is within bounds. A task's budget is enforced
by the call ledger (`kernel/idempotency.py`); the pool's keeps retries to a share of first
attempts, so that an outage is not answered with a storm. Source: DESIGN section 6.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """Tokens of one pool: each first attempt earns `share`, each retry spends one.

    `burst` tokens are there at the start and are the most that can be saved. A few come with
    time alone: where no first attempts arrive any more, what waits for a retry must not wait
    for its deadline.
    """

    share: float = 0.5
    burst: float = 50.0
    tokens: float = 50.0
    trickle_per_second: float = 5.0
    seen_seconds: float | None = None

    def pass_time(self, steady_seconds: float) -> None:
        """Credit the time since the last call, by a steady clock."""
        passed = steady_seconds - (
            steady_seconds if self.seen_seconds is None else self.seen_seconds
        )
        self.seen_seconds = steady_seconds
        self.tokens = min(self.burst, self.tokens + self.trickle_per_second * passed)

    def earn(self, first_attempts: int = 1) -> None:
        """Credit `first_attempts` first attempts."""
        self.tokens = min(self.burst, self.tokens + self.share * first_attempts)

    def whole(self) -> int:
        """How many retries may go now."""
        return int(self.tokens)

    def spend(self, retries: int) -> None:
        """Take what went."""
        self.tokens -= retries
