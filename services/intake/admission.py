"""Whether a content can be accepted at all: every bad field is named with its path.

Receives a content as a caller sent it. Hands on the violations, none of which repeats what
the field held. Pure: nothing is stored, no clock is read. Source: CONTRACT, bad input.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.environment import MICROS_PER_SECOND
from kernel.errors import FieldViolation
from kernel.fairness import Priority
from kernel.limits import RequestLimits


class Kind(StrEnum):
    """What a part is."""

    TEXT = "TEXT"
    IMAGE = "IMAGE"
    VIDEO = "VIDEO"


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a content, with one source at most; `kind` None is no kind we know."""

    kind: Kind | None
    text: str | None = None
    data: bytes | None = field(default=None, repr=False)
    uri: str | None = None
    frames: tuple[bytes, ...] | None = field(default=None, repr=False)
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OnUnknownWish:
    """A caller's rule for unknown outcomes; `mode` None is no mode we know."""

    mode: OnUnknownMode | None
    max_duplicates: int = 0
    max_cost_micros: int = 0

    def rule(self) -> OnUnknown:
        """As the rules see it; an unknown mode is the careful one."""
        mode = self.mode or OnUnknownMode.AT_MOST_ONCE
        return OnUnknown(mode, self.max_duplicates, self.max_cost_micros)


@dataclass(frozen=True, slots=True)
class Content:
    """A content to be judged, as a caller sent it.

    `deadline` in microseconds since the epoch, None: the planning's default. `priority` None
    is no class we know. `review_round` 0 means 1. `wire_bytes`: what it took on the wire.
    """

    tenant_id: str
    content_id: str
    content_version: int
    review_round: int = 1
    parts: tuple[Part, ...] = ()
    priority: Priority | None = Priority.NORMAL
    deadline: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    on_unknown: OnUnknownWish | None = None
    wire_bytes: int = 0


_SOURCES = ("text", "data", "uri", "frames")
_TAKES = {
    Kind.TEXT: ("text",),
    Kind.IMAGE: ("data", "uri"),
    Kind.VIDEO: ("frames", "uri"),
}
_REMOTE = frozenset({"http", "https", "s3", "gs"})


def violations(content: Content, limits: RequestLimits) -> list[FieldViolation]:
    """Every field that is missing, malformed or too large, whatever the time is."""
    return [FieldViolation(path, description) for path, description in _all(content, limits)]


def deadline_violations(content: Content, limits: RequestLimits, now: int) -> list[FieldViolation]:
    """A deadline that is not ahead of `now` (microseconds), or too far ahead."""
    if content.deadline is None:
        return []
    if now < content.deadline <= now + int(limits.deadline_seconds * MICROS_PER_SECOND):
        return []
    return [
        FieldViolation(
            "deadline", f"must be ahead of now, by at most {limits.deadline_seconds:.0f} seconds"
        )
    ]


_Found = Iterator[tuple[str, str]]


def _all(content: Content, limits: RequestLimits) -> _Found:
    yield from _key("tenant_id", content.tenant_id, limits)
    yield from _key("content_id", content.content_id, limits)
    if content.content_version < 1:
        yield "content_version", "must be 1 or more"
    if content.review_round < 0:
        yield "review_round", "must be 1 or more (0 means 1)"
    if content.priority is None:
        yield "priority", "must be CRITICAL, NORMAL or BULK (absent means NORMAL)"
    yield from _labels(content.labels, limits)
    if content.on_unknown is not None:
        yield from _on_unknown(content.on_unknown, limits)
    yield from _parts(content, limits)


def _parts(content: Content, limits: RequestLimits) -> _Found:
    if not 1 <= len(content.parts) <= limits.parts:
        yield "parts", f"must be 1 to {limits.parts} parts"
        return
    size = max(content.wire_bytes, sum(_bytes_of(part) for part in content.parts))
    if size > limits.message_bytes:
        yield "parts", f"the whole content must take at most {limits.message_bytes} bytes"
    frames = sum(len(part.frames or ()) for part in content.parts)
    if frames > limits.frames:
        yield "parts", f"all videos together must have at most {limits.frames} frames"
        return
    for at, part in enumerate(content.parts):
        for name, description in _part(part, limits):
            yield f"parts[{at}].{name}", description


