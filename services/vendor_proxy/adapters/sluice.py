"""The reference protocol: JSON calls with a key, queries by key or id, cancels and receipts.

Receives calls with their payload. Hands on typed outcomes. The scripted vendor under
`vendors/simulator` speaks it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from kernel.attempt import RESULT_LOST, CallOutcome, Outcome
from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.retry import parse_retry_after
from kernel.vendor import VendorProfile
from services.vendor_proxy.adapters import (
    BadPayloadError,
    CancelAnswer,
    NotSentError,
    ParsedReceipt,
    PreparedCall,
    Transmission,
    VendorAnswer,
    VendorCall,
    VendorState,
)
from services.vendor_proxy.adapters.http import Http, HttpReply, InDoubtError
from services.vendor_proxy.adapters.replies import (
    Credential,
    Secrets,
    code_of,
    cost_of,
    error_of,
    json_object,
    name_of,
    not_a_success,
    post_once,
    scores_of,
    unreadable,
)

# Our kinds of input to the protocol's kind and the field that carries the input.
_KINDS = {
    "TEXT": ("TEXT", "text"),
    "IMAGE": ("IMAGE", "base64"),
    "IMAGE_URI": ("IMAGE", "uri"),
    "VIDEO": ("VIDEO", "base64"),
    "VIDEO_URI": ("VIDEO", "uri"),
}


class SluiceAdapter:
    """One vendor account of the reference protocol. `receipt_url` empty: no receipts wanted."""

    def __init__(
        self,
        profile: VendorProfile,
        http: Http,
        environment: Environment,
        secrets: Secrets,
        receipt_url: str,
    ) -> None:
        self._profile = profile
        self._http = http
        self._environment = environment
        self._credential = Credential(profile.credential_ref, secrets)
        self._receipt_url = receipt_url if profile.able.receipts else ""

    def prepare(self, call: VendorCall, payload: bytes) -> PreparedCall:
        """The same bytes at every attempt: a de-duplicating vendor may compare them."""
        kind, carrier = _KINDS.get(call.kind, ("", ""))
        if not kind:
            raise BadPayloadError("KIND_UNSUPPORTED")
        if carrier == "base64":
            content = base64.b64encode(payload).decode()
        else:
            try:
                content = payload.decode()
            except UnicodeDecodeError:
                raise BadPayloadError("PAYLOAD_NOT_UTF8") from None
        body = {
            "reference": call.reference,
            "model": call.model_id,
            "kind": kind,
            "input": {carrier: content},
            "units": dict(call.units),
            "receipt_url": self._receipt_url or None,
        }
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": call.reference,
            **self._credential.headers(),
        }
        return PreparedCall("/calls", orjson.dumps(body, option=orjson.OPT_SORT_KEYS), headers)

    async def send(self, prepared: PreparedCall, transmission: Transmission) -> CallOutcome:
        """Send once."""
        reply = await post_once(self._http, self._profile, prepared, transmission)
        if isinstance(reply, CallOutcome):
            return reply
        if reply.status not in (200, 202):
            return not_a_success(reply, self._profile, self._environment.clock.now_micros())
        fields = json_object(reply.body)
        if fields is None:
            return unreadable()
        external_id = name_of(fields.get("external_id"))
        if reply.status == 202:
            if not external_id:
                return unreadable()
            due = self._profile.receipt_due_seconds
            return CallOutcome(Outcome.ACCEPTED, external_id=external_id, receipt_due_seconds=due)
        ended = self._ended(fields, external_id)
        # Without a readable result the call is asked about again, or settled by a receipt.
        if ended is None or ended.reason == RESULT_LOST:
            return unreadable()
        return ended

    async def query(self, reference: str, external_id: str) -> VendorAnswer:
        """`GET /calls?key=` or `GET /calls/{external_id}`."""
        path = f"/calls?key={quote(reference, safe='')}" if reference else _call(external_id)
        reply = await self._ask("GET", path)
        if reply is None:
            return VendorAnswer(VendorState.ERROR)
        if reply.status == 200:
            return self._shown(json_object(reply.body) or {})
        code = error_of(json_object(reply.body)).get("code")
        if reply.status == 404 and code == "not_found":
            return VendorAnswer(VendorState.NOT_FOUND)
        if reply.status == 429 or reply.status >= 500:
            now = self._environment.clock.now_micros()
            wait = parse_retry_after(reply.headers.get("Retry-After"), now)
            return VendorAnswer(VendorState.ERROR, retry_after_seconds=wait)
        return VendorAnswer(VendorState.UNSUPPORTED)

    async def cancel(self, external_id: str) -> CancelAnswer:
        """`DELETE /calls/{external_id}`."""
        reply = await self._ask("DELETE", _call(external_id))
        if reply is not None and reply.status == 200:
            return CancelAnswer.CANCELLED
        if reply is not None and reply.status == 409:
            return CancelAnswer.TOO_LATE
        return CancelAnswer.CANNOT_TELL

    def parse_receipt(self, body: bytes) -> ParsedReceipt:
        """Read the fields of a receipt."""
        fields = json_object(body) or {}
        result = fields.get("result")
        status = fields.get("status")
        return ParsedReceipt(
            event_id=name_of(fields.get("event_id")),
            reference=name_of(fields.get("reference")),
            external_id=name_of(fields.get("external_id")),
            status=status if isinstance(status, str) else "",
            occurred_at=_micros(fields.get("occurred_at")),
            scores=scores_of(result.get("scores")) if isinstance(result, dict) else None,
            cost_micros=cost_of(fields.get("cost_micros")),
            reason=code_of(error_of(fields).get("code")),
        )

    def _ended(self, fields: Mapping[str, Any], external_id: str) -> CallOutcome | None:
        """The outcome of a call that has ended, None while it runs or cannot be read."""
        code = code_of(error_of(fields).get("code"))
        match fields.get("state"):
            case "SUCCEEDED":
                result = fields.get("result")
                scores = scores_of(result.get("scores")) if isinstance(result, dict) else None
                cost = cost_of(fields.get("cost_micros"))
                price = self._profile.price_micros if cost is None else cost
                if scores is None:
                    return CallOutcome(
                        Outcome.REJECTED, RESULT_LOST, external_id=external_id, cost_micros=price
                    )
                return CallOutcome(
                    Outcome.COMPLETED, scores=scores, external_id=external_id, cost_micros=price
                )
            case "FAILED":
                return CallOutcome(Outcome.REJECTED, code or "FAILED", external_id=external_id)
            case "CANCELLED":
                return CallOutcome(Outcome.REJECTED, "CANCELLED", external_id=external_id)
            case _:
                return None

    def _shown(self, fields: Mapping[str, Any]) -> VendorAnswer:
        external_id = name_of(fields.get("external_id"))
        if fields.get("state") == "RUNNING":
            return VendorAnswer(VendorState.RUNNING, external_id=external_id)
        ended = self._ended(fields, external_id)
        if ended is None:
            return VendorAnswer(VendorState.ERROR)
        return VendorAnswer(VendorState.ENDED, ended, external_id)

    async def _ask(self, method: str, path: str) -> HttpReply | None:
        try:
            return await self._http.exchange(
                method,
                self._profile.endpoint.rstrip("/") + path,
                Transmission(lambda: None),
                timeout_seconds=self._profile.query_timeout_seconds,
                headers=self._credential.headers(),
            )
        except (NotSentError, InDoubtError):
            return None


def _call(external_id: str) -> str:
    return f"/calls/{quote(external_id, safe='')}"


def _micros(value: object) -> int:
    if not isinstance(value, str):
        return 0
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return 0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * MICROS_PER_SECOND)
