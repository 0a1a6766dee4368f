"""Receives a receipt's fields; hands tests its raw bytes, its signed headers, and its telling."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from standardwebhooks import Webhook

from kernel.attempt import Outcome
from kernel.idempotency import Capabilities
from services.vendor_proxy.core import ProxyCore
from tests.vendor_proxy.scripted_vendor import http, raw_vendor
from tests.vendor_proxy.world import CALLER, SECRET, VENDOR, World

ABLE = Capabilities(receipts=True)
ACCEPTED = '{"external_id":"x1","state":"ACCEPTED"}'
SUCCESS = {"status": "succeeded"}
FAILURE = {"status": "failed", "result": None, "cost_micros": None}
PROGRESS = {"status": "processing", "result": None, "cost_micros": None}
AT = "2027-01-15T08:00:00Z"


def body_of(**fields: Any) -> bytes:
    """A receipt of key k1 that says succeeded, unless `fields` say otherwise; None leaves out."""
    given: dict[str, Any] = {
        "event_id": "e1",
        "reference": "k1",
        "external_id": "x1",
        "status": "succeeded",
        "occurred_at": AT,
        "result": {"scores": {"hate": 0.25}},
        "cost_micros": 55,
    }
    given |= fields
    return orjson.dumps({name: value for name, value in given.items() if value is not None})


def signed(world: World, body: bytes, *, at: int | None = None, **how: str) -> dict[str, str]:
    """The headers of a genuine receipt; `at` in seconds since the epoch, now by default."""
    seconds = world.clock.now_micros() // 1_000_000 if at is None else at
    stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    event_id = how.get("event_id", "msg_1")
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": Webhook(how.get("secret", SECRET)).sign(
            event_id, stamp, body.decode()
        ),
    }


async def told(world: World, core: ProxyCore, **fields: Any) -> bool:
    """Tell a core a genuine receipt; whether it was a new one."""
    body = body_of(**fields)
    return await core.ingest_receipt(VENDOR, signed(world, body), body)


async def accepted_call(world: World) -> ProxyCore:
    """A core whose call k1 was accepted as x1."""
    async with raw_vendor(http(202, ACCEPTED)) as vendor:
        core = await world.core(world.profile(ABLE, endpoint=vendor.endpoint, counts="jobs"))
        assert (await core.execute(CALLER, world.request())).outcome is Outcome.ACCEPTED
    return core
