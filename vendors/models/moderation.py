"""Receives the bytes of a moderation request; hands on the results, or a refusal.

The request and the answer have the shape of OpenAI's `/v1/moderations`. Blocks; runs in a
thread. A list of texts gives one result each; a list of parts is one content, one result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from vendors.models.detectors import Detectors, Scores
from vendors.models.errors import RequestRefusedError
from vendors.models.images import bytes_of_data_url, decode_image

TEXT_MODEL = "sluice-text"
IMAGE_MODEL = "sluice-image"
BOTH_MODELS = "omni-moderation-latest"

JUDGES: dict[str, frozenset[str]] = {
    TEXT_MODEL: frozenset({"text"}),
    IMAGE_MODEL: frozenset({"image"}),
    BOTH_MODELS: frozenset({"text", "image"}),
}
"""What kinds of input each model judges."""

FLAG_AT = 0.50
"""The score, 0..1, from which on a category is true and the result is flagged."""

MAX_TEXTS = 2_048
"""Texts in one request."""

MAX_IMAGES = 32
"""Images in one request: about two seconds of one thread."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One text or one image URL of a request, with the path of its field."""

    kind: str
    value: str
    param: str


def moderate(body: bytes, detectors: Detectors) -> dict[str, Any]:
    """Judge one request: `{"model", "results"}`, to which the server adds an id.

    Raises:
        RequestRefusedError: 400 for what cannot be judged, 404 for a model we do not have.
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefusedError(400, "The body is not JSON: send a JSON object.") from error
    if not isinstance(request, dict):
        raise RequestRefusedError(400, "The body must be a JSON object with `model` and `input`.")
    model = request.get("model", BOTH_MODELS)
    if not isinstance(model, str) or model not in JUDGES:
        raise RequestRefusedError(
            404,
            f"There is no such model here: use one of {', '.join(JUDGES)}.",
            "model",
            "model_not_found",
        )
    contents = _contents(request.get("input"))
    for piece in (piece for content in contents for piece in content):
        if piece.kind not in JUDGES[model]:
            raise RequestRefusedError(
                400,
                f"{model} does not judge {piece.kind}: use {BOTH_MODELS} for texts and images.",
                piece.param,
                "unsupported_input",
            )
    return {"model": model, "results": _judge(contents, detectors)}


def _contents(given: Any) -> list[list[Piece]]:
    """The contents of `input`, each a list of pieces; every content gets one result."""
    if isinstance(given, str):
        return [[_piece("text", given, "input")]]
    if not isinstance(given, list) or not given:
        raise _invalid("`input` must be a text, a list of texts, or a list of parts.", "input")
    if len(given) > MAX_TEXTS:
        raise _invalid(f"`input` has more than {MAX_TEXTS} items: split the request.", "input")
    if all(isinstance(each, str) for each in given):
        return [[_piece("text", each, f"input[{n}]")] for n, each in enumerate(given)]
    pieces = [_part(each, f"input[{n}]") for n, each in enumerate(given)]
    if sum(piece.kind == "image" for piece in pieces) > MAX_IMAGES:
        raise _invalid(f"`input` has more than {MAX_IMAGES} images: split the request.", "input")
    return [pieces]


def _part(part: Any, param: str) -> Piece:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return _piece("text", part.get("text"), f"{param}.text")
    if kind == "image_url":
        holder = part.get("image_url")
        url = holder.get("url") if isinstance(holder, dict) else None
        return _piece("image", url, f"{param}.image_url.url")
    raise _invalid(
        'Each part must be {"type": "text", "text"} or {"type": "image_url", "image_url": '
        '{"url"}}; texts alone may be plain strings, but not beside parts.',
        param,
    )


def _piece(kind: str, value: Any, param: str) -> Piece:
    if not isinstance(value, str) or not value:
        raise _invalid("A text that is not empty belongs here.", param)
    return Piece(kind, value, param)


def _judge(contents: list[list[Piece]], detectors: Detectors) -> list[dict[str, Any]]:
    """One result per content. Images are decoded one at a time, so only one is in memory."""
    texts = [p.value for content in contents for p in content if p.kind == "text"]
    judged_texts = iter(detectors.score_texts(texts) if texts else [])
    results = []
    for content in contents:
        judged: list[tuple[str, Scores]] = []
        for piece in content:
            if piece.kind == "text":
                judged.append(("text", next(judged_texts)))
            else:
                data = bytes_of_data_url(piece.value, piece.param)
                judged.append(("image", detectors.score_image(decode_image(data, piece.param))))
        results.append(_result(judged))
    return results


def _result(judged: list[tuple[str, Scores]]) -> dict[str, Any]:
    """Each category takes the best score of the pieces to which it was applied."""
    scores: Scores = {}
    applied: dict[str, list[str]] = {}
    for kind, found in judged:
        for category, score in found.items():
            scores[category] = max(score, scores.get(category, 0.0))
            if kind not in applied.setdefault(category, []):
                applied[category].append(kind)
    categories = {category: score >= FLAG_AT for category, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": applied,
    }


def _invalid(message: str, param: str) -> RequestRefusedError:
    return RequestRefusedError(400, message, param, "invalid_input")
