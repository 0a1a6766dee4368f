"""What a request must look like before the ledger is asked.

Receives a request and the declared vendors and pools. Hands on nothing: every bad field is
named in one `InvalidArgument`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel.attempt import CallRequest
from kernel.errors import FieldViolation, InvalidArgument, NotFound
from kernel.limits import RequestLimits
from kernel.vendor import PoolProfile, VendorProfile

KINDS = ("TEXT", "IMAGE", "IMAGE_URI", "VIDEO", "VIDEO_URI")
_LIMITS = RequestLimits()


def check_request(
    request: CallRequest,
    vendors: Mapping[str, VendorProfile],
    pools: Mapping[str, PoolProfile],
) -> None:
    """Raises InvalidArgument naming every bad field."""
    wrong = []
    wrong += _no_key(request.idempotency_key)
    wrong += _missing("tenant_id", request.tenant_id)
    for name in (
        "tenant_id",
        "task_id",
        "payload_ref",
        "model_id",
        "model_version",
    ):
        wrong += _too_long(name, getattr(request, name))
    if request.vendor not in vendors:
        wrong.append(FieldViolation("vendor", "no such vendor is declared"))
    pool = pools.get(request.pool)
    if pool is None:
        wrong.append(FieldViolation("pool", "no such pool is declared"))
    elif request.vendor in vendors and pool.vendor != request.vendor:
        wrong.append(FieldViolation("pool", "belongs to another vendor"))
    if request.kind not in KINDS:
        wrong.append(FieldViolation("kind", f"must be one of {', '.join(KINDS)}"))
    if bool(request.payload_ref) == bool(request.payload):
        wrong.append(FieldViolation("payload", "give either payload_ref or payload"))
    if len(request.payload) > _LIMITS.message_bytes:
        wrong.append(FieldViolation("payload", f"must be at most {_LIMITS.message_bytes} bytes"))
    for name in ("attempt", "max_sends", "deadline"):
        wrong += _below_one(name, getattr(request, name))
    bounds = request.on_unknown
    if bounds.max_duplicates < 0 or bounds.max_cost_micros < 0:
        wrong.append(FieldViolation("on_unknown", "bounds must not be negative"))
    if request.granted_sends < 0:
        wrong.append(FieldViolation("granted_sends", "must not be negative"))
    if any(count < 0 for count in request.units.values()):
        wrong.append(FieldViolation("units", "must not be negative"))
    if wrong:
        raise InvalidArgument(*wrong)


def check_fence(idempotency_key: str, attempt: int) -> None:
    """Raises InvalidArgument naming every bad field."""
    wrong = [
        *_no_key(idempotency_key),
        *_below_one("attempt", attempt),
    ]
    if wrong:
        raise InvalidArgument(*wrong)


def check_vendor(vendor: str, vendors: Mapping[str, VendorProfile]) -> None:
    """Raises NotFound when no such vendor is declared."""
    if vendor not in vendors:
        raise NotFound("No such vendor is declared.", field="vendor")


def _no_key(key: str) -> list[FieldViolation]:
    """A key travels in a header, where white space at its ends and control characters are lost.

    Two keys that a vendor cannot tell apart would be one call to it and two to us.
    """
    if not key:
        return _missing("idempotency_key", key)
    if all("!" <= letter <= "~" for letter in key):
        return _too_long("idempotency_key", key)
    return [FieldViolation("idempotency_key", "must be visible ASCII characters, without spaces")]


def _missing(name: str, value: str) -> list[FieldViolation]:
    return [] if value else [FieldViolation(name, "is missing")]


def _too_long(name: str, value: str) -> list[FieldViolation]:
    if len(value.encode()) <= _LIMITS.key_bytes:
        return []
    return [FieldViolation(name, f"must be at most {_LIMITS.key_bytes} bytes")]


def _below_one(name: str, value: int) -> list[FieldViolation]:
    return [] if value >= 1 else [FieldViolation(name, "must be given, from 1 on")]
