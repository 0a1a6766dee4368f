"""Receives one database and many processes; checks that none is refused or claims twice."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from kernel.environment import SystemClock
from kernel.store.dialect import Statement
from kernel.store.transaction import Store, Tx
from tests.store.claiming import claim_tasks, insert_tasks
from tests.store.conftest import SERVER_URL
from tests.store.stores import migrated, rows

CLAIMERS, INSERTERS, EACH = 4, 2, 60


async def test_case_7_10_many_processes_claim_each_task_once_and_none_finds_it_locked(
    tmp_path: Path,
) -> None:
    url = SERVER_URL or f"sqlite:///{tmp_path / 'shared.db'}"
    store = migrated(url, SystemClock())
    wanted = INSERTERS * EACH
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CLAIMERS + INSERTERS, mp_context=context) as processes:
        claims = [
            processes.submit(claim_tasks, url, f"worker-{at}", wanted) for at in range(CLAIMERS)
        ]
        inserts = [processes.submit(insert_tasks, url, at * EACH, EACH) for at in range(INSERTERS)]
        assert sum(each.result(120) for each in inserts) == wanted
        taken = [key for each in claims for key in each.result(120)]
    assert len(taken) == wanted
    assert len({key[:2] for key in taken}) == wanted
    assert {attempt for *_, attempt in taken} == {1}
    assert len(store.read_now(rows, "attempts")) == wanted
    await store.close()


@pytest.mark.skipif(bool(SERVER_URL), reason="a server has no deferred transactions")
async def test_case_7_10_reading_first_and_writing_then_is_never_refused(tmp_path: Path) -> None:
    """A deferred transaction would fail at once here: another wrote after it had read."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    one, other = migrated(url, SystemClock()), Store(url, SystemClock())
    count = Statement("select count(*) as amount from outbox")
    insert = Statement(
        """insert into outbox (topic, record_key, body, leased_until, lease_owner, created_at)
           values ('t', '', '{}', 0, '', 0)"""
    )

    def read_then_write(tx: Tx) -> int:
        seen = int(tx.query(count)[0].amount)
        tx.execute(insert)
        return seen

    stores = [one, other]
    with ThreadPoolExecutor(8) as threads:
        seen = [threads.submit(stores[at % 2].write_now, read_then_write) for at in range(80)]
        assert sorted(each.result(60) for each in seen) == list(range(80))
    for store in stores:
        await store.close()