def _part(part: Part, limits: RequestLimits) -> _Found:
    if part.kind is None:
        yield "kind", "must be TEXT, IMAGE or VIDEO"
        return
    takes = _TAKES[part.kind]
    given = [name for name in _SOURCES if getattr(part, name) is not None]
    for name in given:
        if name not in takes:
            yield name, f"does not belong to {part.kind}, which takes {' or '.join(takes)}"
    if not any(name in takes for name in given):
        yield takes[0], f"{part.kind} needs {' or '.join(takes)}"
    if part.text is not None and "text" in takes:
        yield from _sized("text", len(part.text.encode()), limits.text_bytes)
    if part.data is not None and "data" in takes:
        yield from _sized("data", len(part.data), limits.image_bytes)
    if part.frames is not None and "frames" in takes:
        if not part.frames:
            yield "frames", "must hold at least one image"
        for at, frame in enumerate(part.frames):
            yield from _sized(f"frames.images[{at}]", len(frame), limits.image_bytes)
    if part.uri is not None and "uri" in takes:
        yield from _uri(part.uri, limits)
    yield from _duration(part, limits)


def _duration(part: Part, limits: RequestLimits) -> _Found:
    seconds = part.duration_seconds
    if part.kind is Kind.VIDEO and part.uri is not None:
        if not (math.isfinite(seconds) and 0 < seconds <= limits.video_seconds):
            yield (
                "duration_seconds",
                f"a video by uri needs more than 0 and at most {limits.video_seconds:.0f} seconds",
            )
    elif seconds != 0:
        yield "duration_seconds", "belongs to a video by uri only"


def _uri(uri: str, limits: RequestLimits) -> _Found:
    size = len(uri.encode())
    if not 1 <= size <= limits.uri_bytes:
        yield "uri", f"must be 1 to {limits.uri_bytes} bytes"
    elif not _is_absolute(uri):
        yield "uri", "must be an absolute http, https, s3, gs or file URI"


def _is_absolute(uri: str) -> bool:
    # urlsplit drops some of these silently, so that two different URIs would be one.
    if any(char.isspace() or unicodedata.category(char) == "Cc" for char in uri):
        return False
    try:
        split = urlsplit(uri)
        _ = split.port  # parsed only when asked for
    except ValueError:
        return False
    if split.scheme in _REMOTE:
        return bool(split.hostname)
    return split.scheme == "file" and split.path.startswith("/") and len(split.path) > 1


def _key(path: str, key: str, limits: RequestLimits) -> _Found:
    if not 1 <= len(key.encode()) <= limits.key_bytes:
        yield path, f"must be 1 to {limits.key_bytes} bytes"
    elif _has_control(key):
        yield path, "must hold no control characters"


def _has_control(text: str) -> bool:
    return any(unicodedata.category(char) == "Cc" for char in text)


def _labels(labels: Mapping[str, str], limits: RequestLimits) -> _Found:
    if len(labels) > limits.labels:
        yield "labels", f"must be at most {limits.labels}"
        return
    # A label is content too: it is named by its place in the order of keys, not by its text.
    for at, name in enumerate(sorted(labels)):
        if not 1 <= len(name.encode()) <= limits.label_bytes:
            yield f"labels[{at}].key", f"must be 1 to {limits.label_bytes} bytes"
        if len(labels[name].encode()) > limits.label_bytes:
            yield f"labels[{at}].value", f"must be at most {limits.label_bytes} bytes"
        for place, text in (("key", name), ("value", labels[name])):
            if _has_control(text):
                yield f"labels[{at}].{place}", "must hold no control characters"


def _on_unknown(wish: OnUnknownWish, limits: RequestLimits) -> _Found:
    if wish.mode is None:
        yield "on_unknown.mode", "must be AT_MOST_ONCE or AT_LEAST_ONCE"
    never = wish.mode is OnUnknownMode.AT_MOST_ONCE
    most = 0 if never else limits.duplicates
    if not 0 <= wish.max_duplicates <= most:
        yield "on_unknown.max_duplicates", f"must be {'0' if never else f'0 to {most}'}"
    if wish.max_cost_micros < 0 or (never and wish.max_cost_micros):
        yield "on_unknown.max_cost_micros", f"must be {'0' if never else '0 or more'}"


def _sized(path: str, size: int, most: int) -> _Found:
    if not 1 <= size <= most:
        yield path, f"must be 1 to {most} bytes"


def _bytes_of(part: Part) -> int:
    texts = len((part.text or "").encode()) + len((part.uri or "").encode())
    return texts + len(part.data or b"") + sum(len(frame) for frame in part.frames or ())
