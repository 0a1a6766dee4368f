"""Whether a commit is on disk when it is answered: a setting of the server, read for the doctor.

Receives the open transaction. Hands on the server's word. SQLite is opened so that it does.
Source: DESIGN section 5.
"""

from __future__ import annotations

from kernel.store.dialect import Statement
from kernel.store.transaction import Tx

FLUSHES = "1"

_FLUSH = Statement("select '1' as value", mysql="select @@innodb_flush_log_at_trx_commit as value")


def flush_at_commit(tx: Tx) -> str:
    """`innodb_flush_log_at_trx_commit`; only `FLUSHES` keeps what was answered."""
    return str(tx.query(_FLUSH)[0].value)
