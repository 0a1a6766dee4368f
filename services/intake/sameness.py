"""What makes two submits the same: the logical key, and one digest a field.

Receives a valid content. Hands on the key under which it is accepted once, and the
fingerprint by which a difference is named without its content. Pure. Source: DESIGN
section 3 (I1); keys are byte for byte, labels have no order.
"""

from __future__ import annotations

from kernel.idempotency import Hasher, canonical
from services.intake.admission import Content, Part

KIND = "CONTENT"


def logical_key(content: Content) -> str:
    """The caller's key within the tenant, as canonical JSON: id, version and round."""
    return canonical(
        [content.content_id, content.content_version, content.review_round or 1]
    ).decode()


def fingerprint(content: Content, hasher: Hasher) -> dict[str, str]:
    """One keyed digest a field; a deadline that the caller left to us is no field."""
    wish = content.on_unknown
    fields: dict[str, object] = {
        "parts": [_part(part, hasher) for part in content.parts],
        "priority": content.priority,
        "labels": dict(content.labels),
        "on_unknown": wish and [wish.mode, wish.max_duplicates, wish.max_cost_micros],
    }
    if content.deadline is not None:
        fields["deadline"] = content.deadline
    return hasher.fingerprint(fields)


def _part(part: Part, hasher: Hasher) -> list[object]:
    data = part.data if part.data is None else hasher.digest("part", part.data)
    frames = part.frames and [hasher.digest("part", frame) for frame in part.frames]
    return [part.kind, part.text, data, part.uri, frames, part.duration_seconds]
