"""Group commit: as many waiting transactions as there are share one flush to disk.

Receives functions that want a transaction. Hands on their results after the one commit. Each
runs in a savepoint of its own, so one that fails takes back its own work alone. For SQLite,
whose one writer otherwise pays a flush for each; servers group commits by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import InterfaceError, OperationalError

_MOST = 256

Work = Callable[[Connection], Any]
Repeat = Callable[[Callable[[], Any]], Any]


class GroupCommitter:
    """One writer thread of one database; `repeat` runs a transaction again when it was refused."""

    def __init__(self, engine: Engine, repeat: Repeat) -> None:
        self._engine = engine
        self._repeat = repeat
        self._waiting: deque[tuple[Work, Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-write")

    def submit(self, work: Work) -> Future[Any]:
        """Queue one transaction; the future resolves after its commit."""
        future: Future[Any] = Future()
        self._waiting.append((work, future))
        self._thread.submit(self._drain)
        return future

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._thread.shutdown()

    def _drain(self) -> None:
        group: list[tuple[Work, Future[Any]]] = []
        while self._waiting and len(group) < _MOST:
            group.append(self._waiting.popleft())
        if group:
            self._commit(group)

    def _commit(self, group: list[tuple[Work, Future[Any]]]) -> None:
        try:
            results = self._repeat(lambda: self._transact([work for work, _ in group]))
        except BaseException as error:
            if len(group) > 1:
                # Nothing of the group is in: each gets its own chance, and its own answer.
                for one in group:
                    self._commit([one])
                return
            group[0][1].set_exception(error)
            return
        for (_, future), (result, failure) in zip(group, results, strict=True):
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

    def _transact(self, works: list[Work]) -> list[tuple[Any, BaseException | None]]:
        results: list[tuple[Any, BaseException | None]] = []
        with self._engine.connect() as connection, connection.begin():
            if len(works) == 1:
                return [(works[0](connection), None)]
            sqlite: Any = connection.connection.driver_connection
            for work in works:
                sqlite.execute("savepoint one_of_the_group")
                try:
                    results.append((work(connection), None))
                except (OperationalError, InterfaceError):
                    # The database itself failed, and may have ended the transaction: a
                    # savepoint no longer stands for anything, so none of the group is kept.
                    raise
                except Exception as error:
                    sqlite.execute("rollback to one_of_the_group")
                    results.append((None, error))
                sqlite.execute("release one_of_the_group")
        return results
