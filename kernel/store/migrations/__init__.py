"""Schema migrations of the three databases, by alembic.

Receives an engine and the name of its schema. Hands on the revision before and after; a
service refuses to start on a schema that is not the newest.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData
from sqlalchemy.engine import Engine

from kernel.store.proxy_schema import PROXY
from kernel.store.schema import MESH
from kernel.store.vault_schema import VAULT

SCHEMAS: dict[str, MetaData] = {"mesh": MESH, "proxy": PROXY, "vault": VAULT}
_FOLDER = Path(__file__).parent


class SchemaOutdatedError(RuntimeError):
    """The database's schema is not the one that this program was written for."""


def configuration(name: str, connection: Connection | None = None) -> Config:
    """Alembic's configuration for one schema."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("version_locations", str(_FOLDER / name))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "r%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    config.attributes["metadata"] = SCHEMAS[name]
    config.attributes["version_table"] = version_table(name)
    return config


def version_table(name: str) -> str:
    """Where a schema's revision is kept; schemas may share a database."""
    return f"{name}_schema_version"


def newest(name: str) -> str:
    """The revision that this program was written for."""
    head = ScriptDirectory.from_config(configuration(name)).get_current_head()
    if head is None:
        raise SchemaOutdatedError(f"no migrations are packaged for {name}")
    return head


def current(connection: Connection, name: str) -> str | None:
    """The revision of a database, None where it is empty."""
    context = MigrationContext.configure(connection, opts={"version_table": version_table(name)})
    return context.get_current_revision()


def upgrade(engine: Engine, name: str) -> tuple[str | None, str]:
    """Bring a database to the newest revision in one transaction; (before, after)."""
    with engine.connect() as connection, connection.begin():
        before = current(connection, name)
        command.upgrade(configuration(name, connection), "head")
    return before, newest(name)


def check(engine: Engine, name: str) -> None:
    """Raises SchemaOutdatedError unless the database is at the newest revision."""
    with engine.connect() as connection:
        found = current(connection, name)
    if found != newest(name):
        raise SchemaOutdatedError(
            f"The {name} database has schema {found or 'none'}, this program needs "
            f"{newest(name)}. Run: sluice db upgrade"
        )
