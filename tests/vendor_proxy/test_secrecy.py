"""Receives canaries in every place that a payload can be; shows that none is kept or told."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path

import pytest

from kernel.attempt import Outcome
from kernel.errors import Problem
from kernel.idempotency import Capabilities
from tests.vendor_proxy.letters import body_of, signed
from tests.vendor_proxy.scripted_vendor import close, http, raw_vendor
from tests.vendor_proxy.world import CALLER, VENDOR, World

CANARY = "CANARY-4242-hello@example.org"
TOKEN = "TOKEN-CANARY-77"


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("proxy.db*")))


async def test_i8_no_payload_byte_and_no_credential_is_kept_or_told(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.secrets["env:TOKEN"] = TOKEN
    world.vault.payloads["r1"] = CANARY.encode()
    echo = f'{{"error":{{"code":"{CANARY} is bad","message":"{CANARY}"}}}}'
    done = (
        '{"external_id":"x1","state":"SUCCEEDED","result":{"scores":{"hate":0.5}},'
        f'"echo":"{CANARY}"}}'
    )
    told = []
    async with raw_vendor(
        http(400, echo), http(500, echo), close, http(200, done), http(200, CANARY)
    ) as vendor:
        core = await world.core(
            world.profile(
                Capabilities(receipts=True),
                endpoint=vendor.endpoint,
                credential_ref="env:TOKEN",
            ),
            concurrency=9,
        )
        for key in ("a", "b", "c", "d", "e"):
            told.append(await core.execute(CALLER, world.request(key, payload=CANARY.encode())))
        assert CANARY.encode() in vendor.requests[0]
        told.append(await core.execute(CALLER, world.request("a", payload=CANARY.encode() + b"!")))
    told.append(await core.execute(CALLER, world.request("f", payload=b"", payload_ref="gone")))
    body = body_of(reference="b", note=CANARY)
    await core.ingest_receipt(VENDOR, signed(world, body), body)
    try:
        await core.execute(CALLER, world.request("g", kind=CANARY, payload=CANARY.encode()))
    except Problem as problem:
        told.append(problem.message)  # type: ignore[arg-type]
    rows = [await world.row(core, key) for key in ("a", "b", "c", "d", "e", "f")]
    await world.sink.until(lambda sink: bool(sink.told))

    out = capsys.readouterr()
    everything = "\n".join([repr(told), repr(rows), repr(world.sink.told), caplog.text])
    kept = bytes_on_disk(world.folder) + everything.encode() + (out.out + out.err).encode()
    for canary in (CANARY, TOKEN):
        assert canary.encode() not in kept
        assert base64.b64encode(canary.encode()).rstrip(b"=")[:-1] not in kept
    assert [each.outcome for each in told[:5]] == [
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
        Outcome.COMPLETED,
        Outcome.UNKNOWN,
    ]


async def test_a_raw_receipt_is_kept_sealed_and_opens_with_the_vaults_key(world: World) -> None:
    core = await world.core(world.profile(Capabilities(receipts=True)))
    body = body_of(note=CANARY)
    await core.ingest_receipt(VENDOR, signed(world, body), body)
    with world.store.engine.connect() as connection:
        sealed = connection.exec_driver_sql("select sealed_body from raw_receipts").scalar_one()
    assert CANARY.encode() not in bytes(sealed)
    assert world.vault.keys.open(bytes(sealed)) == body
    await asyncio.sleep(0)
