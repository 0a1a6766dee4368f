"""Transactions: one hop onto a bounded pool of threads, ended as a whole, retried as a whole.

Receives a store function and its arguments. Hands on its result after the commit. A
transient refusal (a deadlock, a lock time-out, a busy SQLite) rolls back and repeats the
whole function; a commit whose answer was lost is raised as `CommitInDoubtError`, for the
caller to read back. Source: DESIGN section 5.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import orjson
import tenacity
from sqlalchemy import Connection, CursorResult, Row, TextClause, create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    MultipleResultsFound,
    OperationalError,
)

from kernel.environment import Clock
from kernel.errors import StoreAway
from kernel.store.dialect import Statement
from kernel.store.group_commit import GroupCommitter

P = ParamSpec("P")
T = TypeVar("T")

_BUSY_TIMEOUT_MILLIS = 5_000
_MYSQL_CONNECTIONS = 4
# 1205 lock wait time-out, 1213 deadlock.
_MYSQL_TRANSIENT = frozenset({1205, 1213})
# A CHECK refused a row, on MySQL and on MariaDB: the server is there, and the fault is ours.
_MYSQL_CHECK = frozenset({3819, 4025})
# 1054 no such column, 1064 syntax, 1146 no such table.
_MYSQL_WRONG = frozenset({1054, 1064, 1146})


class CommitInDoubtError(StoreAway):
    """The connection died during COMMIT: the transaction may or may not be in."""

    reason = "COMMIT_IN_DOUBT"


class Tx:
    """An open transaction, as store functions receive it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name
        # SQLite takes our statements as they are, and SQLAlchemy's way to it costs ten times
        # the statement; whoever listens to its events gets them.
        heard = connection.engine.dispatch
        straight = self.dialect == "sqlite" and not (
            heard.before_cursor_execute
            or heard.after_cursor_execute
            or connection.dialect.dispatch.do_execute
        )
        self._sqlite: sqlite3.Connection | None = (
            connection.connection.driver_connection if straight else None
        )

    def execute(
        self, statement: Statement, rows: Iterable[Sequence[object]] | None = None, **params: object
    ) -> None:
        """Run a statement; `rows` become the one JSON parameter of its batch."""
        self._run(statement, rows, params)

    def changed(
        self, statement: Statement, rows: Iterable[Sequence[object]] | None = None, **params: object
    ) -> int:
        """Run a write; returns the number of rows that matched."""
        return self._run(statement, rows, params).rowcount

    def query(
        self, statement: Statement, rows: Iterable[Sequence[object]] | None = None, **params: object
    ) -> list[Row[Any]]:
        """Run a read; returns all its rows."""
        found = self._run(statement, rows, params)
        if not isinstance(found, sqlite3.Cursor):
            return list(found.all())
        record = _record(tuple(column[0] for column in found.description))
        return cast("list[Row[Any]]", [record(*row) for row in found])

    def one(self, statement: Statement, **params: object) -> Row[Any] | None:
        """Run a read that finds one row or none."""
        found = self.query(statement, None, **params)
        if len(found) > 1:
            raise MultipleResultsFound("a statement that reads one row found several")
        return found[0] if found else None

    def now(self) -> int:
        """The database's clock, in microseconds."""
        return int(self.query(_NOW)[0].now)

    def _run(
        self,
        statement: Statement,
        rows: Iterable[Sequence[object]] | None,
        params: dict[str, object],
    ) -> CursorResult[Any] | sqlite3.Cursor:
        sql = statement.text(self.dialect)
        if rows is not None:
            params["batch"] = orjson.dumps(list(rows)).decode()
        if self._sqlite is None:
            return self.connection.execute(_clause(sql), params)
        try:
            return self._sqlite.execute(sql, params)
        except sqlite3.Error as error:
            raise DBAPIError.instance(
                sql,
                None,
                error,
                sqlite3.Error,
                hide_parameters=True,
                dialect=self.connection.dialect,
            ) from error


_NOW = Statement("select {now} as now")


@functools.lru_cache(maxsize=512)
def _record(names: tuple[str, ...]) -> type[Any]:
    """Rows like SQLAlchemy's: columns as attributes, and all of them as `_mapping`."""
    mapping = property(lambda row: dict(zip(names, row, strict=True)))
    columns = namedtuple("Record", names)  # type: ignore[misc]
    return type("Record", (columns,), {"__slots__": (), "_mapping": mapping})


@functools.lru_cache(maxsize=512)
def _clause(sql: str) -> TextClause:
    return text(sql)


