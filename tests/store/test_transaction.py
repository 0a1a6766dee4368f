"""Receives functions that want a transaction; checks that each ends as a whole or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from kernel.errors import NotFound, StoreAway
from kernel.store import markers
from kernel.store.dialect import Statement
from kernel.store.transaction import CommitInDoubtError, Store, Tx
from tests.manual_clock import ManualClock
from tests.store.conftest import SERVER_URL
from tests.store.stores import migrated, rows

sqlite_only = pytest.mark.skipif(bool(SERVER_URL), reason="servers group commits by themselves")
MEBIBYTE = 1024 * 1024


def mark(tx: Tx, name: str) -> str:
    """Leave one marker; hands its name back."""
    markers.append(tx, [name])
    return name


def fail(tx: Tx, name: str, error: BaseException) -> None:
    markers.append(tx, [name])
    raise error


def names(store: Store) -> list[str]:
    return sorted(row.parent_id for row in store.read_now(rows, "change_markers"))


class Gate:
    """A store function that starts, and goes on when it is let."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def wait(self, tx: Tx, name: str = "gate") -> str:
        markers.append(tx, [name])
        self._loop.call_soon_threadsafe(self.started.set)
        assert self._open.wait(30)
        return name


async def grouped(store: Store, *writes: tuple[Any, ...]) -> list[Any]:
    """Run writes that all wait for one transaction, so that they share the next one."""
    gate = Gate()
    first = asyncio.ensure_future(store.write(gate.wait))
    await gate.started.wait()
    waiting = [asyncio.ensure_future(store.write(*each)) for each in writes]
    # Each is in the queue once its coroutine has run to its first await.
    await asyncio.sleep(0)
    gate.open()
    await first
    return await asyncio.gather(*waiting, return_exceptions=True)


# ---- group commit -----------------------------------------------------------------------


@sqlite_only
async def test_those_that_wait_share_one_commit_and_each_gets_its_own_result(
    store: Store,
) -> None:
    seen: list[None] = []
    event.listen(store.engine, "commit", lambda _: seen.append(None))
    wanted = [f"p{at}" for at in range(50)]
    assert await grouped(store, *((mark, name) for name in wanted)) == wanted
    assert len(seen) == 2  # the gate's own, and one for all the others
    assert names(store) == sorted(["gate", *wanted])


@sqlite_only
async def test_one_that_fails_in_a_group_takes_back_its_own_work_alone(store: Store) -> None:
    results = await grouped(
        store,
        (mark, "a"),
        (fail, "b", NotFound("No such thing.")),
        (mark, "c"),
        (fail, "d", ValueError("no")),
        (mark, "e"),
    )
    assert [results[at] for at in (0, 2, 4)] == ["a", "c", "e"]
    assert isinstance(results[1], NotFound)
    assert isinstance(results[3], ValueError)
    assert names(store) == ["a", "c", "e", "gate"]


@sqlite_only
async def test_a_commit_that_fails_fails_everyone_who_shared_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.write(mark, "before") == "before"
    gate = Gate()
    first = asyncio.ensure_future(store.write(gate.wait))
    await gate.started.wait()
    waiting = [asyncio.ensure_future(store.write(mark, name)) for name in ("a", "b")]
    await asyncio.sleep(0)

    def broken(_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store.engine.dialect, "do_commit", broken)
    gate.open()
    for each in (first, *waiting):
        with pytest.raises(StoreAway, match="nothing of this request was stored"):
            await each
    monkeypatch.undo()
    assert names(store) == ["before"]
    assert await store.write(mark, "after") == "after"


@sqlite_only
async def test_case_7_10_a_busy_commit_is_tried_again_as_a_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[Any], None] = store.engine.dialect.do_commit
    left = [None, None]

    def busy(connection: Any) -> None:
        if left:
            left.pop()
            raise sqlite3.OperationalError("database is locked")
        real(connection)

    monkeypatch.setattr(store.engine.dialect, "do_commit", busy)
    assert await grouped(store, (mark, "a"), (mark, "b")) == ["a", "b"]
    assert left == []
    assert names(store) == ["a", "b", "gate"]


@sqlite_only
async def test_a_store_that_stays_busy_is_away_and_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[None] = []

    def busy(_: Any) -> None:
        tries.append(None)
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(store.engine.dialect, "do_commit", busy)
    with pytest.raises(StoreAway):
        await store.write(mark, "a")
    assert len(tries) == 6
    monkeypatch.undo()
    assert names(store) == []


@sqlite_only
async def test_a_fault_of_the_database_within_a_group_is_told_to_the_one_that_had_it(
    store: Store,
) -> None:
    broken = Statement("select nothing from nowhere")
    results = await grouped(store, (mark, "a"), (Tx.execute, broken), (mark, "b"))
    assert [isinstance(result, OperationalError) for result in results] == [False, True, False]
    assert sorted(names(store)) == ["a", "b", "gate"]


