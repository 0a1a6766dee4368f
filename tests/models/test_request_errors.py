"""What is refused, how it is said, and that nothing sent is ever said back."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import struct
import zlib
from typing import Any

import aiohttp
import pytest

from kernel.environment import Environment
from vendors.models import RunningModels, serve
from vendors.models.server import MAX_BODY_BYTES, MAX_WAITING

for module in ("profanity_check", "nudenet", "skimage"):
    pytest.importorskip(module, reason="the extra `models` is not installed")
pil = pytest.importorskip("PIL.Image", reason="the extra `models` is not installed")

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "hush-4711"
URL = "input[0].image_url.url"


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image_input(url: object) -> dict[str, Any]:
    return {"input": [{"type": "image_url", "image_url": {"url": url}}]}


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1_000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def moving_gif() -> bytes:
    frames = [pil.new("L", (8, 8), shade) for shade in (0, 255)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


TABLE: list[tuple[str, object, int, str | None, str | None]] = [
    ("no JSON", f"{{{SECRET}".encode(), 400, None, None),
    ("no object", [SECRET], 400, None, None),
    ("lone surrogate", b'{"input": "\\ud800"}', 400, None, None),
    ("unknown model", {"model": SECRET, "input": "a"}, 404, "model", "model_not_found"),
    ("model no string", {"model": [SECRET], "input": "a"}, 404, "model", "model_not_found"),
    ("no input", {"model": "sluice-text"}, 400, "input", "invalid_input"),
    ("empty list", {"input": []}, 400, "input", "invalid_input"),
    ("empty text", {"input": ["a", ""]}, 400, "input[1]", "invalid_input"),
    ("number", {"input": [4711]}, 400, "input[0]", "invalid_input"),
    (
        "text beside parts",
        {"input": [{"type": "text", "text": "a"}, SECRET]},
        400,
        "input[1]",
        "invalid_input",
    ),
    (
        "unknown part",
        {"input": [{"type": SECRET}]},
        400,
        "input[0]",
        "invalid_input",
    ),
    ("no url", image_input(None), 400, URL, "invalid_input"),
    ("too many texts", {"input": ["a"] * 2_049}, 400, "input", "invalid_input"),
    ("too many images", {"input": image_input("x")["input"] * 33}, 400, "input", "invalid_input"),
    ("http URL", image_input(f"http://127.0.0.1/{SECRET}"), 400, URL, "invalid_image_url"),
    ("file URL", image_input(f"file:///{SECRET}"), 400, URL, "invalid_image_url"),
    ("svg", image_input(f"data:image/svg+xml;base64,{SECRET}"), 400, URL, "invalid_image_url"),
    ("no base64", image_input(f"data:image/png;base64,{SECRET}"), 400, URL, "invalid_image"),
    ("no image", image_input(data_url(SECRET.encode())), 400, URL, "invalid_image"),
    ("cut image", image_input(data_url(png_that_claims(64, 64)[:60])), 400, URL, "invalid_image"),
    ("moving image", image_input(data_url(moving_gif(), "gif")), 400, URL, "invalid_image"),
    ("bomb", image_input(data_url(png_that_claims(8_000, 6_000))), 400, URL, "image_too_large"),
    (
        "larger bomb",
        image_input(data_url(png_that_claims(12_000, 9_000))),
        400,
        URL,
        "image_too_large",
    ),
    (
        "largest bomb",
        image_input(data_url(png_that_claims(60_000, 60_000))),
        400,
        URL,
        "image_too_large",
    ),
    (
        "image for the text model",
        {"model": "sluice-text", **image_input(data_url(b""))},
        400,
        URL,
        "unsupported_input",
    ),
    (
        "text for the image model",
        {"model": "sluice-image", "input": SECRET},
        400,
        "input",
        "unsupported_input",
    ),
]


@pytest.mark.parametrize(("name", "body", "status", "param", "code"), TABLE, ids=lambda v: str(v))
async def test_bad_input_is_refused_in_the_known_shape_without_an_echo(
    client: aiohttp.ClientSession,
    name: str,
    body: object,
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post("/v1/moderations", data=data) as response:
        text = await response.text()
        assert response.status == status, (name, text)
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert SECRET not in text
    assert "4711" not in text


async def test_a_body_over_the_limit_is_413_declared_or_streamed(
    client: aiohttp.ClientSession,
) -> None:
    async with client.post(
        "/v1/moderations", data=io.BytesIO(bytes(MAX_BODY_BYTES + 1))
    ) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"

    async def pieces() -> Any:
        for _ in range(21):
            yield bytes(1024 * 1024)

    async with client.post("/v1/moderations", data=pieces()) as response:
        assert response.status == 413


async def test_a_compressed_body_is_bounded_by_what_it_unpacks_to(
    client: aiohttp.ClientSession,
) -> None:
    headers = {"Content-Encoding": "gzip"}
    for data, status in (
        (gzip.compress(b'{"input": "hello"}'), 200),
        (gzip.compress(bytes(MAX_BODY_BYTES + 1)), 413),
        (b"no gzip at all", 400),
    ):
        async with client.post("/v1/moderations", data=data, headers=headers) as response:
            assert response.status == status, await response.text()


async def test_other_paths_and_methods_say_what_there_is(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/chat") as response:
        assert response.status == 404
        assert "/v1/moderations" in (await response.json())["error"]["message"]
    async with client.get("/v1/moderations") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"


async def test_health_and_models_answer(client: aiohttp.ClientSession) -> None:
    async with client.get("/health") as response:
        assert (await response.json())["status"] == "ok"
    async with client.get("/v1/models") as response:
        names = [model["id"] for model in (await response.json())["data"]]
    assert names == ["sluice-text", "sluice-image", "omni-moderation-latest"]


async def waiting(session: aiohttp.ClientSession) -> int:
    async with session.get("/health") as response:
        number: int = (await response.json())["waiting"]
        return number


async def test_more_than_can_wait_is_throttled_and_the_rest_is_answered(
    running: RunningModels,
) -> None:
    release = asyncio.Event()

    async def slow_body() -> Any:
        yield b'{"input": '
        await release.wait()
        yield b'"hello"}'

    base = f"http://127.0.0.1:{running.port}"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base, connector=connector) as session:

        async def call() -> int:
            async with session.post("/v1/moderations", data=slow_body()) as response:
                return response.status

        calls = [asyncio.create_task(call()) for _ in range(MAX_WAITING)]
        while await waiting(session) < MAX_WAITING:
            pass
        async with session.post("/v1/moderations", json={"input": "hello"}) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}


async def test_a_taken_port_is_an_error_and_stop_may_be_repeated(running: RunningModels) -> None:
    with pytest.raises(OSError, match="address already in use"):
        await serve(running.port, Environment())
    second = await serve(0, Environment())
    await second.stop()
    await second.stop()
