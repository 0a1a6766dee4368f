"""Receives texts and images for an OpenAI-compatible vendor; shows what is asked and read."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from kernel.attempt import Outcome, QueryAnswer
from kernel.idempotency import Capabilities
from tests.vendor_proxy.scripted_vendor import Play, http, raw_vendor
from tests.vendor_proxy.world import CALLER, VENDOR, World

SCORES = {"hate": 0.01, "violence": 0.9}
DONE = orjson.dumps(
    {
        "id": "modr-1",
        "model": "m",
        "results": [{"flagged": True, "categories": {}, "category_scores": SCORES}],
    }
)
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 16


async def asked(world: World, play: Play, **fields: Any) -> bytes:
    async with raw_vendor(play) as vendor:
        profile = world.profile(
            Capabilities(), adapter="openai-moderations", endpoint=vendor.endpoint
        )
        core = await world.core(profile)
        await core.execute(CALLER, world.request(**fields))
        return vendor.requests[0]


async def test_a_text_is_asked_about_and_its_category_scores_are_the_result(world: World) -> None:
    async with raw_vendor(http(200, DONE)) as vendor:
        profile = world.profile(
            Capabilities(), adapter="openai-moderations", endpoint=vendor.endpoint
        )
        core = await world.core(profile)
        outcome = await core.execute(CALLER, world.request())
        assert outcome.outcome is Outcome.COMPLETED
        assert (outcome.scores, outcome.external_id, outcome.cost_micros) == (SCORES, "modr-1", 100)
        head, _, body = vendor.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/moderations HTTP/1.1")
        assert orjson.loads(body) == {"model": "m", "input": "hello"}


@pytest.mark.parametrize(
    ("kind", "payload", "url"),
    [
        ("IMAGE", PNG, f"data:image/png;base64,{base64.b64encode(PNG).decode()}"),
        ("IMAGE_URI", b"https://example.org/a.jpg", "https://example.org/a.jpg"),
    ],
)
async def test_an_image_travels_as_a_url(world: World, kind: str, payload: bytes, url: str) -> None:
    request = await asked(world, http(200, DONE), kind=kind, payload=payload)
    body = orjson.loads(request.partition(b"\r\n\r\n")[2])
    assert body["input"] == [{"type": "image_url", "image_url": {"url": url}}]


async def test_a_video_is_refused_before_anything_is_sent(world: World) -> None:
    async with raw_vendor() as vendor:
        profile = world.profile(
            Capabilities(), adapter="openai-moderations", endpoint=vendor.endpoint
        )
        core = await world.core(profile)
        outcome = await core.execute(CALLER, world.request(kind="VIDEO"))
        assert (outcome.outcome, outcome.reason) == (Outcome.REJECTED, "KIND_UNSUPPORTED")
        assert not vendor.requests


@pytest.mark.parametrize(
    ("play", "outcome", "reason"),
    [
        (
            http(400, '{"error":{"type":"invalid_request_error","code":null}}'),
            Outcome.REJECTED,
            "INVALID_REQUEST_ERROR",
        ),
        (http(429, Retry_After="1"), Outcome.THROTTLED, "HTTP_429"),
        (http(500), Outcome.UNKNOWN, "HTTP_500"),
        (http(200, '{"results":[]}'), Outcome.UNKNOWN, "REPLY_UNREADABLE"),
    ],
)
async def test_other_answers_follow_the_table(
    world: World, play: Play, outcome: Outcome, reason: str
) -> None:
    async with raw_vendor(play) as vendor:
        profile = world.profile(
            Capabilities(), adapter="openai-moderations", endpoint=vendor.endpoint
        )
        core = await world.core(profile)
        found = await core.execute(CALLER, world.request())
        assert (found.outcome, found.reason) == (outcome, reason)


async def test_such_a_vendor_cannot_tell_what_became_of_a_call(world: World) -> None:
    async with raw_vendor(http(500)) as vendor:
        profile = world.profile(
            Capabilities(), adapter="openai-moderations", endpoint=vendor.endpoint
        )
        core = await world.core(profile)
        await core.execute(CALLER, world.request())
        answer = await core.query_status(CALLER, "k1", VENDOR)
        assert answer.answer is QueryAnswer.CANNOT_TELL
