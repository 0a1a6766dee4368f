"""I8: after a whole life of a content, its bytes are in the vault and nowhere else."""

from __future__ import annotations

import base64
import random
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

import pytest

from mesh.v1 import intake_pb2 as intake
from mesh.v1 import types_pb2 as types
from tests.mesh.declared import KEYED, Vendor, model
from tests.mesh.world import Opening, image, text

DRAW = random.Random(8)
CANARY_TEXT = "canary-text-" + DRAW.randbytes(12).hex() + " ü"
CANARY_BYTES = DRAW.randbytes(48)
CANARY_URI = "https://example.com/canary/" + DRAW.randbytes(12).hex() + "?sig=a%20b&x=1"
LABEL = "canary-label-" + DRAW.randbytes(8).hex()


def forms(content: bytes) -> Iterable[bytes]:
    """A content as it is, and as it could be written down elsewhere."""
    yield content
    yield content.hex().encode()
    yield base64.b64encode(content).rstrip(b"=")[:-1]
    yield base64.urlsafe_b64encode(content).rstrip(b"=")[:-1]
    yield urllib.parse.quote(content).encode()
    yield urllib.parse.quote_plus(content).encode()
    try:
        yield content.decode().encode("unicode_escape")
    except UnicodeDecodeError:
        yield repr(content)[2:-1].encode()


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file, the write-ahead logs of the databases too."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


async def test_i8_no_byte_of_a_payload_is_in_any_database_or_log(
    mesh_of: Opening, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    receipts = {"asynchronous": True, "query_by_id": True, "receipts": True}
    faults = {
        "script": [
            {"when": {"nth": 1}, "do": "garbage"},
            {"when": {"nth": 2}, "do": "hide_response"},
            {"when": {"nth": 3}, "do": "refuse"},
        ]
    }
    vendors = {"words": Vendor(KEYED, faults), "pictures": Vendor(receipts)}
    planning = {"TEXT": [model("words")], "IMAGE": [model("pictures")]}
    contents = [CANARY_TEXT.encode(), CANARY_BYTES, CANARY_URI.encode()]
    async with mesh_of(vendors, planning) as mesh:
        for number in range(3):
            case_id = await mesh.submit(
                text(f"{CANARY_TEXT}{number}"),
                image(CANARY_BYTES + bytes([number])),
                intake.ContentPart(kind=intake.PART_KIND_IMAGE, uri=f"{CANARY_URI}{number}"),
                labels={"lane": LABEL},
            )
            case = await mesh.verdict(case_id)
            assert case.state != types.CASE_STATE_PENDING
        files = contents_of(tmp_path)
        assert {"mesh.db", "proxy.db", "vault.db"} <= set(files)
        for name, stored in files.items():
            for content in contents:
                for form in forms(content):
                    assert form not in stored, f"payload in {name}"
        logged = "".join(capfd.readouterr()).encode()
        for content in (*contents, LABEL.encode()):
            assert not any(form in logged for form in forms(content)), "payload in a log line"
        assert LABEL.encode() in files["mesh.db"] + files.get("mesh.db-wal", b"")
        where = mesh.rows("mesh", "select sql from sqlite_master where sql like '%labels%'")
        assert len(where) == 1, "labels are stored with the case alone"
        kept = mesh.rows("mesh", "select body from outbox")
        assert not any(LABEL in body for (body,) in kept)
