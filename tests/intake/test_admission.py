"""Every bad field of a content is named, and nothing else is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kernel.attempt import OnUnknownMode
from kernel.environment import MICROS_PER_SECOND
from kernel.limits import RequestLimits
from services.intake.admission import (
    Content,
    Kind,
    OnUnknownWish,
    Part,
    deadline_violations,
    violations,
)
from tests.intake.world import text_content

SMALL = RequestLimits(
    message_bytes=400,
    text_bytes=10,
    image_bytes=10,
    frames=3,
    parts=3,
    key_bytes=8,
    uri_bytes=40,
    labels=2,
    label_bytes=4,
)


def named(content: Content, limits: RequestLimits = SMALL) -> list[str]:
    return [each.field for each in violations(content, limits)]


def good(**more: Any) -> Content:
    return replace(text_content("c", "hello"), **more)


def one(part: Part) -> Content:
    return good(parts=(part,))


@pytest.mark.parametrize(
    "content",
    [
        good(),
        good(tenant_id="t" * 8, content_id=" k1 "),
        good(content_id="é" * 4),
        good(review_round=0),
        good(review_round=7, content_version=2**63 - 1),
        good(labels={"a": "", "bbbb": "vvvv"}),
        good(on_unknown=OnUnknownWish(OnUnknownMode.AT_MOST_ONCE)),
        good(on_unknown=OnUnknownWish(OnUnknownMode.AT_LEAST_ONCE, 100, 5)),
        one(Part(Kind.TEXT, text="0123456789")),
        one(Part(Kind.IMAGE, data=b"\x00anything")),
        one(Part(Kind.IMAGE, uri="https://example.org/a.png?x=1#y")),
        one(Part(Kind.IMAGE, uri="s3://bucket/key")),
        one(Part(Kind.IMAGE, uri="gs://bucket/key")),
        one(Part(Kind.IMAGE, uri="file:///tmp/a.png")),
        one(Part(Kind.VIDEO, frames=(b"1", b"2", b"2"))),
        one(Part(Kind.VIDEO, uri="http://example.org/v", duration_seconds=0.1)),
        good(parts=(Part(Kind.TEXT, text="a"),) * 3),
    ],
)
def test_a_content_within_all_limits_has_no_violation(content: Content) -> None:
    assert named(content) == []


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (good(tenant_id=""), ["tenant_id"]),
        (good(tenant_id="t" * 9), ["tenant_id"]),
        (good(content_id=""), ["content_id"]),
        (good(content_id="é" * 5), ["content_id"]),
        (good(content_id="a\nb"), ["content_id"]),
        (good(content_id="a\x85b"), ["content_id"]),
        (good(content_version=0), ["content_version"]),
        (good(content_version=-1), ["content_version"]),
        (good(review_round=-1), ["review_round"]),
        (good(priority=None), ["priority"]),
        (good(parts=()), ["parts"]),
        (good(parts=(Part(Kind.TEXT, text="a"),) * 4), ["parts"]),
        (good(wire_bytes=401), ["parts"]),
        (good(labels={"a": "", "b": "", "c": ""}), ["labels"]),
        (good(labels={"": "x", "b": "vvvvv"}), ["labels[0].key", "labels[1].value"]),
        (good(labels={"éé!": "x"}), ["labels[0].key"]),
        (good(on_unknown=OnUnknownWish(None)), ["on_unknown.mode"]),
        (
            good(on_unknown=OnUnknownWish(OnUnknownMode.AT_LEAST_ONCE, 101, -1)),
            ["on_unknown.max_duplicates", "on_unknown.max_cost_micros"],
        ),
        (
            good(on_unknown=OnUnknownWish(OnUnknownMode.AT_LEAST_ONCE, -1)),
            ["on_unknown.max_duplicates"],
        ),
        (
            good(on_unknown=OnUnknownWish(OnUnknownMode.AT_MOST_ONCE, 1, 1)),
            ["on_unknown.max_duplicates", "on_unknown.max_cost_micros"],
        ),
        (one(Part(None, text="a")), ["parts[0].kind"]),
        (one(Part(Kind.TEXT)), ["parts[0].text"]),
        (one(Part(Kind.TEXT, text="")), ["parts[0].text"]),
        (one(Part(Kind.TEXT, text="a" * 11)), ["parts[0].text"]),
        (one(Part(Kind.TEXT, text="é" * 6)), ["parts[0].text"]),
        (one(Part(Kind.TEXT, data=b"a")), ["parts[0].data", "parts[0].text"]),
        (one(Part(Kind.TEXT, text="a", duration_seconds=1)), ["parts[0].duration_seconds"]),
        (one(Part(Kind.IMAGE)), ["parts[0].data"]),
        (one(Part(Kind.IMAGE, data=b"")), ["parts[0].data"]),
        (one(Part(Kind.IMAGE, data=b"a" * 11)), ["parts[0].data"]),
        (one(Part(Kind.IMAGE, text="a")), ["parts[0].text", "parts[0].data"]),
        (one(Part(Kind.IMAGE, frames=(b"a",))), ["parts[0].frames", "parts[0].data"]),
        (one(Part(Kind.VIDEO)), ["parts[0].frames"]),
        (one(Part(Kind.VIDEO, frames=())), ["parts[0].frames"]),
        (
            one(Part(Kind.VIDEO, frames=(b"a", b"", b"b" * 11))),
            ["parts[0].frames.images[1]", "parts[0].frames.images[2]"],
        ),
        (one(Part(Kind.VIDEO, frames=(b"a",) * 4)), ["parts"]),
        (one(Part(Kind.VIDEO, frames=(b"a",), duration_seconds=1)), ["parts[0].duration_seconds"]),
        (one(Part(Kind.VIDEO, data=b"a")), ["parts[0].data", "parts[0].frames"]),
        *(
            (
                one(Part(Kind.VIDEO, uri="http://a/v", duration_seconds=seconds)),
                ["parts[0].duration_seconds"],
            )
            for seconds in (0.0, -1.0, math.inf, math.nan, 86_401.0)
        ),
    ],
)
def test_each_bad_field_is_named(content: Content, fields: list[str]) -> None:
    assert named(content) == fields


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a.png",
        "/a.png",
        "//host/a",
        "http:///a",
        "http://",
        "https:a",
        "ftp://host/a",
        "data:,a",
        "file://",
        "file:a",
        "file:///",
        "s3:///key",
        "http://[::1/a",
        "http://host:x/a",
        "http://ho st/a",
        "http://host/a\n",
        "http://host/a\x00b",
        "http://host/" + "a" * 29,
    ],
)
def test_only_an_absolute_uri_that_can_be_fetched_is_taken(uri: str) -> None:
    assert named(one(Part(Kind.IMAGE, uri=uri))) == ["parts[0].uri"]


def test_every_bad_field_of_one_content_is_named_at_once() -> None:
    content = Content(
        tenant_id="",
        content_id="\x00",
        content_version=0,
        review_round=-3,
        priority=None,
        labels={"": ""},
        on_unknown=OnUnknownWish(None),
        parts=(
            Part(Kind.TEXT, text="ok"),
            Part(None),
            Part(Kind.VIDEO, uri="x", duration_seconds=-1),
        ),
    )
    assert named(content) == [
        "tenant_id",
        "content_id",
        "content_version",
        "review_round",
        "priority",
        "labels[0].key",
        "on_unknown.mode",
        "parts[1].kind",
        "parts[2].uri",
        "parts[2].duration_seconds",
    ]


def test_i8_no_violation_repeats_what_a_field_held() -> None:
    content = Content(
        tenant_id="SECRET" * 30,
        content_id="SECRET\n",
        content_version=1,
        labels={"SECRET-key": "SECRET-value"},
        parts=(
            Part(Kind.TEXT, text="SECRET" * 9),
            Part(Kind.IMAGE, uri="SECRET"),
            Part(Kind.TEXT, uri="SECRET"),
        ),
    )
    found = violations(content, SMALL)
    assert len(found) == 8
    assert "SECRET" not in repr(found)


def test_a_deadline_is_ahead_of_now_and_within_bounds() -> None:
    now = 1_000 * MICROS_PER_SECOND
    limits = RequestLimits(deadline_seconds=60)

    def verdict(deadline: int | None) -> list[str]:
        content = text_content(deadline=deadline)
        return [each.field for each in deadline_violations(content, limits, now)]

    assert verdict(None) == []
    assert verdict(now + 1) == []
    assert verdict(now + 60 * MICROS_PER_SECOND) == []
    assert verdict(now) == ["deadline"]
    assert verdict(0) == ["deadline"]
    assert verdict(now + 60 * MICROS_PER_SECOND + 1) == ["deadline"]
