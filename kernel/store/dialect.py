"""The seam between SQLite and MySQL/MariaDB: the database's clock, a batch as rows, keys.

Receives a statement template. Hands on the text for one database. Only this file and the
statements that name both forms know which database they run on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, Integer, LargeBinary, Text, TypeDecorator
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARBINARY
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

Kind = str  # "text", "int" or "real"

# Without a character set of its own a column takes the server's, and that may know no emoji:
# two keys would both become "?".
_UTF8 = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_MYSQL_KINDS = {
    "text": "longtext character set utf8mb4 collate utf8mb4_bin",
    "int": "bigint",
    "real": "double",
}


class Key(TypeDecorator[str]):
    """Text that compares byte for byte: VARBINARY on MySQL, since its collations do not."""

    impl = Text
    cache_ok = True

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self.most_bytes = most_bytes

    def __repr__(self) -> str:
        """As a migration writes it."""
        return f"Key({self.most_bytes})"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """VARBINARY(n) on MySQL and MariaDB, TEXT (collation BINARY) on SQLite."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Text())
        return dialect.type_descriptor(VARBINARY(self.most_bytes))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Bytes for VARBINARY."""
        return value.encode() if value is not None and dialect.name != "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Text again."""
        return value.decode() if isinstance(value, bytes) else value


# Microseconds since the epoch; also ids that count.
Micros = BigInteger().with_variant(Integer, "sqlite")
Document = Text().with_variant(LONGTEXT(**_UTF8), "mysql", "mariadb")
Bytes = LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named SQL statement.

    `{now}` stands for the database's clock in microseconds and `{batch}` for the rows of
    the one JSON parameter `:batch`, an array of arrays whose columns `batch` names and
    types. `mysql` is the text for MySQL and MariaDB where it must differ.
    """

    sql: str
    batch: dict[str, Kind] = field(default_factory=dict)
    mysql: str | None = None

    def text(self, dialect_name: str) -> str:
        """The statement for one database."""
        if dialect_name == "sqlite":
            return self.sql.replace("{now}", "(select sluice_now())").replace(
                "{batch}", _json_each(self.batch)
            )
        return (
            (self.mysql or self.sql)
            .replace("{now}", "cast(unix_timestamp(now(6)) * 1000000 as signed)")
            .replace("{batch}", _json_table(self.batch))
        )


def joined_update(table: str, batch: dict[str, Kind], *, assign: str, where: str) -> Statement:
    """An update of `table` (as t) from the batch (as b), one statement for all its rows.

    The batch's columns must not be named like those of the table that `assign` sets.
    """
    return Statement(
        f"update {table} as t set {assign} from {{batch}} b where {where}",  # noqa: S608
        batch,
        mysql=f"update {table} t join {{batch}} b on {where} set {assign}",  # noqa: S608
    )


def _json_each(columns: dict[str, Kind]) -> str:
    picked = ", ".join(
        f"json_extract(value, '$[{at}]') as {name}" for at, name in enumerate(columns)
    )
    return f"(select {picked} from json_each(:batch))"  # noqa: S608 - names of our own


def _json_table(columns: dict[str, Kind]) -> str:
    picked = ", ".join(
        f"{name} {_MYSQL_KINDS[kind]} path '$[{at}]'"
        for at, (name, kind) in enumerate(columns.items())
    )
    return f"json_table(:batch, '$[*]' columns ({picked}))"
