"""Every bound with a name, a unit and the relations that must hold between them.

Receives settings' numbers. Hands on frozen, checked bounds; `assert_relations` stops a start
with the relation that is broken. Source: DESIGN section 6 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass


class BrokenRelationError(ValueError):
    """Two settings contradict each other; the message names them and their values."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The sizes that a submit may have; bytes unless the name says otherwise."""

    message_bytes: int = 16 * 1024 * 1024
    text_bytes: int = 1024 * 1024
    image_bytes: int = 8 * 1024 * 1024
    frames: int = 10_000
    parts: int = 100
    key_bytes: int = 128
    uri_bytes: int = 2048
    labels: int = 32
    label_bytes: int = 128
    deadline_seconds: float = 7 * 86_400.0
    video_seconds: float = 86_400.0
    duplicates: int = 100  # resends that a caller may allow


@dataclass(frozen=True, slots=True)
class LeaseBounds:
    """A dispatcher's lease on a task, in seconds.

    `store_timeout_seconds`: what is allowed for the store's part of a renewal, its waits for
    locks and its retries. It is room in the relation, no timer: nothing is cut off by it.
    `execute_timeout_seconds`: how long an Execute is waited for before its task is UNKNOWN.
    """

    lease_seconds: float = 30.0
    renew_interval_seconds: float = 5.0
    store_timeout_seconds: float = 5.0
    execute_timeout_seconds: float = 60.0

    def assert_relations(self) -> None:
        """Raises BrokenRelationError when a lease cannot be kept by its renewals."""
        _below(
            "3 * renew_interval_seconds + store_timeout_seconds",
            3 * self.renew_interval_seconds + self.store_timeout_seconds,
            "lease_seconds",
            self.lease_seconds,
        )

    def assert_outlasts(self, vendor: str, *, client_timeout_seconds: float) -> None:
        """Raises BrokenRelationError when an Execute ends before the proxy's wait for a vendor.

        Every call as slow as the vendor may be would then be UNKNOWN to the dispatcher.
        """
        if not self.execute_timeout_seconds > client_timeout_seconds:
            raise BrokenRelationError(
                f"vendor {vendor}: leases.execute_timeout_seconds "
                f"({self.execute_timeout_seconds}) must be above its client_timeout_seconds "
                f"({client_timeout_seconds}): an Execute waits for the whole call"
            )


@dataclass(frozen=True, slots=True)
class IncarnationBounds:
    """A proxy's right to send, in seconds.

    `store_timeout_seconds`: as in `LeaseBounds`. `write_seconds`: within it after the check of
    the lease the last byte of a request must have left.
    """

    lease_seconds: float = 10.0
    renew_interval_seconds: float = 2.0
    store_timeout_seconds: float = 2.0
    write_seconds: float = 2.0

    def assert_relations(self) -> None:
        """Raises BrokenRelationError when an incarnation could not keep its lease."""
        _below(
            "2 * renew_interval_seconds + store_timeout_seconds + write_seconds",
            2 * self.renew_interval_seconds + self.store_timeout_seconds + self.write_seconds,
            "lease_seconds",
            self.lease_seconds,
        )


def assert_vendor_times(
    vendor: str, *, client_timeout_seconds: float, max_execution_seconds: float
) -> None:
    """A vendor must be declared to work at least as long as we wait for it."""
    if max_execution_seconds < client_timeout_seconds:
        raise BrokenRelationError(
            f"vendor {vendor}: max_execution_seconds ({max_execution_seconds}) must be at least "
            f"client_timeout_seconds ({client_timeout_seconds}): after a time-out the permit "
            "is held until the vendor has stopped for sure"
        )


def _below(left: str, left_value: float, right: str, right_value: float) -> None:
    if not left_value < right_value:
        raise BrokenRelationError(f"{left} ({left_value}) must be below {right} ({right_value})")
