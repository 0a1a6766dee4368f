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
    for name in ("idempotency_key", "tenant_id"):
        if not getattr(request, name):
            wrong.append(FieldViolation(name, "is missing"))
    for name in (
        "idempotency_key",
        "tenant_id",
        "task_id",
        "payload_ref",
        "model_id",
        "model_version",
    ):
        if len(getattr(request, name).encode()) > _LIMITS.key_bytes:
            wrong.append(FieldViolation(name, f"must be at most {_LIMITS.key_bytes} bytes"))
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
        if getattr(request, name) < 1:
            wrong.append(FieldViolation(name, "must be given, from 1 on"))
    if any(count < 0 for count in request.units.values()):
        wrong.append(FieldViolation("units", "must not be negative"))
    if wrong:
        raise InvalidArgument(*wrong)


def check_vendor(vendor: str, vendors: Mapping[str, VendorProfile]) -> None:
    """Raises NotFound when no such vendor is declared."""
    if vendor not in vendors:
        raise NotFound("No such vendor is declared.", field="vendor")
