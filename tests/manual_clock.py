"""Receives nothing; hands tests a clock that moves only when they move it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kernel.environment import MICROS_PER_SECOND


class _Sleeper(NamedTuple):
    until: int
    woken: asyncio.Event


class ManualClock:
    """A `kernel.environment.Clock` that starts at a fixed time and waits for `advance`."""

    def __init__(self, start_micros: int = 1_800_000_000_000_000) -> None:
        self._micros = start_micros
        self._sleepers: list[_Sleeper] = []
        self._changed = asyncio.Event()

    def now_micros(self) -> int:
        return self._micros

    def suspended_seconds(self) -> float:
        return self._micros / MICROS_PER_SECOND

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = _Sleeper(self._micros + round(seconds * MICROS_PER_SECOND), asyncio.Event())
        self._sleepers.append(sleeper)
        self._changed.set()
        try:
            await sleeper.woken.wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Move on, waking whoever is due, the earliest first."""
        self._micros += round(seconds * MICROS_PER_SECOND)
        due = sorted((s for s in self._sleepers if s.until <= self._micros), key=lambda s: s.until)
        self._sleepers = [s for s in self._sleepers if s.until > self._micros]
        for sleeper in due:
            sleeper.woken.set()

    async def sleeping(self, count: int) -> None:
        """Return once `count` or more sleep."""
        while len(self._sleepers) < count:
            self._changed.clear()
            await self._changed.wait()