# ---- a transaction ends as a whole ------------------------------------------------------


async def test_a_write_ends_as_a_whole_when_its_caller_leaves(store: Store) -> None:
    gate = Gate()

    def two_steps(tx: Tx) -> None:
        gate.wait(tx, "first")
        mark(tx, "second")

    writing = asyncio.ensure_future(store.write(two_steps))
    await gate.started.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    gate.open()
    # The next transaction comes after it.
    await store.write(mark, "third")
    assert names(store) == ["first", "second", "third"]


@sqlite_only
async def test_one_who_leaves_takes_nothing_from_those_who_share_the_commit(
    store: Store,
) -> None:
    gate = Gate()
    first = asyncio.ensure_future(store.write(gate.wait))
    await gate.started.wait()
    leaves, stays = (asyncio.ensure_future(store.write(mark, name)) for name in ("a", "b"))
    await asyncio.sleep(0)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    gate.open()
    assert [await first, await stays] == ["gate", "b"]
    assert names(store) == ["a", "b", "gate"]


async def test_case_3_10_a_write_that_blocks_leaves_the_event_loop_free(store: Store) -> None:
    gate = Gate()
    writing = asyncio.ensure_future(store.write(gate.wait))
    await gate.started.wait()
    assert await store.read(rows, "change_markers") == []
    assert not writing.done()
    gate.open()
    assert await writing == "gate"


async def test_closing_waits_for_what_is_under_way(tmp_path: Path, hand_clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path / 'closing.db'}"
    store = migrated(url, hand_clock)
    gate = Gate()
    writing = asyncio.ensure_future(store.write(gate.wait))
    await gate.started.wait()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    gate.open()
    await closing
    assert await writing == "gate"
    again = Store(url, hand_clock)
    assert names(again) == ["gate"]
    await again.close()


@pytest.mark.parametrize("error", [NotFound("No such thing."), ValueError("no")])
async def test_what_a_function_raises_reaches_its_caller_and_nothing_is_stored(
    store: Store, error: Exception
) -> None:
    with pytest.raises(type(error)):
        await store.write(fail, "a", error)
    with pytest.raises(type(error)):
        store.write_now(fail, "a", error)
    assert names(store) == []


# ---- a database that is away ------------------------------------------------------------


async def test_a_store_whose_folder_is_gone_is_away_and_leaks_no_path(
    tmp_path: Path, hand_clock: ManualClock
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'gone' / 'mesh.db'}", hand_clock)
    for call in (store.write(mark, "a"), store.read(rows, "change_markers")):
        with pytest.raises(StoreAway) as away:
            await call
        assert str(tmp_path) not in away.value.message
        assert away.value.reason == "STORE_AWAY"
    await store.close()


@sqlite_only
def test_case_7_06_a_connection_that_dies_during_a_commit_is_in_doubt_and_not_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[None] = []

    def counted(tx: Tx) -> None:
        runs.append(None)
        mark(tx, "a")

    def lost(_: Any) -> None:
        raise sqlite3.OperationalError("lost")

    monkeypatch.setattr(store.engine.dialect, "do_commit", lost)
    monkeypatch.setattr(store.engine.dialect, "is_disconnect", lambda *_: True)
    with pytest.raises(CommitInDoubtError) as doubt:
        store.write_now(counted)
    assert len(runs) == 1
    assert doubt.value.reason == "COMMIT_IN_DOUBT"


# ---- SQLite as it must be opened --------------------------------------------------------


@sqlite_only
def test_case_7_10_a_write_takes_its_lock_at_once_and_a_read_takes_none(store: Store) -> None:
    seen: list[str] = []

    def statement(_c: object, _cursor: object, sql: str, *_: object) -> None:
        seen.append(sql)

    event.listen(store.engine, "before_cursor_execute", statement)
    event.listen(store._reader, "before_cursor_execute", statement)
    store.write_now(Tx.now)
    assert seen[0] == "begin immediate"
    seen.clear()
    store.read_now(Tx.now)
    assert seen[0] == "begin"


@sqlite_only
@pytest.mark.parametrize(
    ("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("busy_timeout", 5000)]
)
def test_sqlite_flushes_at_each_commit_and_waits_for_its_lock(
    store: Store, pragma: str, value: object
) -> None:
    def read(tx: Tx) -> object:
        return tx.connection.execute(text(f"pragma {pragma}")).scalar_one()

    assert store.read_now(read) == value
    assert store.write_now(read) == value


@sqlite_only
def test_the_clock_of_sqlite_is_the_one_that_is_handed_in(store: Store, clock: ManualClock) -> None:
    assert store.read_now(Tx.now) == clock.now_micros()
    clock.advance(0.000001)
    assert store.write_now(Tx.now) == clock.now_micros()
