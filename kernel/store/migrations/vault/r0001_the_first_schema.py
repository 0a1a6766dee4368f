"""the first schema

Revision 0001, from an empty database.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

import kernel.store.dialect

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "key_proofs",
        sa.Column("name", kernel.store.dialect.Key(64), nullable=False),
        sa.Column("proof", kernel.store.dialect.Key(64), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "payloads",
        sa.Column("ref", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "sealed",
            sa.LargeBinary()
            .with_variant(mysql.LONGBLOB(), "mariadb")
            .with_variant(mysql.LONGBLOB(), "mysql"),
            nullable=False,
        ),
        sa.Column(
            "expires_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("ref"),
    )
    with op.batch_alter_table("payloads", schema=None) as batch_op:
        batch_op.create_index("ix_payloads_expiry", ["expires_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("payloads", schema=None) as batch_op:
        batch_op.drop_index("ix_payloads_expiry")

    op.drop_table("payloads")
    op.drop_table("key_proofs")
