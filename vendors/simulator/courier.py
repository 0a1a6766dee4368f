"""Receives a receipt and an address; hands on the receiver's status, signing what it sends.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com): over the raw bytes,
with the headers webhook-id, webhook-timestamp and webhook-signature.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
import orjson
from standardwebhooks import Webhook

from kernel.environment import MICROS_PER_SECOND, Environment
from vendors.simulator.ledger import EPOCH

SENDS = 5
FIRST_BACKOFF_SECONDS = 0.1
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a vendor tells us about one call. Fields that are None stay out of the body."""

    reference: str
    status: str | None
    occurred_at: str
    event_id: str | None
    external_id: str | None = None
    result: dict[str, object] | None = None
    cost_micros: int | None = None

    def body(self) -> bytes:
        """The raw bytes that are signed and sent; `status` is there even when null."""
        fields: dict[str, object | None] = {
            "event_id": self.event_id,
            "reference": self.reference,
            "external_id": self.external_id,
            "occurred_at": self.occurred_at,
            "result": self.result,
            "cost_micros": self.cost_micros,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return orjson.dumps(given | {"status": self.status})


def signed_headers(event_id: str, body: bytes, secret: str, now_micros: int) -> dict[str, str]:
    """The Standard Webhooks headers of `body`, signed with `secret` (whsec_ and base64)."""
    seconds = now_micros // MICROS_PER_SECOND
    signature = Webhook(secret).sign(event_id, EPOCH + timedelta(seconds=seconds), body.decode())
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": signature,
    }


class Courier:
    """Sends receipts over one HTTP session."""

    def __init__(self, environment: Environment, session: aiohttp.ClientSession) -> None:
        self._environment = environment
        self._session = session

    def new_secret(self) -> str:
        """A secret that nobody else holds."""
        secret = self._environment.random.randbytes(SECRET_BYTES)
        return "whsec_" + base64.b64encode(secret).decode()

    async def send_once(self, url: str, receipt: Receipt, secret: str) -> int | None:
        """The receiver's HTTP status, or None where no answer came back."""
        body = receipt.body()
        event_id = receipt.event_id or self._environment.new_id()
        headers = signed_headers(event_id, body, secret, self._environment.clock.now_micros())
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def send(self, url: str, receipt: Receipt, secret: str) -> None:
        """Send until the answer is 2xx, five times at most, with a doubling back-off."""
        for send in range(SENDS):
            if send:
                await self._environment.clock.sleep(FIRST_BACKOFF_SECONDS * 2 ** (send - 1))
            status = await self.send_once(url, receipt, secret)
            if status is not None and 200 <= status < 300:
                return