class Store:
    """One database. Every call is one transaction in a thread of this store's own."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = make_url(url)
        self._clock = clock
        self._writer = self._engine(self.url, write=True)
        embedded = self.url.get_backend_name() == "sqlite"
        self._reader = self._engine(self.url, write=False) if embedded else self._writer
        # SQLite has one writer at a time: those that wait for it share its flush.
        self._group = GroupCommitter(self._writer, self._repeat) if embedded else None
        self._write_threads = ThreadPoolExecutor(
            _MYSQL_CONNECTIONS, thread_name_prefix="store-write"
        )
        self._read_threads = ThreadPoolExecutor(2, thread_name_prefix="store-read")

    @property
    def engine(self) -> Engine:
        """The engine for schema work."""
        return self._writer

    async def write(
        self, function: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(tx, ...)` and commit. It ends as a whole even if the caller leaves."""
        if self._group is not None:
            work = functools.partial(_in_connection, function, *args, **kwargs)
            return await asyncio.shield(asyncio.wrap_future(self._group.submit(work)))
        return await self._hop(
            self._write_threads, functools.partial(self.write_now, function, *args, **kwargs)
        )

    async def read(
        self, function: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(tx, ...)` on one read snapshot, closed before this returns."""
        return await self._hop(
            self._read_threads, functools.partial(self.read_now, function, *args, **kwargs)
        )

    def write_now(
        self, function: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`write`, in the calling thread."""
        return self._repeat(
            functools.partial(self._transact, self._writer, function, *args, **kwargs)
        )

    def read_now(
        self, function: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`read`, in the calling thread."""
        return self._repeat(
            functools.partial(self._transact, self._reader, function, *args, **kwargs)
        )

    async def close(self) -> None:
        """Wait for the transactions under way, then close every connection."""
        if self._group is not None:
            await asyncio.to_thread(self._group.close)
        await asyncio.to_thread(self._write_threads.shutdown)
        await asyncio.to_thread(self._read_threads.shutdown)
        self._writer.dispose()
        self._reader.dispose()

    async def _hop(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(threads, call))

    def _repeat(self, attempt: Callable[[], T]) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_transient),
            stop=tenacity.stop_after_attempt(6),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=0.5),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except (OperationalError, InterfaceError) as error:
            if _code(error) in _MYSQL_CHECK or _is_wrong_statement(error):
                raise
            raise StoreAway(
                "The database did not answer; nothing of this request was stored. Try again."
            ) from error

    def _transact(
        self, engine: Engine, function: Callable[..., T], *args: object, **kwargs: object
    ) -> T:
        with engine.connect() as connection:
            transaction = connection.begin()
            try:
                result = function(Tx(connection), *args, **kwargs)
            except BaseException:
                transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise CommitInDoubtError(
                        "The database went away during a commit: read back whether it is in."
                    ) from error
                raise
            return result

    def _engine(self, url: URL, *, write: bool) -> Engine:
        if url.get_backend_name() != "sqlite":
            return _mysql_engine(url)
        engine = create_engine(url)
        clock = self._clock

        def connected(connection: Any, _record: object) -> None:
            connection.isolation_level = None
            connection.create_function("sluice_now", 0, clock.now_micros)
            cursor = connection.cursor()
            cursor.execute(f"pragma busy_timeout = {_BUSY_TIMEOUT_MILLIS}")
            cursor.execute("pragma journal_mode = wal")
            cursor.execute("pragma synchronous = full")
            cursor.execute("pragma foreign_keys = on")
            cursor.close()

        event.listen(engine, "connect", connected)
        # A deferred transaction that reads and then writes fails at once when another wrote.
        begin = "begin immediate" if write else "begin"
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine


def _in_connection(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    *given, connection = args
    return function(Tx(connection), *given, **kwargs)


def _mysql_engine(url: URL) -> Engine:
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=_MYSQL_CONNECTIONS + 2,
        pool_pre_ping=True,
        connect_args={
            "init_command": "set time_zone = '+00:00', innodb_lock_wait_timeout = 2",
            "client_flag": 2,  # CLIENT.FOUND_ROWS: row counts say matched, not changed
            "charset": "utf8mb4",
        },
    )

    def decode(connection: Any, _record: object) -> None:
        """Hand VARBINARY keys on as text; true blobs are LONGBLOB and stay bytes."""
        from pymysql.constants import FIELD_TYPE

        connection.decoders = {**connection.decoders}
        for field_type in (FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.STRING):
            connection.decoders[field_type] = _text_or_bytes

    event.listen(engine, "connect", decode)
    return engine


def _text_or_bytes(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _is_transient(error: BaseException) -> bool:
    if not isinstance(error, OperationalError):
        return False
    return _code(error) in _MYSQL_TRANSIENT or "database is locked" in str(error.orig)


def _is_wrong_statement(error: DBAPIError) -> bool:
    """A statement that does not fit the schema is a fault of ours, not a database away."""
    told = str(error.orig)
    return _code(error) in _MYSQL_WRONG or told.startswith(("no such ", "near "))


def _code(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None
