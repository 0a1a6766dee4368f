"""Receives a database's URL; hands on migrated stores, and short words for what is in them.

What stands here works on SQLite, MariaDB and MySQL alike. Only a test that takes the `clock`
fixture needs SQLite, whose clock is moved by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from kernel.environment import Clock
from kernel.lifecycle import CLOSED, Mover, State
from kernel.store import markers, migrations, moves, tasks
from kernel.store.dialect import Statement
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Store, Tx
from tests import factories

SECOND = factories.SECOND
LEASE = 30 * SECOND


def migrated(url: str, clock: Clock, name: str = "mesh") -> Store:
    """An empty store whose schema was made by the migrations, not by the declaration."""
    store = Store(url, clock)
    migrations.upgrade(store.engine, name)
    if store.url.get_backend_name() != "sqlite":
        with store.engine.begin() as connection:
            for table in migrations.SCHEMAS[name].sorted_tables:
                connection.execute(table.delete())
    return store


def run(tx: Tx, sql: str, /, **params: object) -> None:
    """One statement, as only a test may write it."""
    tx.execute(Statement(sql), None, **params)


def rows(tx: Tx, table: str) -> list[Row[Any]]:
    """All rows of a table."""
    return tx.query(Statement(f"select * from {table}"))


def dump(tx: Tx) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that a move may touch."""
    names = ("parents", "tasks", "attempts", "receipts", "change_markers")
    return {name: sorted((tuple(row) for row in rows(tx, name)), key=repr) for name in names}


def plan(
    tx: Tx, models: Sequence[str] = ("text",), *, pool: str = "", seconds: float = 60.0
) -> list[TaskKey]:
    """A case with a READY task for each model; their keys, and no marker left."""
    of = factories.parent(tx.now(), seconds=seconds)
    children = [factories.task(of, n, model) for n, model in enumerate(models, start=1)]
    factories.add_case(tx, of, children)
    markers.delete(tx, markers.of_parent(tx, of.id))
    return [(of.id, n) for n in range(1, len(models) + 1)]


def got(tx: Tx, key: TaskKey) -> Task:
    """The task with this key."""
    found = tasks.get(tx, key)
    assert found is not None
    return found


def move(
    tx: Tx,
    key: TaskKey,
    mover: Mover,
    state: State,
    /,
    *,
    maybe: bool = False,
    **more: Any,
) -> Task:
    """Move a task as it stands; the test fails unless the fence held."""
    wake_at = more.pop("wake_at", None if state in CLOSED else tx.now() + 60 * SECOND)
    planned = moves.TaskMove(got(tx, key), mover, state, "", wake_at, maybe, **more)
    assert moves.move(tx, [planned]).changed == 1
    return got(tx, key)


def claimed(tx: Tx, key: TaskKey, owner: str = "worker-1") -> Task:
    """READY -> IN_FLIGHT."""
    return factories.claim(tx, key, owner)


def brought_to(tx: Tx, key: TaskKey, state: State) -> Task:
    """A READY task brought to `state` by moves of the table."""
    match state:
        case State.READY:
            return got(tx, key)
        case State.PLANNED:
            # Nothing plans for later yet; the row is as intake would write it.
            tx.execute(
                Statement("update tasks set state = 'PLANNED' where parent_id = :id"), id=key[0]
            )
            return got(tx, key)
        case State.CANCELLED:
            return move(tx, key, Mover.INTAKE, State.CANCELLED)
        case State.EXPIRED:
            return move(tx, key, Mover.TIMER, State.EXPIRED)
        case State.IN_FLIGHT:
            return claimed(tx, key)
    held = claimed(tx, key)
    maybe = state in (State.UNKNOWN, State.ACCEPTED)
    return move(tx, held.key, Mover.SETTLE, state, maybe=maybe)


def due_now(tx: Tx, key: TaskKey) -> None:
    """Make a task's next event come now."""
    tx.execute(
        Statement("update tasks set wake_at = {now} where parent_id = :id and n = :n"),
        id=key[0],
        n=key[1],
    )
