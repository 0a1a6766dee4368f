"""Receives a SQLite file in a process of its own; claims or inserts, and hands on what it got.

Run by `test_processes.py` in many processes at once, each with a store and a clock of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kernel.environment import SystemClock
from kernel.store.dialect import Statement
from kernel.store.transaction import Store, Tx
from services.dispatcher import pipeline
from tests import factories
from tests.store.stores import LEASE

POOL = "pool-text"
_COUNT = Statement("select count(*) as amount from tasks where state = 'IN_FLIGHT'")


def insert_tasks(url: str, first: int, amount: int) -> int:
    """Insert `amount` cases with one READY task each, one transaction a case."""
    store = Store(url, SystemClock())

    def insert(tx: Tx, number: int) -> None:
        named = factories.parent(tx.now(), seconds=600.0)
        of = replace(named, id=f"{number:032x}", logical_key=f"post-{number}")
        factories.add_case(tx, of, [factories.task(of, 1, "text")])

    for number in range(first, first + amount):
        store.write_now(insert, number)
    asyncio.run(store.close())
    return amount


def claim_tasks(url: str, owner: str, wanted: int) -> list[tuple[str, int, int]]:
    """Claim until `wanted` tasks are held by somebody; (parent, n, attempt) of each."""
    store = Store(url, SystemClock())
    taken: list[tuple[str, int, int]] = []
    while store.read_now(_claimed) < wanted:
        held = store.write_now(pipeline.claim, POOL, 3, owner, LEASE)
        taken += [(*task.key, task.attempt) for task in held]
    asyncio.run(store.close())
    return taken


def _claimed(tx: Tx) -> int:
    return int(tx.query(_COUNT)[0].amount)
