"""Receives much that is written beside reads; checks that no read keeps SQLite's log growing."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from kernel.environment import SystemClock
from kernel.store import vault_schema
from kernel.store.transaction import Store
from kernel.store.vault_schema import SealedPayload
from tests.store.stores import migrated

MEBIBYTE = 1024 * 1024


def _payloads(at: int) -> list[SealedPayload]:
    return [SealedPayload(f"{at:08x}{n:024x}", b"x" * 4096, 1) for n in range(100)]


async def _written(store: Store, folder: Path) -> int:
    """The size of the log, in bytes, after 5000 rows of 4 KiB."""
    for at in range(50):
        await store.write(vault_schema.put, _payloads(at))
    return (folder / "vault.db-wal").stat().st_size


async def test_case_7_12_watching_while_much_is_written_keeps_the_log_small(
    tmp_path: Path,
) -> None:
    store = migrated(f"sqlite:///{tmp_path / 'vault.db'}", SystemClock(), "vault")
    stop = asyncio.Event()

    async def watch() -> int:
        looks = 0
        while not stop.is_set():
            await store.read(vault_schema.find, "none")
            looks += 1
        return looks

    watching = [asyncio.ensure_future(watch()) for _ in range(4)]
    size = await _written(store, tmp_path)
    stop.set()
    assert min(await asyncio.gather(*watching)) > 0
    await store.close()
    assert size < 16 * MEBIBYTE


async def test_case_7_12_an_open_snapshot_is_what_would_make_the_log_grow(tmp_path: Path) -> None:
    store = migrated(f"sqlite:///{tmp_path / 'vault.db'}", SystemClock(), "vault")
    holder = sqlite3.connect(tmp_path / "vault.db", isolation_level=None)
    holder.execute("begin")
    holder.execute("select count(*) from payloads").fetchone()
    size = await _written(store, tmp_path)
    holder.close()
    await store.close()
    assert size > 16 * MEBIBYTE
