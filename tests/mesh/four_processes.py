"""Receives a folder and a simulator; hands tests the four services as four real processes.

A service is killed by its id and started again on its own address, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml

from cli import processes
from cli.workspace import Workspace, default_vendors, load_settings, open_workspace
from kernel.environment import Environment
from kernel.runtime.rpc import open_channel
from kernel.runtime.settings import Settings
from kernel.store import outcome
from kernel.store.transaction import Store
from mesh.v1 import intake_pb2 as intake
from mesh.v1.intake_pb2_grpc import IntakeServiceStub
from tests.mesh.world import free_port

START_SECONDS = 30.0
# Shorter than in production, with every asserted relation kept.
TIMES: dict[str, Any] = {
    "drain_seconds": 2.0,
    "leases": {
        "lease_seconds": 4.0,
        "renew_interval_seconds": 0.8,
        "store_timeout_seconds": 1.0,
        "execute_timeout_seconds": 20.0,
    },
    "incarnation": {
        "lease_seconds": 3.0,
        "renew_interval_seconds": 0.6,
        "store_timeout_seconds": 0.6,
        "write_seconds": 0.5,
    },
}
_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass
class Service:
    """One service; `process` is the one that runs now."""

    name: str
    arguments: list[str]
    log: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and return once it serves."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cli.main", *self.arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self.process.stdout.readline()
        assert line.startswith(b"ready:"), f"{self.name}: {self.log.read_text()[-2000:]}"

    async def kill(self) -> None:
        """SIGKILL: no signal handler runs, nothing is settled."""
        assert self.process is not None
        assert self.process.returncode is None, f"{self.name} ended by itself"
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """End it, in order if it still listens."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@dataclass
class Mesh:
    """Four processes on one folder."""

    workspace: Workspace
    settings: Settings
    store: Store
    services: dict[str, Service]
    acknowledged: set[str] = field(default_factory=set)
    clock: Any = field(default_factory=lambda: Environment().clock)

    async def submit_all(self, requests: list[intake.SubmitContentRequest]) -> None:
        """Submit each until it is accepted, as a caller does whose link breaks."""
        waiting = iter(requests)
        async with open_channel(self.settings.intake_addr) as channel:
            stub: Any = IntakeServiceStub(channel)

            async def worker() -> None:
                for request in waiting:
                    self.acknowledged.add(await self._submit(stub, request))

            await asyncio.gather(*(worker() for _ in range(16)))

    async def _submit(self, stub: Any, request: intake.SubmitContentRequest) -> str:
        while True:
            try:
                answer = await stub.SubmitContent(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _RETRIED:
                    raise
                await self.clock.sleep(0.1)
            else:
                return str(answer.case_id)

    async def counts(self) -> outcome.Outcome:
        """What the store says now."""
        return await self.store.read(outcome.read)

    async def until(self, holds: Any, what: str, seconds: float) -> outcome.Outcome:
        """The counts, once they hold."""
        found = await self.counts()
        try:
            async with asyncio.timeout(seconds):
                while not holds(found):
                    await self.clock.sleep(0.05)
                    found = await self.counts()
        except TimeoutError:
            raise AssertionError(f"waited {seconds} s for: {what}; last seen {found}") from None
        return found


@asynccontextmanager
async def opened(folder: Path, endpoint: str) -> AsyncIterator[Mesh]:
    """The four services on fresh databases."""
    environment = Environment()
    workspace = open_workspace(folder / "data")
    names = ("intake", "dispatcher", "vendor_proxy", "vendor_proxy_http", "aggregator")
    config = folder / "sluice.yaml"
    addresses = {f"{name}_addr": f"127.0.0.1:{free_port()}" for name in names}
    config.write_text(yaml.safe_dump({**default_vendors(endpoint), **TIMES, **addresses}))
    settings = load_settings(workspace, config)
    where = ["--data", str(workspace.folder), "--config", str(config)]
    upgrade = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "db", "upgrade", *where,
        stdout=asyncio.subprocess.DEVNULL, env=os.environ,
    )  # fmt: skip
    assert await upgrade.wait() == 0
    services = {
        name: Service(name, ["serve", name, *where], folder / f"{name}.log")
        for name in processes.SERVICES
    }
    store = Store(settings.database_url, environment.clock)
    try:
        await asyncio.gather(*(service.start() for service in services.values()))
        yield Mesh(workspace, settings, store, services)
    finally:
        await asyncio.gather(*(service.stop() for service in services.values()))
        await store.close()
