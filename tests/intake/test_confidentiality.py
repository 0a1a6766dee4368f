"""I8: what was submitted is in the vault, sealed, and nowhere else."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from mesh.v1 import intake_pb2
from services.intake.app import IntakeApp
from tests.intake.wire import calling, refusal, serving, text_request
from tests.intake.world import StatementFaults, World

TEXT = "CANARY-text +15555550100"
IMAGE = b"\x89PNG CANARY-image"
FRAME = b"CANARY-frame"
URI = "https://user:CANARY-uri@example.org/a.png"
LABEL_NAME = "CANARY-label-name"
LABEL_VALUE = "CANARY-label-value"

_PAYLOADS = [TEXT.encode(), IMAGE, FRAME, URI.encode()]
_LABELS = [LABEL_NAME.encode(), LABEL_VALUE.encode()]


def spellings(secret: bytes) -> list[bytes]:
    return [secret, base64.b64encode(secret).rstrip(b"="), secret.hex().encode()]


def holds(haystack: bytes, secrets: list[bytes]) -> list[bytes]:
    return [s for secret in secrets for s in spellings(secret) if s in haystack]


def request(**more: Any) -> intake_pb2.SubmitContentRequest:
    part = intake_pb2.ContentPart
    values: dict[str, Any] = {
        "parts": [
            part(kind=intake_pb2.PART_KIND_TEXT, text=TEXT),
            part(kind=intake_pb2.PART_KIND_IMAGE, data=IMAGE),
            part(
                kind=intake_pb2.PART_KIND_VIDEO,
                frames=intake_pb2.Frames(images=[FRAME, FRAME, b"other"]),
            ),
            part(kind=intake_pb2.PART_KIND_IMAGE, uri=URI),
            part(kind=intake_pb2.PART_KIND_VIDEO, uri=URI, duration_seconds=2),
        ],
        "labels": {LABEL_NAME: LABEL_VALUE},
    }
    return text_request(**{**values, **more})


def cells(file: Path) -> Iterator[tuple[str, str, bytes]]:
    """Every cell of every table as (table, column, bytes)."""
    with closing(sqlite3.connect(file)) as connection:
        tables = [
            name
            for (name,) in connection.execute("select name from sqlite_master where type='table'")
        ]
        for table in tables:
            cursor = connection.execute(f"select * from {table}")
            for row in cursor.fetchall():
                for column, value in zip(cursor.description, row, strict=True):
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    yield table, column[0], raw


def on_disk(folder: Path, name: str) -> bytes:
    """All bytes of a database: its file, its log and its index."""
    return b"".join(file.read_bytes() for file in sorted(folder.glob(f"{name}*")))


async def submit_and_cancel(world: World, app: IntakeApp) -> None:
    async with calling(app) as stub:
        case_id = (await stub.SubmitContent(request())).case_id
        await stub.CancelContent(intake_pb2.CancelContentRequest(case_id=case_id))


async def test_i8_no_payload_uri_or_label_is_in_tasks_outbox_or_any_other_table(
    world: World,
) -> None:
    async with serving(world) as app:
        # What the relay deletes is still in the log of the database, which is searched too.
        await submit_and_cancel(world, app)
    assert holds(on_disk(world.folder, "mesh.db"), _PAYLOADS) == []
    assert holds(on_disk(world.folder, "vault.db"), _PAYLOADS + _LABELS) == []
    found = {
        (table, column)
        for table, column, raw in cells(world.folder / "mesh.db")
        if holds(raw, _LABELS)
    }
    assert found == {("parents", "labels")}
    assert holds(repr(world.wakeups.told).encode(), _PAYLOADS + _LABELS) == []


async def test_i8_the_search_finds_what_is_there(world: World) -> None:
    async with serving(world) as app:
        await submit_and_cancel(world, app)
    assert holds(on_disk(world.folder, "mesh.db"), _LABELS)
    tasks = [raw for table, _, raw in cells(world.folder / "mesh.db") if table == "tasks"]
    assert holds(b" ".join(tasks), [b"READY", b"CANCELLED"])


@pytest.mark.parametrize("way", ["mismatch", "invalid", "uncovered", "away", "broken"])
async def test_i8_no_error_text_and_no_log_line_repeats_what_was_submitted(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(world) as app, calling(app) as stub:
        sent = request()
        if way == "mismatch":
            await stub.SubmitContent(request(labels={LABEL_NAME: "other"}))
        elif way == "invalid":
            sent = request(labels={LABEL_NAME * 9: LABEL_VALUE * 9}, content_version=0)
            sent.parts[3].uri = "nowhere:" + URI
            sent.parts[0].text = TEXT * 100_000
        elif way == "uncovered":
            bare = world.settings.planning.model_copy(update={"rules": ()})
            monkeypatch.setattr(app.core, "_rules", bare)
        elif way == "away":
            StatementFaults(world.store).fail_always = True
        else:

            async def broken(*_: Any) -> list[str]:
                raise ValueError(f"{TEXT} {URI} {LABEL_VALUE}")

            monkeypatch.setattr(app.core, "_seal", broken)
        with structlog.testing.capture_logs() as logs:
            refused = await refusal(stub.SubmitContent(sent))
    told = f"{refused.text} {logs}".encode()
    assert refused.code in {
        "mismatch": {grpc.StatusCode.ALREADY_EXISTS},
        "away": {grpc.StatusCode.UNAVAILABLE},
        "broken": {grpc.StatusCode.INTERNAL},
    }.get(way, {grpc.StatusCode.INVALID_ARGUMENT})
    assert b"CANARY" not in told
    assert holds(told, _PAYLOADS + _LABELS) == []
    if way == "broken":
        assert [line["event"] for line in logs] == ["call_failed"]


async def test_i8_a_whole_run_logs_nothing_that_was_submitted(world: World) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(world) as app:
            await submit_and_cancel(world, app)
    assert b"CANARY" not in repr(logs).encode()


async def test_i8_digests_are_keyed_so_that_a_short_text_cannot_be_guessed(world: World) -> None:
    async with serving(world) as app, calling(app) as stub:
        part = intake_pb2.ContentPart(kind=intake_pb2.PART_KIND_TEXT, text="123456")
        await stub.SubmitContent(text_request(parts=[part]))
    plain = hashlib.sha256(b"123456").hexdigest().encode()
    stored = on_disk(world.folder, "mesh.db")
    assert plain not in stored
    assert plain[:16] not in stored
