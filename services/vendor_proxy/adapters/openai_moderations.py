"""OpenAI-compatible moderation: `POST /v1/moderations` with a text or an image.

Receives calls with their payload. Hands on category scores. Such a vendor neither
de-duplicates nor can be asked about a call, and sends no receipts. Video frames come as images.
"""

from __future__ import annotations

import base64

import orjson

from kernel.attempt import CallOutcome, Outcome
from kernel.environment import Environment
from kernel.vendor import VendorProfile
from services.vendor_proxy.adapters import (
    BadPayloadError,
    CancelAnswer,
    ParsedReceipt,
    PreparedCall,
    Transmission,
    VendorAnswer,
    VendorCall,
    VendorState,
)
from services.vendor_proxy.adapters.http import Http
from services.vendor_proxy.adapters.replies import (
    Credential,
    Secrets,
    json_object,
    name_of,
    not_a_success,
    post_once,
    scores_of,
    unreadable,
)

_IMAGE_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


class OpenAiModerationsAdapter:
    """One account of an OpenAI-compatible moderation endpoint."""

    def __init__(
        self, profile: VendorProfile, http: Http, environment: Environment, secrets: Secrets
    ) -> None:
        self._profile = profile
        self._http = http
        self._environment = environment
        self._credential = Credential(profile.credential_ref, secrets)

    def prepare(self, call: VendorCall, payload: bytes) -> PreparedCall:
        """One input per request; images travel as data URLs."""
        body = {"model": call.model_id, "input": _input(call.kind, payload)}
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": call.reference,
            **self._credential.headers(),
        }
        return PreparedCall("/v1/moderations", orjson.dumps(body), headers)

    async def send(self, prepared: PreparedCall, transmission: Transmission) -> CallOutcome:
        """Send once."""
        reply = await post_once(self._http, self._profile, prepared, transmission)
        if isinstance(reply, CallOutcome):
            return reply
        if reply.status != 200:
            return not_a_success(reply, self._profile, self._environment.clock.now_micros())
        fields = json_object(reply.body) or {}
        results = fields.get("results")
        first = results[0] if isinstance(results, list) and len(results) == 1 else None
        scores = scores_of(first.get("category_scores")) if isinstance(first, dict) else None
        if scores is None:
            return unreadable()
        return CallOutcome(
            Outcome.COMPLETED,
            scores=scores,
            external_id=name_of(fields.get("id")),
            cost_micros=self._profile.price_micros,
        )

    async def query(self, reference: str, external_id: str) -> VendorAnswer:
        """Such a vendor keeps no calls."""
        return VendorAnswer(VendorState.UNSUPPORTED)

    async def cancel(self, external_id: str) -> CancelAnswer:
        """Such a vendor cannot be stopped."""
        return CancelAnswer.CANNOT_TELL

    def parse_receipt(self, body: bytes) -> ParsedReceipt:
        """Such a vendor sends none: nothing can be read."""
        return ParsedReceipt()


def _input(kind: str, payload: bytes) -> object:
    match kind:
        case "TEXT" | "IMAGE_URI":
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                raise BadPayloadError("PAYLOAD_NOT_UTF8") from None
            if kind == "TEXT":
                return text
            return [{"type": "image_url", "image_url": {"url": text}}]
        case "IMAGE":
            encoded = base64.b64encode(payload).decode()
            url = f"data:{_image_type(payload)};base64,{encoded}"
            return [{"type": "image_url", "image_url": {"url": url}}]
        case _:
            raise BadPayloadError("KIND_UNSUPPORTED")


def _image_type(payload: bytes) -> str:
    if payload[:4] == b"RIFF" and payload[8:12] == b"WEBP":
        return "image/webp"
    for magic, name in _IMAGE_TYPES:
        if payload.startswith(magic):
            return name
    return "application/octet-stream"
