"""Receives a running simulator; hands the tests its caller, its receiver and its clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from standardwebhooks import Webhook

from kernel.environment import MICROS_PER_SECOND, SystemClock


class HandClock:
    """A clock that moves only when a test moves it; it starts at the real time."""

    def __init__(self) -> None:
        self._micros = SystemClock().now_micros()
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._naps = 0
        self._changed = asyncio.Condition()

    def now_micros(self) -> int:
        return self._micros

    def suspended_seconds(self) -> float:
        return self._micros / MICROS_PER_SECOND

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        woken = asyncio.Event()
        self._naps += 1
        until = self._micros + round(seconds * MICROS_PER_SECOND)
        heapq.heappush(self._sleepers, (until, self._naps, woken))
        async with self._changed:
            self._changed.notify_all()
        await woken.wait()

    async def sleeping(self, count: int) -> None:
        """Return once `count` sleepers wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._sleepers) >= count)

    def advance(self, seconds: float) -> None:
        """Move on, waking whoever is due."""
        self._micros += round(seconds * MICROS_PER_SECOND)
        while self._sleepers and self._sleepers[0][0] <= self._micros:
            heapq.heappop(self._sleepers)[2].set()


@dataclass(slots=True)
class Reply:
    """One answer, read to its end."""

    status: int
    body: Any
    headers: Any


@dataclass(slots=True)
class Caller:
    """Speaks to the simulator as the adapter and the operator do."""

    session: aiohttp.ClientSession
    base: str

    async def ask(self, method: str, path: str, **how: Any) -> Reply:
        async with self.session.request(method, self.base + path, **how) as answer:
            is_json = answer.content_type == "application/json"
            body = await (answer.json() if is_json else answer.text())
            return Reply(answer.status, body, answer.headers)

    async def control(self, vendor: str = "v", **settings: Any) -> Reply:
        if "asynchronous" in settings.get("capabilities", {}):
            settings["capabilities"]["async"] = settings["capabilities"].pop("asynchronous")
        reply = await self.ask("PUT", f"/_control/{vendor}", json=settings)
        assert reply.status == 200, reply.body
        return reply

    async def call(self, key: str, vendor: str = "v", **fields: Any) -> Reply:
        body = {"reference": key, "model": "m", "kind": "TEXT", "input": {"text": "hello"}}
        return await self.ask(
            "POST", f"/v/{vendor}/calls", json=body | fields, headers={"Idempotency-Key": key}
        )

    async def batch(self, *keys: str, vendor: str = "v", **fields: Any) -> Reply:
        calls = [{"idempotency_key": key, "reference": key, "model": "m"} | fields for key in keys]
        return await self.ask("POST", f"/v/{vendor}/batch", json={"calls": calls})

    async def query(self, key: str, vendor: str = "v") -> Reply:
        return await self.ask("GET", f"/v/{vendor}/calls", params={"key": key})

    async def ledger(self, vendor: str = "v") -> Any:
        return (await self.ask("GET", f"/_control/{vendor}/ledger")).body

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it holds; the suite's time-out is the bound."""
        while not await condition():
            pass

    async def until_executed(self, key: str) -> None:
        async def executed() -> bool:
            return key in (keys := (await self.ledger())["keys"]) and keys[key]["executions"] > 0

        await self.until(executed)


@dataclass(slots=True)
class Letter:
    """A receipt as it came in."""

    headers: dict[str, str]
    raw: bytes

    def verified(self, secret: str) -> Any:
        """The body, or WebhookVerificationError."""
        return Webhook(secret).verify(self.raw, self.headers)


@dataclass(slots=True)
class Receiver:
    """Takes receipts in; answers with `statuses` in turn, then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    letters: asyncio.Queue[Letter] = field(default_factory=asyncio.Queue)

    async def take(self, request: web.Request) -> web.Response:
        self.letters.put_nowait(Letter(dict(request.headers), await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    async def next(self, secret: str) -> Any:
        return (await self.letters.get()).verified(secret)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver()
    application = web.Application()
    application.router.add_post("/receipts", receiver.take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/receipts"
    try:
        yield receiver
    finally:
        await runner.cleanup()
