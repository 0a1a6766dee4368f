"""The loops of a service: started together, watched, and stopped in order.

Receives coroutine functions that do one round each. Hands on whether the service is healthy:
a round that failed makes it unhealthy until a later round succeeds, and a failed round
charges no task anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from kernel.environment import Environment
from kernel.retry import Backoff

_log = structlog.get_logger("sluice.loops")
_AFTER_FAILURE = Backoff(base_seconds=0.1, cap_seconds=5.0, floor=0.5)


class Loops:
    """Named background loops of one service."""

    def __init__(self, service: str, environment: Environment) -> None:
        self._service = service
        self._environment = environment
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self.on_health: Callable[[bool], Awaitable[None]] | None = None

    @property
    def healthy(self) -> bool:
        """Whether every loop is alive and its last round succeeded."""
        return not self._failing and all(not task.done() for task in self._tasks.values())

    @property
    def stopping(self) -> bool:
        """Whether the loops were asked to end."""
        return self._stopping.is_set()

    def start(self, name: str, one_round: Callable[[], Awaitable[None]]) -> None:
        """Run `one_round` again and again; each round waits by itself for what it needs."""
        self._tasks[name] = asyncio.create_task(
            self._run(name, one_round), name=f"{self._service}:{name}"
        )

    async def stop(self) -> None:
        """Let the present rounds be cancelled at their next wait, and end."""
        self._stopping.set()
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _run(self, name: str, one_round: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping.is_set():
            try:
                await one_round()
            except Exception as error:
                await self._failed(name, error)
            else:
                if self._failing.pop(name, None) and self.on_health is not None:
                    await self.on_health(self.healthy)

    async def _failed(self, name: str, error: Exception) -> None:
        failures = self._failing.get(name, 0)
        self._failing[name] = failures + 1
        # The type only: an exception's text can hold what must not be logged.
        _log.error(
            "loop_failed",
            service=self._service,
            loop=name,
            error=type(error).__name__,
            failures=failures + 1,
        )
        if self.on_health is not None:
            await self.on_health(False)
        draw = self._environment.random.random()
        await self._environment.clock.sleep(_AFTER_FAILURE.seconds(failures, draw))
