"""Receives a vendor's seed; hands on its draws: script chances, latencies, receipt ids.

The one place here that constructs a random source: a vendor with a seed must draw the same
numbers whatever else the process draws. Without a seed all draws come from the environment.
"""

from __future__ import annotations

import math
import random

from kernel.environment import Environment

Latency = float | tuple[float, float]
"""Milliseconds: a fixed figure, or the median and the 99th percentile of a log-normal."""

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


def seeded(seed: int, purpose: str) -> random.Random:
    """A source that depends on `seed` and `purpose` only, so purposes never disturb each other."""
    return random.Random(f"{seed}:{purpose}")


class Chance:
    """One vendor's draws, each kind from a stream of its own when there is a seed."""

    def __init__(self, environment: Environment, seed: int | None) -> None:
        def stream(purpose: str) -> random.Random:
            return environment.random if seed is None else seeded(seed, purpose)

        self._script = stream("script")
        self._latency = stream("latency")
        self._receipts = stream("receipts")

    def happens(self, probability: float) -> bool:
        """True with `probability` (0 to 1)."""
        return self._script.random() < probability

    def latency_seconds(self, latency: Latency) -> float:
        """Seconds that one execution takes."""
        if not isinstance(latency, tuple):
            return latency / 1_000
        p50, p99 = latency
        sigma = math.log(p99 / p50) / Z99
        return self._latency.lognormvariate(math.log(p50), sigma) / 1_000

    def same_event_id(self) -> bool:
        """Whether a duplicated receipt repeats the event id; else it carries another."""
        return self._receipts.random() < 0.5
