"""What an HTTP answer means: the table of outcomes, for every adapter.

Receives a whole reply and the vendor's profile. Hands on the outcome of everything that is
not a success; successes are each adapter's own. Source: DESIGN section 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from kernel.attempt import CallOutcome, Outcome
from kernel.retry import parse_retry_after
from kernel.vendor import VendorProfile
from services.vendor_proxy.adapters import NotSentError, PreparedCall, Transmission
from services.vendor_proxy.adapters.http import Http, HttpReply, InDoubtError

Secrets = Callable[[str], str | None]  # a reference such as env:NAME to the secret behind it

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_CATEGORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./:-]{0,63}")
_MOST_CATEGORIES = 256
_NAME_BYTES = 128
# The request's time ran out on the way; nothing says whether it was executed.
_TIMED_OUT = frozenset({408, 499})


def json_object(body: bytes) -> dict[str, Any] | None:
    """The body as a JSON object, None when it is anything else."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def error_of(fields: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The `error` object of an answer, empty where there is none or it has another form."""
    error = (fields or {}).get("error")
    return error if isinstance(error, dict) else {}


def name_of(value: object) -> str:
    """A vendor's id as we can keep it; empty when it is no text, or too long."""
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= _NAME_BYTES:
        return value
    return ""


def code_of(value: object, otherwise: str = "") -> str:
    """A vendor's code in UPPER_SNAKE; free text is no code, since it can repeat the input."""
    if isinstance(value, str) and _CODE.fullmatch(value):
        return value.upper()
    return otherwise


def scores_of(value: object) -> dict[str, float] | None:
    """Category scores in [0, 1], None when anything else is among them.

    A category is a short word and there are few: what a vendor echoes is not kept in plain.
    """
    if not isinstance(value, Mapping) or not 0 < len(value) <= _MOST_CATEGORIES:
        return None
    scores = {}
    for name, score in value.items():
        number = isinstance(score, int | float) and not isinstance(score, bool)
        word = isinstance(name, str) and _CATEGORY.fullmatch(name)
        if not word or not number or not 0 <= score <= 1:
            return None
        scores[name] = float(score)
    return scores


def cost_of(value: object) -> int | None:
    """A cost in millionths, None where the vendor named none."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def not_a_success(reply: HttpReply, profile: VendorProfile, now: int) -> CallOutcome:
    """The outcome of a reply that is no success; `now` in microseconds for an HTTP date."""
    retry_after = parse_retry_after(reply.headers.get("Retry-After"), now)
    status = reply.status
    if status == 429 or (status == 503 and profile.throttle_503):
        return CallOutcome(
            Outcome.THROTTLED, f"HTTP_{status}", retryable=True, retry_after_seconds=retry_after
        )
    if 400 <= status < 500 and status not in _TIMED_OUT:
        error = error_of(json_object(reply.body))
        code = code_of(error.get("code")) or code_of(error.get("type"))
        if code:
            retryable = code.lower() in {each.lower() for each in profile.retryable_codes}
            return CallOutcome(
                Outcome.REJECTED, code, retryable=retryable, retry_after_seconds=retry_after
            )
    return CallOutcome(Outcome.UNKNOWN, f"HTTP_{status}")


def unreadable() -> CallOutcome:
    """The vendor said success, and we cannot read of what."""
    return CallOutcome(Outcome.UNKNOWN, "REPLY_UNREADABLE")


async def post_once(
    http: Http,
    profile: VendorProfile,
    prepared: PreparedCall,
    transmission: Transmission,
) -> HttpReply | CallOutcome:
    """Send a prepared call; a reply, or the outcome of having none."""
    try:
        return await http.exchange(
            "POST",
            profile.endpoint.rstrip("/") + prepared.path,
            transmission,
            timeout_seconds=profile.client_timeout_seconds,
            headers=prepared.headers,
            body=prepared.body,
        )
    except NotSentError as none_left:
        return CallOutcome(Outcome.NOT_SENT, none_left.reason, retryable=True)
    except InDoubtError as doubt:
        return CallOutcome(Outcome.UNKNOWN, doubt.reason)


class Credential:
    """A vendor's bearer token, looked up at each use so that it can be rotated."""

    def __init__(self, reference: str, secrets: Secrets) -> None:
        self._reference = reference
        self._secrets = secrets

    def headers(self) -> dict[str, str]:
        """The header that carries it; raises NotSentError when it is declared and not there."""
        if not self._reference:
            return {}
        token = self._secrets(self._reference)
        if not token:
            raise NotSentError("CREDENTIAL_MISSING")
        return {"Authorization": f"Bearer {token}"}
