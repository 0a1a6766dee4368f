"""Receives vendors as a test wants them; hands it the whole mesh in one process, and its facts.

The services, their databases, the wire between them and the scripted vendors are the real
ones. A test waits for conditions of the store or of the vendors' own ledgers.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from cli import processes, vendor_process
from cli.vendor_process import VendorControl
from kernel.environment import Environment
from kernel.lifecycle import State
from kernel.runtime.rpc import Authenticator, open_channel
from kernel.runtime.settings import Settings
from kernel.runtime.vault import Vault, VaultKeys
from kernel.store import migrations, moves, parents, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Store
from mesh.v1 import aggregator_pb2 as aggregator
from mesh.v1 import intake_pb2 as intake
from mesh.v1 import types_pb2 as types
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub
from mesh.v1.dispatcher_pb2_grpc import DispatcherServiceStub
from mesh.v1.intake_pb2_grpc import IntakeServiceStub
from services.vendor_proxy.app import VendorProxyApp
from tests.mesh.declared import DATABASES, SECRETS, Vendor, settings_for

LONGEST_SECONDS = 30.0


class Mesh:
    """A running mesh."""

    def __init__(self, settings: Settings, vendors: VendorControl, store: Store) -> None:
        self.settings = settings
        self.vendors = vendors
        self.store = store
        self.running = processes.Running()
        self.intake: Any = None
        self.cases: Any = None
        self.tasks: Any = None
        self._names = 0
        self._pause = Environment().clock

    async def connect(self, running: processes.Running, stack: AsyncExitStack) -> None:
        """Channels to the services."""
        self.running = running

        async def channel(address: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(open_channel(address))

        self.intake = IntakeServiceStub(await channel(running.intake))
        self.cases = AggregatorServiceStub(await channel(running.aggregator))
        self.tasks = DispatcherServiceStub(await channel(running.dispatcher))

    def request(self, *parts: intake.ContentPart, **more: Any) -> intake.SubmitContentRequest:
        """A content nobody submitted before; one text where nothing else is given."""
        self._names += 1
        seconds = more.pop("seconds", None)
        if seconds is not None:
            deadline = Timestamp()
            deadline.FromMicroseconds(Environment().clock.now_micros() + int(seconds * 1_000_000))
            more["deadline"] = deadline
        return intake.SubmitContentRequest(
            tenant_id=more.pop("tenant_id", "acme"),
            content_id=more.pop("content_id", f"post-{self._names}"),
            content_version=1,
            parts=parts or [text(f"text number {self._names}")],
            **more,
        )

    async def submit(self, *parts: intake.ContentPart, **more: Any) -> str:
        """Submit; the case's id."""
        answer = await self.intake.SubmitContent(self.request(*parts, **more), timeout=10)
        return str(answer.case_id)

    async def verdict(self, case_id: str) -> aggregator.Case:
        """The case, once it is decided."""
        request = aggregator.WatchCaseRequest(case_id=case_id)
        async for message in self.cases.WatchCase(request, timeout=LONGEST_SECONDS):
            if message.case.state != types.CASE_STATE_PENDING:
                return message.case  # type: ignore[no-any-return]
        raise AssertionError("the case was never decided")

    async def task(self, case_id: str, n: int = 1) -> Task:
        """A task's row."""
        found = await self.store.read(tasks.get, (case_id, n))
        assert found is not None
        return found

    async def path(self, case_id: str, n: int = 1) -> list[State]:
        """The states that a task went through after READY."""
        rows = await self.store.read(moves.recorded, case_id, n)
        return [State(row.to_state) for row in rows]

    async def reaches(self, case_id: str, state: State, n: int = 1) -> Task:
        """The task's row, once it stands there."""

        async def there() -> bool:
            return (await self.task(case_id, n)).state is state

        await self.until(there, f"task {n} is {state}")
        return await self.task(case_id, n)

    async def ledger(self, vendor: str) -> dict[str, Any]:
        """The vendor's own books."""
        return await self.vendors.ledger(vendor)

    async def page(self, vendor: str, task: Task) -> dict[str, Any]:
        """The page of a task's key in the vendor's own books."""
        found: dict[str, Any] = (await self.ledger(vendor))["keys"].get(task.idempotency_key, {})
        return found

    async def control(self, name: str, **body: Any) -> None:
        """Change what a vendor does."""
        await self.vendors.put({name: body})

    async def until(
        self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float = LONGEST_SECONDS
    ) -> None:
        """Return once `holds`; fails with `what` was waited for after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not await holds():
                    await self._pause.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"waited {seconds} s and it did not happen: {what}") from None

    async def cancelled(self, case_id: str) -> intake.CancelContentResponse:
        """The answer to the wish to cancel."""
        return await self.intake.CancelContent(  # type: ignore[no-any-return]
            intake.CancelContentRequest(case_id=case_id), timeout=10
        )

    async def parent_version(self, case_id: str) -> int:
        """How often a case was written."""
        found = await self.store.read(parents.get, case_id)
        assert found is not None
        return int(found.version)

    def rows(self, database: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What another connection reads."""
        path = _path(self.settings, database)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql, values).fetchall()


