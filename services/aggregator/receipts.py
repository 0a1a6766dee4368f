"""Receipts as they come from the gateway: checked, made ready for the store, and counted.

Receives the facts of a receipt. Hands on `NewReceipt`s for `kernel.store.receipts.take`. A
receipt that names no task of ours is still taken, as UNMATCHED: the sender repeats a batch
until it is acknowledged, so one odd receipt must not hold up the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kernel.errors import FieldViolation, InvalidArgument
from kernel.identity import parse_task_id
from kernel.receipt import ReceiptState
from kernel.store.receipts import NewReceipt

MOST_RECEIPTS = 1_000
"""Receipts in one call, at most."""

_ID_BYTES = 128
BAD_SCORES = "BAD_SCORES"


def received(
    *,
    receipt_id: str,
    task_id: str,
    state: ReceiptState,
    vendor_status: str = "",
    external_id: str = "",
    reason: str = "",
    scores: Mapping[str, float] | None = None,
    cost_micros: int = 0,
    occurred_at: int = 0,
    vendor: str = "",
    idempotency_key: str = "",
) -> NewReceipt:
    """A receipt for the store; `occurred_at` in microseconds since the epoch.

    Scores outside [0, 1] are no result of a model: such a receipt is kept, and moves nothing.
    """
    parent_id, n = parse_task_id(task_id) or ("", 0)
    readable = scores is None or all(
        math.isfinite(score) and 0.0 <= score <= 1.0 for score in scores.values()
    )
    receipt = NewReceipt(
        receipt_id=receipt_id,
        parent_id=parent_id,
        n=n,
        state=state,
        vendor_status=_fitting(vendor_status),
        external_id=_fitting(external_id),
        reason=_fitting(reason),
        scores=scores,
        cost_micros=max(cost_micros, 0),
        occurred_at=occurred_at,
        vendor=vendor,
        idempotency_key=idempotency_key,
    )
    if readable:
        return receipt
    return replace(receipt, state=ReceiptState.UNMAPPED, reason=BAD_SCORES, scores=None)


def check(batch: Sequence[NewReceipt]) -> None:
    """Raises InvalidArgument for a batch that is too large, or a receipt without a usable id."""
    if len(batch) > MOST_RECEIPTS:
        raise InvalidArgument(FieldViolation("receipts", f"at most {MOST_RECEIPTS} at once"))
    bad = [
        FieldViolation(f"receipts[{at}].receipt_id", f"1 to {_ID_BYTES} bytes")
        for at, receipt in enumerate(batch)
        if not 0 < len(receipt.receipt_id.encode()) <= _ID_BYTES
    ]
    if bad:
        raise InvalidArgument(*bad)


def counted(dispositions: Iterable[str]) -> dict[str, int]:
    """How many of each disposition, for the log."""
    return dict(sorted(Counter(str(each) for each in dispositions).items()))


def _fitting(text: str) -> str:
    """The text, cut to what a column holds, at a character's end."""
    return text.encode()[:_ID_BYTES].decode(errors="ignore")
