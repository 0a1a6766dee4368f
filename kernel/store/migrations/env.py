"""Run by alembic: migrates the connection that it is handed, in the caller's transaction."""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["metadata"],
    version_table=attributes["version_table"],
    compare_type=True,
    render_as_batch=True,
)
context.run_migrations()
