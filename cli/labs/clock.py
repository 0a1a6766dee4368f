"""A lab's clock: time passes when the lab says so, for the stores and the vendors too.

Receives `advance`. Hands on a `kernel.environment.Clock`: a lease of thirty seconds runs out
at once, and nothing in a lab waits for real time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kernel.environment import MICROS_PER_SECOND

START_MICROS = 1_798_761_600 * MICROS_PER_SECOND
"""2027-01-01T00:00:00Z."""


@dataclass(eq=False, slots=True)
class _Sleeper:
    until: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class LabClock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self._micros = START_MICROS
        self._sleepers: list[_Sleeper] = []
        self._joined = asyncio.Event()

    def now_micros(self) -> int:
        """Wall time in microseconds since the epoch."""
        return self._micros

    def suspended_seconds(self) -> float:
        """Seconds since the lab began."""
        return (self._micros - START_MICROS) / MICROS_PER_SECOND

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds` in all."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = _Sleeper(self._micros + round(seconds * MICROS_PER_SECOND))
        self._sleepers.append(sleeper)
        self._joined.set()
        try:
            await sleeper.woken.wait()
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Move on, and wake whoever is due."""
        self._micros += round(seconds * MICROS_PER_SECOND)
        for sleeper in self._sleepers:
            if sleeper.until <= self._micros:
                sleeper.woken.set()

    async def until_asleep(self, seconds: float) -> None:
        """Return once somebody sleeps until exactly `seconds` from now."""
        wanted = self._micros + round(seconds * MICROS_PER_SECOND)
        while all(sleeper.until != wanted for sleeper in self._sleepers):
            self._joined.clear()
            await self._joined.wait()
