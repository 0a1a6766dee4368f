"""The vault's one table, and its statements.

Receives sealed bytes, never plain ones. Hands on sealed bytes by reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Index, MetaData, Table, bindparam, insert, select

from kernel.store.dialect import Bytes, Key, Micros, Statement
from kernel.store.transaction import Tx

VAULT = MetaData()

payloads = Table(
    "payloads",
    VAULT,
    Column("ref", Key(32), primary_key=True),
    Column("sealed", Bytes, nullable=False),
    Column("expires_at", Micros, nullable=False),
    Index("ix_payloads_expiry", "expires_at"),
)

# What was sealed and digested here was done with these keys; a proof gives none of them away.
key_proofs = Table(
    "key_proofs",
    VAULT,
    Column("name", Key(64), primary_key=True),
    Column("proof", Key(64), nullable=False),
)

_PROOFS = Statement("select name, proof from key_proofs")
_ADD_PROOF = Statement("insert into key_proofs (name, proof) values (:name, :proof)")
_EXPIRE = Statement("delete from payloads where expires_at <= {now}")
_FIND = select(payloads.c.sealed).where(payloads.c.ref == bindparam("ref"))


@dataclass(frozen=True, slots=True)
class SealedPayload:
    """Encrypted bytes under a reference; `expires_at` in microseconds since the epoch."""

    ref: str
    sealed: bytes
    expires_at: int


def put(tx: Tx, payload_rows: Iterable[SealedPayload]) -> None:
    """Store sealed payloads. Blobs go as binary parameters: JSON cannot carry them."""
    rows: Sequence[dict[str, object]] = [
        {"ref": row.ref, "sealed": row.sealed, "expires_at": row.expires_at} for row in payload_rows
    ]
    if rows:
        tx.connection.execute(insert(payloads), rows)


def find(tx: Tx, ref: str) -> bytes | None:
    """The sealed bytes of a reference, None when it expired or never was."""
    found = tx.connection.execute(_FIND, {"ref": ref}).scalar_one_or_none()
    return bytes(found) if found is not None else None


def prove(tx: Tx, proofs: dict[str, str]) -> list[str]:
    """Compare proofs of keys with those kept, and keep the new ones; names of the wrong."""
    kept = {row.name: row.proof for row in tx.query(_PROOFS)}
    wrong = sorted(name for name, proof in proofs.items() if kept.get(name, proof) != proof)
    if not wrong:
        for name in sorted(proofs.keys() - kept.keys()):
            tx.execute(_ADD_PROOF, name=name, proof=proofs[name])
    return wrong


def expire(tx: Tx) -> int:
    """Delete what is past its time; returns how many."""
    return tx.changed(_EXPIRE)
