"""What callers are told when something cannot be done: typed, and free of internals.

Receives nothing. Hands on `Problem`, which `kernel/runtime/rpc.py` maps to one gRPC status
with `google.rpc.ErrorInfo`; the mapping is CONTRACT.md's table of bad input.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One bad field: its path in the request, and what it should be."""

    field: str
    description: str


class Problem(Exception):  # noqa: N818 - a problem is told to a caller, it is not a bug of ours
    """Something a caller can act on. `reason` is UPPER_SNAKE; `metadata` holds no payload."""

    reason = "PROBLEM"

    def __init__(self, message: str, *, reason: str = "", **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason
        self.metadata = metadata


_NAMED_IN_MESSAGE = 8  # all of them are in `violations`


class InvalidArgument(Problem):
    """One or more fields are missing, malformed or too large; every one is named."""

    reason = "INVALID_FIELD"

    def __init__(self, *violations: FieldViolation) -> None:
        first = violations[:_NAMED_IN_MESSAGE]
        named = "; ".join(f"{each.field}: {each.description}" for each in first)
        more = len(violations) - len(first)
        rest = f"; and {more} more" if more else ""
        super().__init__(f"Nothing was stored. Correct and send again: {named}{rest}")
        self.violations = violations


class NotFound(Problem):
    """No such id."""

    reason = "NOT_FOUND"


class RequestMismatch(Problem):
    """The key was used before with a different body."""

    reason = "REQUEST_MISMATCH"


class LostRace(Problem):
    """A compare-and-set lost: the row moved on since it was read."""

    reason = "VERSION_MOVED"


class NotAllowedInState(Problem):
    """The thing exists, but its state does not allow this."""

    reason = "STATE_FORBIDS"


class Overloaded(Problem):
    """Refused for now; `retry_after_seconds` says when to come back."""

    reason = "OVERLOADED"

    def __init__(self, message: str, *, retry_after_seconds: float, **metadata: str) -> None:
        super().__init__(message, **metadata)
        self.retry_after_seconds = retry_after_seconds


class Unauthenticated(Problem):
    """The caller is unknown."""

    reason = "CALLER_UNKNOWN"


class PermissionDenied(Problem):
    """The caller is known and may not do this."""

    reason = "CALLER_NOT_ALLOWED"


class StoreAway(Problem):
    """The database cannot be reached; nothing is half-written."""

    reason = "STORE_AWAY"
