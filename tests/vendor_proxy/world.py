"""Receives a folder; hands tests a gateway on a real SQLite file, a scripted vendor and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from kernel.attempt import CallOutcome, CallRequest
from kernel.environment import MICROS_PER_SECOND, Clock, Environment
from kernel.idempotency import Capabilities, Hasher
from kernel.limits import IncarnationBounds
from kernel.runtime.vault import PayloadGoneError, VaultKeys
from kernel.store.calls import CallKey, StoredCall
from kernel.store.proxy_schema import PROXY
from kernel.store.raw_receipts import StoredReceipt
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile, VendorProfile
from services.vendor_proxy.app import ProxyParts
from services.vendor_proxy.core import ProxyCore
from tests.manual_clock import ManualClock
from vendors.simulator.app import RunningSimulator, serve

CALLER = "mesh"
VENDOR = "v"
POOL = "p"
SECRET = "whsec_c2x1aWNlLXRlc3Qtc2VjcmV0LTMyLWJ5dGVzLWxvbmc="
BOUNDS = IncarnationBounds()
KEYED = Capabilities(query_by_key=True, authoritative=True, consistency_lag_seconds=1.0)


class MemoryVault:
    """A vault whose payloads tests put in by hand."""

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}
        self.keys = VaultKeys([("k1", b"0" * 32)])

    async def open(self, ref: str) -> bytes:
        if ref not in self.payloads:
            raise PayloadGoneError(ref)
        return self.payloads[ref]

    def seal(self, plain: bytes) -> bytes:
        return self.keys.seal(plain)


@dataclass
class MemorySink:
    """Keeps what it is told; `refusals` says how many times it answers with an error first."""

    told: list[StoredReceipt] = field(default_factory=list)
    refusals: int = 0
    calls: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def apply(self, receipts: Sequence[StoredReceipt]) -> Sequence[str]:
        self.calls += 1
        self.changed.set()
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError
        self.told.extend(receipts)
        return ["APPLIED" for _ in receipts]

    async def until(self, condition: Callable[[MemorySink], bool]) -> None:
        while not condition(self):
            self.changed.clear()
            await self.changed.wait()


class WatchedStore(Store):
    """A store that says when a gateway has renewed its lease and read the limits."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock)
        self.tended: asyncio.Queue[None] = asyncio.Queue()

    async def read(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = await super().read(function, *args, **kwargs)
        if function.__name__ == "_limits_now":
            self.tended.put_nowait(None)
        return result


@dataclass
class World:
    """One database, one vendor, and as many gateways as a test opens."""

    folder: Path
    clock: ManualClock
    environment: Environment
    vault: MemoryVault
    sink: MemorySink
    store: WatchedStore
    simulator: RunningSimulator
    session: aiohttp.ClientSession
    secrets: dict[str, str] = field(default_factory=lambda: {"env:RECEIPTS": SECRET})
    gateways: list[ProxyParts] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The simulator's address."""
        return f"http://127.0.0.1:{self.simulator.port}"

    def profile(self, able: Capabilities = KEYED, **fields: Any) -> VendorProfile:
        """A vendor played by the simulator."""
        given: dict[str, Any] = {
            "name": VENDOR,
            "adapter": "sluice",
            "endpoint": f"{self.url}/v/{VENDOR}",
            "able": able,
            "client_timeout_seconds": 2.0,
            "max_execution_seconds": 20.0,
            "price_micros": 100,
            "receipt_secret_ref": "env:RECEIPTS",
            "status_map": {
                "processing": "ACCEPTED",
                "succeeded": "SUCCEEDED",
                "failed": "FAILED",
            },
        }
        return VendorProfile(**(given | fields))

    async def gateway(
        self,
        profile: VendorProfile | None = None,
        concurrency: int = 4,
        store: Store | None = None,
    ) -> ProxyParts:
        """Start one more gateway on the same database."""
        profile = profile or self.profile()
        gateway = ProxyParts(
            store=store or self.store,
            environment=self.environment,
            vault=self.vault,
            hasher=Hasher(b"k" * 32),
            vendors={profile.name: profile},
            pools={POOL: PoolProfile(POOL, profile.name, concurrency)},
            secrets=self.secrets.get,
            sink=self.sink,
            bounds=BOUNDS,
        )
        await gateway.start()
        await asyncio.sleep(0)  # its loops go to sleep
        self.gateways.append(gateway)
        return gateway

    async def core(self, profile: VendorProfile | None = None, **how: Any) -> ProxyCore:
        """The core of a new gateway."""
        return (await self.gateway(profile, **how)).core

    def request(self, key: str = "k1", **fields: Any) -> CallRequest:
        """A text call, due in a minute."""
        given: dict[str, Any] = {
            "tenant_id": "t1",
            "idempotency_key": key,
            "vendor": VENDOR,
            "pool": POOL,
            "attempt": 1,
            "deadline": self.clock.now_micros() + 60 * MICROS_PER_SECOND,
            "max_sends": 4,
            "kind": "TEXT",
            "model_id": "m",
            "task_id": "0" * 32 + ".1",
            "payload": b"hello",
        }
        return CallRequest(**(given | fields))

    async def control(self, **settings: Any) -> None:
        """Set the vendor up."""
        async with self.session.put(f"{self.url}/_control/{VENDOR}", json=settings) as answer:
            assert answer.status == 200, await answer.text()

    async def ledger(self) -> Any:
        """The vendor's own books: what really happened."""
        async with self.session.get(f"{self.url}/_control/{VENDOR}/ledger") as answer:
            return await answer.json()

    async def executions(self, key: str = "k1") -> int:
        """How often the vendor executed a key."""
        page = (await self.ledger())["keys"].get(key)
        return int(page["executions"]) if page else 0

    async def requests(self) -> int:
        """How many calls reached the vendor."""
        return int((await self.ledger())["requests"])

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it holds; the suite's time-out is the bound."""
        while not await condition():
            pass

    async def until_executed(self, key: str = "k1", times: int = 1) -> None:
        """Return once the vendor has begun to execute a key."""

        async def executed() -> bool:
            return await self.executions(key) >= times

        await self.until(executed)

    async def row(self, core: ProxyCore, key: str = "k1") -> StoredCall:
        """The ledger's row."""
        return await core.get_call(CALLER, key, VENDOR)

    def key(self, key: str = "k1") -> CallKey:
        """The row's identity."""
        return CallKey(CALLER, VENDOR, key)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, one renewal after the other, so that nobody loses a lease."""
        living = [each for each in self.gateways if not each.core.loops.stopping]
        step = BOUNDS.renew_interval_seconds
        left = seconds
        while left > 0:
            while not self.store.tended.empty():
                self.store.tended.get_nowait()
            self.clock.advance(min(step, left))
            if left >= step:
                for _ in living:
                    await self.store.tended.get()
            left -= step

    async def timed_out(self, core: ProxyCore, request: CallRequest) -> CallOutcome:
        """Execute a call that the vendor executes and never answers, up to our time-out."""
        before = await self.executions(request.idempotency_key)
        call = asyncio.create_task(core.execute(CALLER, request))
        await self.until_executed(request.idempotency_key, before + 1)
        self.clock.advance(2.0)
        return await call


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    """A world whose clock moves only when a test moves it."""
    clock = ManualClock()
    environment = Environment(clock=clock)
    store = WatchedStore(f"sqlite:///{folder / 'proxy.db'}", clock)
    PROXY.create_all(store.engine)
    simulator = await serve(0, environment)
    async with aiohttp.ClientSession() as session:
        world = World(
            folder,
            clock,
            environment,
            MemoryVault(),
            MemorySink(),
            store,
            simulator,
            session,
        )
        await world.control(receipt_secret=SECRET)
        try:
            yield world
        finally:
            for gateway in world.gateways:
                await gateway.drop()
            await simulator.stop()
            await store.close()


def with_able(profile: VendorProfile, **able: Any) -> VendorProfile:
    """A profile with other capabilities."""
    return replace(profile, able=replace(profile.able, **able))
