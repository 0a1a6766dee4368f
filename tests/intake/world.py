"""Receives a folder and a clock; hands tests an intake on real SQLite files, and its facts."""

from __future__ import annotations

import base64
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event

from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.idempotency import Hasher
from kernel.runtime.settings import Settings
from kernel.runtime.vault import Vault, VaultKeys
from kernel.store import policies, tasks
from kernel.store.schema import MESH
from kernel.store.tasks import Task
from kernel.store.transaction import Store
from kernel.store.vault_schema import VAULT
from services.intake.admission import Content, Kind, Part
from services.intake.core import IntakeCore
from tests.manual_clock import ManualClock

HASH_KEY = base64.b64encode(b"h" * 32).decode()
HASHER = Hasher(b"h" * 32)


def model(name: str, pool: str, **more: Any) -> dict[str, Any]:
    return {"model": name, "pool": pool, **more}


RULES: list[dict[str, Any]] = [
    {
        "kind": "TEXT",
        "tenants": ["acme"],
        "labels": {"lane": "strict"},
        "models": [model("strict-text", "text")],
    },
    {
        "kind": "TEXT",
        "models": [model("text", "text"), model("tone", "tone", requirement="OPTIONAL")],
    },
    {"kind": "IMAGE", "models": [model("image", "image")]},
    {"kind": "VIDEO", "models": [model("image", "image"), model("motion", "video", version="2")]},
]


def settings(**given: Any) -> Settings:
    values: dict[str, Any] = {
        "intake_addr": "127.0.0.1:0",
        "hash_key": HASH_KEY,
        "drain_seconds": 1.0,
        "vendors": {
            "alpha": {"endpoint": "http://127.0.0.1:1"},
            "beta": {"endpoint": "http://127.0.0.1:2"},
        },
        "pools": {
            "text": {"vendor": "alpha", "concurrency": 2},
            "tone": {"vendor": "beta", "concurrency": 2},
            "image": {"vendor": "alpha", "concurrency": 2},
            "video": {"vendor": "beta", "concurrency": 2},
        },
        "planning": {"rules": RULES, "deadline_seconds": 300.0, "frames_per_second": 2.0},
        "policies": {"default": {"rules": [{"category": "*", "reject_at": 0.9}]}},
    }
    return Settings.model_validate({**values, **given})


def text_content(content_id: str = "post-1", text: str = "hello", **more: Any) -> Content:
    values: dict[str, Any] = {"tenant_id": "acme", "content_version": 1}
    values["parts"] = (Part(Kind.TEXT, text=text),)
    return Content(content_id=content_id, **{**values, **more})


@dataclass(slots=True)
class RecordingWakeups:
    """A bus that keeps what it was told, and refuses the topics in `down`."""

    told: list[tuple[str, str, str]] = field(default_factory=list)
    down: set[str] = field(default_factory=set)

    async def publish(self, topic: str, key: str, body: str) -> None:
        if topic in self.down:
            raise ConnectionError("the bus is away")
        self.told.append((topic, key, body))

    async def wait(self, topics: frozenset[str], timeout_seconds: float) -> bool:
        raise NotImplementedError


class StatementFaults:
    """Fails the n-th statement of a store from now on, BEGIN included; 0 fails none."""

    def __init__(self, store: Store) -> None:
        self.fail_at = 0
        self.fail_always = False
        self.seen = 0
        event.listen(store.engine, "do_execute", self._on_execute)

    def arm(self, fail_at: int) -> None:
        self.fail_at, self.seen = fail_at, 0

    def _on_execute(self, *_: object) -> None:
        self.seen += 1
        if self.fail_always or self.seen == self.fail_at:
            raise sqlite3.OperationalError("disk I/O error")


@dataclass(slots=True)
class World:
    """An intake core with everything around it."""

    folder: Path
    clock: ManualClock
    environment: Environment
    settings: Settings
    store: Store
    vault: Vault
    wakeups: RecordingWakeups
    core: IntakeCore
    nudges: list[None]

    def now(self) -> int:
        return self.clock.now_micros()

    def ahead(self, seconds: float) -> int:
        return self.now() + int(seconds * MICROS_PER_SECOND)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What another connection reads of the mesh's database."""
        with closing(sqlite3.connect(self.folder / "mesh.db")) as connection:
            return connection.execute(sql).fetchall()

    def counts(self) -> tuple[int, int, int]:
        """Rows of parents, tasks and outbox."""
        (found,) = self.rows(
            "select (select count(*) from parents), (select count(*) from tasks), "
            "(select count(*) from outbox)"
        )
        return found[0], found[1], found[2]

    async def children(self, case_id: str) -> list[Task]:
        return await self.store.read(tasks.children, case_id)


@asynccontextmanager
async def open_world(
    folder: Path, store_class: type[Store] = Store, **given: Any
) -> AsyncIterator[World]:
    clock = ManualClock()
    environment = Environment(clock, random.Random(7))
    store = store_class(f"sqlite:///{folder / 'mesh.db'}", clock)
    sealed = Store(f"sqlite:///{folder / 'vault.db'}", clock)
    MESH.create_all(store.engine)
    VAULT.create_all(sealed.engine)
    declared = settings(**given)
    vault = Vault(sealed, VaultKeys([("k1", b"k" * 32)]), environment)
    wakeups = RecordingWakeups()
    nudges: list[None] = []
    core = IntakeCore(
        store,
        vault,
        HASHER,
        declared.planning,
        declared.pool_profiles(),
        environment,
        wakeups,
        lambda: nudges.append(None),
    )
    for name, policy in declared.policies.items():
        await store.write(policies.insert, policy.policy(name), "test")
    try:
        yield World(folder, clock, environment, declared, store, vault, wakeups, core, nudges)
    finally:
        await store.close()
        await sealed.close()
