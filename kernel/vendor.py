"""What is declared of a vendor and of its pools: the facts that every rule about it reads.

Receives settings' values. Hands on frozen profiles. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel.idempotency import Capabilities
from kernel.limits import assert_vendor_times


@dataclass(frozen=True, slots=True)
class VendorProfile:
    """One vendor account. Times in seconds, prices in millionths of the currency unit.

    `adapter` names the protocol ("sluice" or "openai-moderations"). `credential_ref` and
    `receipt_secret_ref` name where a secret is found ("env:NAME"), never the secret.
    `max_execution_seconds`: the longest that the vendor works after our last byte.
    `counts`: whether it counts "requests" or "jobs" against its limit.
    `throttle_503`: its plain 503 means "not executed". `status_map`: its receipts' words,
    trimmed and lower-cased, to ACCEPTED, SUCCEEDED or FAILED; `status_map_version` and
    `status_map_reviewer` say which map and who looked at it.
    """

    name: str
    adapter: str
    endpoint: str
    able: Capabilities = field(default_factory=Capabilities)
    credential_ref: str = ""
    receipt_secret_ref: str = ""
    client_timeout_seconds: float = 10.0
    max_execution_seconds: float = 30.0
    receipt_due_seconds: float = 60.0
    receipt_grace_seconds: float = 2.0
    query_timeout_seconds: float = 5.0
    query_concurrency: int = 8
    counts: str = "requests"
    throttle_503: bool = False
    price_micros: int = 0
    status_map: Mapping[str, str] = field(default_factory=dict)
    status_map_version: int = 1
    status_map_reviewer: str = ""
    retryable_codes: frozenset[str] = frozenset({"busy", "too_early"})

    def __post_init__(self) -> None:
        assert_vendor_times(
            self.name,
            client_timeout_seconds=self.client_timeout_seconds,
            max_execution_seconds=self.max_execution_seconds,
        )


@dataclass(frozen=True, slots=True)
class PoolProfile:
    """One pool: a vendor with a limit of its own. `concurrency` in calls at once."""

    name: str
    vendor: str
    concurrency: int