def text(content: str) -> intake.ContentPart:
    """A text part."""
    return intake.ContentPart(kind=intake.PART_KIND_TEXT, text=content)


def image(data: bytes) -> intake.ContentPart:
    """An image part."""
    return intake.ContentPart(kind=intake.PART_KIND_IMAGE, data=data)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_schemas(folder: Path) -> None:
    """Empty databases of the newest schema."""
    clock = Environment().clock
    for schema, file in DATABASES.items():
        store = Store(f"sqlite:///{folder / file}", clock)
        migrations.upgrade(store.engine, schema)
        store.engine.dispose()


class ProxyAlone:
    """A vendor proxy apart from the other services, at the address that the dispatcher knows."""

    def __init__(self, mesh: Mesh) -> None:
        environment = Environment()
        settings = mesh.settings.model_copy(update={"aggregator_addr": mesh.running.aggregator})
        self._ledger = Store(settings.proxy_database_url, environment.clock)
        self._payloads = Store(settings.vault_url, environment.clock)
        vault = Vault(self._payloads, VaultKeys.parse(settings.vault_keys), environment)
        self.app = VendorProxyApp(
            settings, environment, self._ledger, vault, Authenticator({}), SECRETS.get
        )

    @classmethod
    async def start(cls, mesh: Mesh) -> ProxyAlone:
        """One that serves."""
        alone = cls(mesh)
        await alone.app.start()
        return alone

    async def crash(self) -> None:
        """End it as a crash would."""
        await self.app.drop()
        await self._close()

    async def stop(self) -> None:
        """End it in order."""
        await self.app.stop()
        await self._close()

    async def _close(self) -> None:
        await self._ledger.close()
        await self._payloads.close()


@dataclass
class Opening:
    """Opens meshes in a folder; what it opened is stopped at the end of the test."""

    folder: Path
    empty: Path

    @asynccontextmanager
    async def __call__(
        self,
        vendors: Mapping[str, Vendor],
        planning: Mapping[str, list[dict[str, Any]]] | None = None,
        *,
        names: tuple[str, ...] = processes.SERVICES,
        **given: Any,
    ) -> AsyncIterator[Mesh]:
        """A mesh with these vendors."""
        environment = Environment()
        for file in DATABASES.values():
            shutil.copy(self.empty / file, self.folder / file)
        bodies = {name: each.played() for name, each in vendors.items()}
        async with AsyncExitStack() as stack:
            simulator = await vendor_process.start(0, bodies, environment)
            stack.push_async_callback(simulator.stop)
            endpoint = f"http://127.0.0.1:{simulator.port}"
            settings = settings_for(self.folder, endpoint, vendors, planning, **given)
            store = Store(settings.database_url, environment.clock)
            stack.push_async_callback(store.close)
            mesh = Mesh(settings, VendorControl(endpoint), store)
            running = await stack.enter_async_context(
                processes.run(settings, SECRETS.get, environment, names)
            )
            await mesh.connect(running, stack)
            yield mesh


def _path(settings: Settings, database: str) -> str:
    field_ = {"mesh": "database_url", "proxy": "proxy_database_url", "vault": "vault_url"}[database]
    return str(getattr(settings, field_)).removeprefix("sqlite:///")
