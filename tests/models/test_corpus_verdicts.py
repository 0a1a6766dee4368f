"""The corpus over real HTTP: each file's score and verdict, one by one and in a batch."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from vendors.models.corpus import APPROVED, BAND, IN_REVIEW, ITEMS, REJECTED, Item, verdict

for module in ("profanity_check", "nudenet", "skimage"):
    pytest.importorskip(module, reason="the extra `models` is not installed")

pytestmark = pytest.mark.asyncio(loop_scope="session")

Corpus = tuple[Path, dict[str, str]]


async def results(client: aiohttp.ClientSession, body: dict[str, Any]) -> list[dict[str, Any]]:
    data = io.BytesIO(json.dumps(body).encode())  # aiohttp warns of large bodies given as bytes
    async with client.post("/v1/moderations", data=data) as response:
        answer = await response.json()
        assert response.status == 200, answer
    assert set(answer) == {"id", "model", "results"}
    assert answer["id"].startswith("modr-")
    judged: list[dict[str, Any]] = answer["results"]
    return judged


def part_of(path: Path) -> dict[str, Any]:
    if path.suffix == ".txt":
        return {"type": "text", "text": path.read_text(encoding="utf-8")}
    kind = {".png": "png", ".jpg": "jpeg"}[path.suffix]
    encoded = base64.b64encode(path.read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{encoded}"}}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
async def test_each_file_gets_its_expected_verdict(
    client: aiohttp.ClientSession, corpus: Corpus, item: Item
) -> None:
    folder, expected = corpus
    (result,) = await results(client, {"input": [part_of(folder / item.name)]})
    scores = result["category_scores"]
    assert max(scores.values()) == pytest.approx(item.score, abs=BAND)
    assert verdict(scores) == expected[item.name]
    assert result["flagged"] == (expected[item.name] != APPROVED)
    assert result["categories"] == {name: score >= 0.5 for name, score in scores.items()}
    assert all(0.0 <= score <= 1.0 for score in scores.values())


async def test_the_corpus_has_twenty_files_and_every_verdict(corpus: Corpus) -> None:
    folder, expected = corpus
    assert len(expected) == 20
    assert {path.name for path in folder.iterdir()} == set(expected)
    assert set(expected.values()) == {APPROVED, IN_REVIEW, REJECTED}


async def test_a_batch_of_texts_scores_as_each_text_alone(client: aiohttp.ClientSession) -> None:
    texts = [item.text for item in ITEMS if item.text is not None]
    batch = await results(client, {"model": "sluice-text", "input": texts})
    alone = [(await results(client, {"model": "sluice-text", "input": t}))[0] for t in texts]
    assert batch == alone


async def test_parts_are_one_content_and_unjudged_categories_are_absent(
    client: aiohttp.ClientSession, corpus: Corpus
) -> None:
    folder, _ = corpus
    parts = [part_of(folder / name) for name in ("game.txt", "color.png", "coffee.png")]
    (both,) = await results(client, {"model": "omni-moderation-latest", "input": parts})
    assert both["category_applied_input_types"] == {
        "profanity": ["text"],
        "sexual": ["image"],
        "sexual/suggestive": ["image"],
    }
    assert both["category_scores"]["sexual"] == pytest.approx(0.835, abs=BAND)
    (image,) = await results(client, {"model": "sluice-image", "input": parts[1:]})
    assert set(image["category_scores"]) == {"sexual", "sexual/suggestive"}
    (text,) = await results(client, {"input": "hello"})
    assert set(text["category_scores"]) == {"profanity"}


async def test_calls_at_once_do_not_disturb_each_other(
    client: aiohttp.ClientSession, corpus: Corpus
) -> None:
    folder, expected = corpus
    names = [name for name in expected for _ in range(2)]
    judged = await asyncio.gather(
        *(results(client, {"input": [part_of(folder / name)]}) for name in names)
    )
    assert [verdict(result["category_scores"]) for (result,) in judged] == [
        expected[name] for name in names
    ]


async def test_the_same_key_twice_is_two_calls(client: aiohttp.ClientSession) -> None:
    ids = set()
    for _ in range(2):
        headers = {"Idempotency-Key": "k"}
        async with client.post("/v1/moderations", json={"input": "a"}, headers=headers) as got:
            ids.add((await got.json())["id"])
    assert len(ids) == 2
