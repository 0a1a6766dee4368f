"""Receives the three declared schemas; checks that the migrations make exactly them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    Table,
    UniqueConstraint,
    create_engine,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.schema import CreateTable

from kernel.store import migrations
from kernel.store.dialect import Key, Statement
from kernel.store.migrations import SCHEMAS, SchemaOutdatedError, version_table

NAMES = sorted(SCHEMAS)
TABLES = [(name, table) for name in NAMES for table in SCHEMAS[name].sorted_tables]


def table_id(value: object) -> str:
    return value.name if isinstance(value, Table) else str(value)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'schema.db'}")
    yield made
    made.dispose()


def differences(connection: Connection, name: str) -> list[Any]:
    own = set(SCHEMAS[name].tables)

    def of_this_schema(obj: object, label: str | None, kind: str, *_: object) -> bool:
        return kind != "table" or label in own

    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": version_table(name),
            "compare_type": True,
            "include_object": of_this_schema,
        },
    )
    return list(compare_metadata(context, SCHEMAS[name]))


@pytest.mark.parametrize("name", NAMES)
def test_the_migrations_make_the_declared_schema(engine: Engine, name: str) -> None:
    migrations.upgrade(engine, name)
    with engine.connect() as connection:
        assert differences(connection, name) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_migrated_tables_have_the_declared_checks_and_options(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    migrations.upgrade(engine, name)
    declared = create_engine(f"sqlite:///{tmp_path / 'declared.db'}")
    SCHEMAS[name].create_all(declared)
    made, wanted = _facts(engine, name), _facts(declared, name)
    declared.dispose()
    assert made == wanted


def _facts(engine: Engine, name: str) -> dict[str, Any]:
    """What alembic does not compare: checks, unique keys, rowid and autoincrement."""
    found = {}
    inspector = inspect(engine)
    with engine.connect() as connection:
        for table in SCHEMAS[name].sorted_tables:
            ddl = connection.execute(
                text("select sql from sqlite_master where type = 'table' and name = :name"),
                {"name": table.name},
            ).scalar_one()
            found[table.name] = (
                sorted(
                    (c["name"], c["sqltext"]) for c in inspector.get_check_constraints(table.name)
                ),
                sorted(
                    (str(u["name"]), tuple(u["column_names"]))
                    for u in inspector.get_unique_constraints(table.name)
                ),
                sorted(
                    (str(i["name"]), tuple(i["column_names"]))
                    for i in inspector.get_indexes(table.name)
                ),
                inspector.get_pk_constraint(table.name)["constrained_columns"],
                "WITHOUT ROWID" in ddl.upper(),
                "AUTOINCREMENT" in ddl.upper(),
            )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_upgrading_twice_changes_nothing(engine: Engine, name: str) -> None:
    newest = migrations.newest(name)
    assert migrations.upgrade(engine, name) == (None, newest)
    before = _facts(engine, name)
    assert migrations.upgrade(engine, name) == (newest, newest)
    assert _facts(engine, name) == before
    migrations.check(engine, name)


def test_three_schemas_may_share_a_database(engine: Engine) -> None:
    for name in NAMES:
        migrations.upgrade(engine, name)
    for name in NAMES:
        migrations.check(engine, name)
        with engine.connect() as connection:
            assert differences(connection, name) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_service_refuses_a_schema_that_is_not_the_newest_and_says_what_to_do(
    engine: Engine, name: str
) -> None:
    with pytest.raises(SchemaOutdatedError, match=f"{name} database has schema none"):
        migrations.check(engine, name)
    migrations.upgrade(engine, name)
    with engine.begin() as connection:
        connection.execute(text(f"update {version_table(name)} set version_num = '0000'"))
    with pytest.raises(SchemaOutdatedError) as refused:
        migrations.check(engine, name)
    for part in ("schema 0000", migrations.newest(name), "sluice db upgrade"):
        assert part in str(refused.value)


# ---- columns ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "table"), TABLES, ids=table_id)
def test_case_7_01_every_key_compares_byte_for_byte_on_mysql(name: str, table: Table) -> None:
    ddl = str(CreateTable(table).compile(dialect=mysql.dialect()))
    assert "VARCHAR" not in ddl.upper()
    for column in table.columns:
        in_key = column.primary_key or any(column.name in i.columns for i in table.indexes)
        unique = any(
            column.name in constraint.columns
            for constraint in table.constraints
            if isinstance(constraint, UniqueConstraint)
        )
        if (in_key or unique) and not isinstance(column.type, Integer | BigInteger):
            compiled = column.type.compile(dialect=mysql.dialect())
            assert compiled.startswith("VARBINARY("), column.name
            assert isinstance(column.type, Key)


@pytest.mark.parametrize(("name", "table"), TABLES, ids=table_id)
def test_case_7_01_no_text_depends_on_the_servers_character_set(name: str, table: Table) -> None:
    for column in table.columns:
        compiled = column.type.compile(dialect=mysql.dialect()).upper()
        if "TEXT" in compiled:
            assert "CHARACTER SET UTF8MB4" in compiled, column.name


def test_case_7_01_no_batch_depends_on_the_servers_character_set() -> None:
    batch = Statement("select * from {batch} b", {"name": "text", "n": "int"}).text("mysql")
    assert "name longtext character set utf8mb4" in batch
    assert "n bigint path" in batch


def is_time(column: Column[Any]) -> bool:
    return column.name.endswith(("_at", "_until", "_since")) or column.name in ("at", "deadline")


@pytest.mark.parametrize(("name", "table"), TABLES, ids=table_id)
def test_case_7_03_every_time_is_a_whole_number_of_microseconds(name: str, table: Table) -> None:
    for column in filter(is_time, table.columns):
        assert column.type.compile(dialect=mysql.dialect()) == "BIGINT", column.name
        assert column.type.compile(dialect=sqlite.dialect()) == "INTEGER", column.name


BIG = 9_007_199_254_740_993


def value_for(column: Column[Any]) -> object:
    """Something that the column takes, the same each time."""
    checks = {"state": "PENDING", "kind": "CONTENT", "forward": "NONE", "requirement": "REQUIRED"}
    checks["priority"] = "NORMAL"
    if column.table.name == "tasks" and column.name == "state":
        return "SUCCEEDED"
    if column.table.name == "calls" and column.name == "state":
        return "SETTLED"
    if column.table.name == "raw_receipts" and column.name == "state":
        return "ACCEPTED"
    if column.table.name == "parents" and column.name == "wake_at":
        return BIG
    kind = column.type.python_type
    if kind is bytes:
        return b"\x00\xff"
    if kind is bool:
        return True
    if kind is float:
        return 0.5
    return BIG if kind is int else checks.get(column.name, "x")


@pytest.mark.parametrize(("name", "table"), TABLES, ids=table_id)
def test_case_7_13_every_table_takes_a_row_without_the_id_that_counts_and_big_numbers(
    engine: Engine, name: str, table: Table
) -> None:
    migrations.upgrade(engine, name)
    counting = {"change_markers", "outbox", "operator_actions"}
    given = {
        column.name: value_for(column)
        for column in table.columns
        if (not column.nullable or (table.name, column.name) == ("parents", "wake_at"))
        and not (table.name in counting and column.name == "id")
    }
    with engine.begin() as connection:
        connection.execute(insert(table), [given])
        (row,) = connection.execute(select(table)).all()
    assert {column: row._mapping[column] for column in given} == given
    if table.name in counting:
        assert row._mapping["id"] == 1


def test_case_7_13_only_tables_that_count_leave_their_id_to_the_database() -> None:
    counting = {
        table.name
        for _, table in TABLES
        for column in table.primary_key.columns
        if column.autoincrement is True
    }
    assert counting == {"change_markers", "outbox", "operator_actions"}
