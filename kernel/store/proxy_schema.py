"""The tables of the vendor proxy's own database: the call ledger and what belongs to it.

Receives the rules' enums. Hands on `PROXY`, the declared schema. All times are microseconds
since the epoch, by the database's clock. No column holds a payload; a receipt's raw body is
stored sealed. Source: DESIGN sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from kernel.idempotency import CallState
from kernel.receipt import ReceiptState
from kernel.store.dialect import Bytes, Document, Key, Micros

PROXY = MetaData()

# `occupied_until` of a call whose end nobody knows yet: its owner, or its owner's lease, tells.
OPEN_END = 1 << 62

_WORD, _NAME, _DIGEST = Key(32), Key(128), Key(64)


class Forward(StrEnum):
    """Where a receipt stands on its way to the mesh."""

    NONE = "NONE"  # no task waits for it: an orphan, or a direct caller's call
    PENDING = "PENDING"
    DONE = "DONE"


def _one_of(column: str, values: Iterable[str], name: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} in ({listed})", name=name)


calls = Table(
    "calls",
    PROXY,
    Column("caller", _NAME, nullable=False),
    Column("vendor", _NAME, nullable=False),
    Column("idempotency_key", _NAME, nullable=False),
    Column("reference", _NAME),  # the key as the vendor sees it; null where nothing was begun
    Column("task_id", _NAME, nullable=False),
    Column("tenant_id", _NAME, nullable=False),
    Column("pool", _NAME, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fenced_attempt", Integer, nullable=False),
    Column("fingerprint", Document, nullable=False),  # field -> digest, to name a difference
    Column("incarnation", _WORD, nullable=False),
    Column("send_number", Integer, nullable=False),  # rises with each begin; part of the fence
    Column("sends", Integer, nullable=False),  # charged to the budget; NOT_SENT gives one back
    Column("max_sends", Integer, nullable=False),
    Column("granted_sends", Integer, nullable=False),  # an operator's, used by sends so far
    Column("on_unknown", _WORD, nullable=False),
    Column("max_duplicates", Integer, nullable=False),
    Column("max_cost_micros", Micros, nullable=False),
    Column("outcome", _WORD, nullable=False),  # of the latest send; empty while there is none
    Column("reason", _NAME, nullable=False),
    Column("retryable", Integer, nullable=False),
    Column("retry_after_seconds", Float),
    Column("receipt_due_seconds", Float, nullable=False),
    Column("external_id", _NAME, nullable=False),
    Column("scores", Document),
    Column("possible_duplicates", Integer, nullable=False),
    Column("cost_micros", Micros, nullable=False),
    Column("doubted_sends", Integer, nullable=False),  # earlier sends that may have executed
    Column("doubted_until", Micros, nullable=False),  # until when they may occupy the vendor
    Column("first_send_at", Micros, nullable=False),
    Column("begun_at", Micros),
    Column("last_byte_at", Micros, nullable=False),
    Column("settled_at", Micros),
    Column("occupied_until", Micros),  # null: no permit is held for it
    Column("not_found_asked_at", Micros, nullable=False),
    Column("last_query_answer", _WORD, nullable=False),
    Column("last_query_at", Micros),
    PrimaryKeyConstraint("caller", "vendor", "idempotency_key"),
    UniqueConstraint("vendor", "reference", name="uk_calls_reference"),
    Index("ix_calls_external", "vendor", "external_id"),
    Index("ix_calls_occupied", "occupied_until"),
    _one_of("state", CallState, "ck_calls_state"),
    sqlite_with_rowid=False,
)

incarnations = Table(
    "incarnations",
    PROXY,
    Column("id", _WORD, primary_key=True),
    Column("lease_until", Micros, nullable=False),
)

raw_receipts = Table(
    "raw_receipts",
    PROXY,
    Column("receipt_id", _DIGEST, primary_key=True),  # digest of vendor account and content
    Column("vendor", _NAME, nullable=False),
    Column("event_id", _NAME, nullable=False),
    Column("reference", _NAME, nullable=False),
    Column("external_id", _NAME, nullable=False),
    Column("caller", _NAME, nullable=False),  # empty, with the key: an orphan
    Column("idempotency_key", _NAME, nullable=False),
    Column("task_id", _NAME, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("vendor_status", _NAME, nullable=False),
    Column("status_map_version", Integer, nullable=False),
    Column("status_map_reviewer", _NAME, nullable=False),
    Column("occurred_at", Micros, nullable=False),
    Column("received_at", Micros, nullable=False),
    Column("scores", Document),
    Column("cost_micros", Micros),
    Column("reason", _NAME, nullable=False),
    Column("sealed_body", Bytes, nullable=False),
    Column("copies", Integer, nullable=False),  # how often the vendor sent the same fact
    Column("forward", _WORD, nullable=False),
    Column("forward_at", Micros),  # the next try; null: none is due
    Column("forward_tries", Integer, nullable=False),
    Column("disposition", _WORD, nullable=False),  # the aggregator's word for it
    Index("ix_raw_receipts_reference", "vendor", "reference"),
    Index("ix_raw_receipts_external", "vendor", "external_id"),
    Index("ix_raw_receipts_forward", "forward_at"),
    _one_of("state", ReceiptState, "ck_raw_receipts_state"),
    _one_of("forward", Forward, "ck_raw_receipts_forward"),
    CheckConstraint(
        "(forward_at is not null) = (forward = 'PENDING')", name="ck_raw_receipts_forward_at"
    ),
)

pool_limits = Table(
    "pool_limits",
    PROXY,
    Column("pool", _NAME, primary_key=True),
    Column("concurrency", Integer),  # null: as the settings say
    Column("closed_until", Micros, nullable=False),  # the vendor asked for silence until then
)
