"""The clock, the random source and the ids: handed to everything, made nowhere else.

Receives nothing. Hands on one `Environment`, through which all time, randomness and
identity enter. Nothing else in the tree calls `time`, `random`, `secrets` or `uuid`
(a test in `tests/test_house_rules.py` holds that), so the simulator can own them all.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Protocol

MICROS_PER_SECOND = 1_000_000


def micros(seconds: float) -> int:
    """A duration in microseconds."""
    return int(seconds * MICROS_PER_SECOND)


class Clock(Protocol):
    """Time as seen by one process. Microseconds and seconds are stated in each name."""

    def now_micros(self) -> int:
        """Wall time: microseconds since 1970-01-01T00:00:00Z."""

    def suspended_seconds(self) -> float:
        """A steady clock in seconds that goes on while the machine sleeps (CLOCK_BOOTTIME)."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` of this clock's time."""


class SystemClock:
    """The machine's own clocks."""

    def now_micros(self) -> int:
        """Wall time in microseconds since the epoch."""
        return time.time_ns() // 1_000

    def suspended_seconds(self) -> float:
        """CLOCK_BOOTTIME where the system has it: it counts through suspension."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Environment:
    """Clock and random source of one process, and the ids made from both."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.SystemRandom)

    def new_id(self) -> str:
        """A 128-bit id as 32 lower-case hex digits: 48 bits of milliseconds, 80 random bits.

        The layout is ULID's; the digits are also a W3C trace id (DESIGN section 3).
        """
        millis = self.clock.now_micros() // 1_000
        return f"{millis & (1 << 48) - 1:012x}{self.random.getrandbits(80):020x}"

    def new_span_id(self) -> str:
        """A 64-bit W3C span id as 16 lower-case hex digits, never all zero."""
        return f"{self.random.getrandbits(64) or 1:016x}"
