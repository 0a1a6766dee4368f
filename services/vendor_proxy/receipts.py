"""Receipts: verified over their raw bytes, stored once by content, then acknowledged.

Receives a vendor's HTTP body and headers. Hands on `NewReceipt`s whose status a versioned map
has translated. Signatures follow Standard Webhooks (https://www.standardwebhooks.com).
Source: DESIGN section 7.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from kernel.environment import MICROS_PER_SECOND
from kernel.errors import FieldViolation, InvalidArgument, Unauthenticated
from kernel.idempotency import Hasher, canonical
from kernel.receipt import ReceiptState
from kernel.store.raw_receipts import NewReceipt
from kernel.vendor import VendorProfile
from services.vendor_proxy.adapters import ParsedReceipt

BODY_BYTES = 1024 * 1024
WINDOW_SECONDS = 300
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUS_BYTES = 64
_NAME_BYTES = 128


@dataclass(slots=True)
class ReceiptCounts:
    """What came in since the start."""

    stored: int = 0
    repeated: int = 0
    rejected: int = 0
    unknown_status: int = 0


def verify(secret: str | None, headers: Mapping[str, str], body: bytes, now: int) -> None:
    """Raises Unauthenticated unless `body` was signed with `secret` around `now` (microseconds).

    The library compares with the machine's own clock, so the time window is checked here.
    Without a secret everything is refused.
    """
    if len(body) > BODY_BYTES:
        raise InvalidArgument(FieldViolation("body", f"must be at most {BODY_BYTES} bytes"))
    refused = Unauthenticated(
        "The receipt's signature or time is not valid; nothing was stored.",
        reason="SIGNATURE_INVALID",
    )
    given = {name.lower(): value for name, value in headers.items()}
    event_id = given.get("webhook-id", "")
    stamp = given.get("webhook-timestamp", "")
    signatures = given.get("webhook-signature", "")
    if not (secret and event_id and signatures and stamp.isascii() and stamp.isdigit()):
        raise refused
    # Ten digits reach the year 2286; more would only strain the arithmetic.
    if len(stamp) > 12 or abs(now - int(stamp) * MICROS_PER_SECOND) > (
        WINDOW_SECONDS * MICROS_PER_SECOND
    ):
        raise refused
    try:
        signed_at = _EPOCH + timedelta(seconds=int(stamp))
        expected = Webhook(secret).sign(event_id, signed_at, body.decode())
    except (binascii.Error, ValueError, EmptyWebhookSecretError):
        raise refused from None
    matching = [
        hmac.compare_digest(expected.encode(), each.encode(errors="replace"))
        for each in signatures.split(" ")
    ]
    if not any(matching):
        raise refused


def translate(profile: VendorProfile, status: str) -> ReceiptState:
    """The vendor's word by its status map, trimmed and in lower case; else UNMAPPED."""
    words = {word.strip().lower(): state for word, state in profile.status_map.items()}
    return ReceiptState(words.get(status.strip().lower(), ReceiptState.UNMAPPED))


def build(
    profile: VendorProfile, parsed: ParsedReceipt, body: bytes, sealed: bytes, hasher: Hasher
) -> NewReceipt:
    """The receipt as it is stored. Its id is the same for the same fact, whatever its event id."""
    fact: object = [
        parsed.reference,
        parsed.external_id,
        parsed.status.strip().lower(),
        parsed.occurred_at,
        dict(parsed.scores) if parsed.scores is not None else None,
    ]
    if not (parsed.reference or parsed.external_id):
        fact = ["raw", hasher.digest("receipt-body", canonical(body))]
    return NewReceipt(
        receipt_id=hasher.digest("receipt", canonical([profile.name, fact])),
        vendor=profile.name,
        event_id=parsed.event_id,
        reference=parsed.reference,
        external_id=parsed.external_id,
        state=translate(profile, parsed.status),
        vendor_status=_cut(parsed.status.strip(), _STATUS_BYTES),
        status_map_version=profile.status_map_version,
        status_map_reviewer=_cut(profile.status_map_reviewer, _NAME_BYTES),
        occurred_at=parsed.occurred_at,
        scores=parsed.scores,
        cost_micros=parsed.cost_micros,
        reason=parsed.reason,
        sealed_body=sealed,
    )


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")
