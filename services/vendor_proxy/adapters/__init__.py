"""Adapters: one vendor protocol each, between our typed calls and the vendor's wire.

Receives a call, its payload and a `Transmission`. Hands on a typed outcome; what no rule
covers is UNKNOWN, never a failure. An adapter sends once and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kernel.attempt import CallOutcome


class NotSentError(Exception):
    """No byte of the request left; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadPayloadError(Exception):
    """The payload cannot be put into the vendor's form; `reason` says why, without it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Transmission:
    """Whether a request's bytes may leave, and whether they began to.

    `refusal` is the pre-send check: it returns the reason not to send, or None.
    """

    def __init__(self, refusal: Callable[[], str | None]) -> None:
        self._refusal = refusal
        self._closed = False
        self.began = False

    def open(self) -> None:
        """Called in the event-loop step that writes the first byte; raises NotSentError."""
        if self._closed or self.began:
            raise NotSentError("SEND_ABANDONED")
        reason = self._refusal()
        if reason is not None:
            self._closed = True
            raise NotSentError(reason)
        self.began = True

    def close(self) -> bool:
        """Let nothing leave any more; returns whether something may have left."""
        self._closed = True
        return self.began


@dataclass(frozen=True, slots=True)
class VendorCall:
    """What a vendor is asked. `reference` is the idempotency key as the vendor sees it."""

    reference: str
    model_id: str
    kind: str
    units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request in the vendor's form, ready for the wire."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class VendorState(StrEnum):
    """What a vendor says of a call when asked."""

    RUNNING = "RUNNING"
    ENDED = "ENDED"  # with its outcome
    NOT_FOUND = "NOT_FOUND"
    UNSUPPORTED = "UNSUPPORTED"  # it cannot tell
    ERROR = "ERROR"  # the query itself failed


@dataclass(frozen=True, slots=True)
class VendorAnswer:
    """A vendor's answer to a query; `outcome` with ENDED."""

    state: VendorState
    outcome: CallOutcome | None = None
    external_id: str = ""
    retry_after_seconds: float | None = None


class CancelAnswer(StrEnum):
    """A vendor's answer to a cancel."""

    CANCELLED = "CANCELLED"
    TOO_LATE = "TOO_LATE"
    CANNOT_TELL = "CANNOT_TELL"


@dataclass(frozen=True, slots=True)
class ParsedReceipt:
    """A receipt's fields as the vendor gave them; empty where it gave none.

    `occurred_at` in microseconds since the epoch, 0 when it is missing or malformed.
    """

    event_id: str = ""
    reference: str = ""
    external_id: str = ""
    status: str = ""
    occurred_at: int = 0
    scores: Mapping[str, float] | None = None
    cost_micros: int | None = None
    reason: str = ""


class Adapter(Protocol):
    """One vendor account, spoken to in its own protocol."""

    def prepare(self, call: VendorCall, payload: bytes) -> PreparedCall:
        """The request's bytes; raises BadPayloadError, and NotSentError without a credential."""

    async def send(self, prepared: PreparedCall, transmission: Transmission) -> CallOutcome:
        """Send once. Returns a typed outcome whatever happens on the wire."""

    async def query(self, reference: str, external_id: str) -> VendorAnswer:
        """Ask by our reference, or by the vendor's id where `reference` is empty."""

    async def cancel(self, external_id: str) -> CancelAnswer:
        """Ask the vendor to stop."""

    def parse_receipt(self, body: bytes) -> ParsedReceipt:
        """Read a verified receipt; what cannot be read is left empty."""
