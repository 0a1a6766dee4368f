"""Receives receipts that are forged, stale, bare or genuine; shows which are taken."""

from __future__ import annotations

import io

import pytest

from kernel.errors import InvalidArgument, NotFound, Unauthenticated
from kernel.idempotency import Capabilities
from services.vendor_proxy.core import ProxyCore
from services.vendor_proxy.receipts import BODY_BYTES
from tests.vendor_proxy.letters import body_of, signed
from tests.vendor_proxy.world import SECRET, VENDOR, World

TEN_THOUSAND = 10_000


async def taken(core: ProxyCore, headers: dict[str, str], body: bytes) -> bool:
    try:
        await core.ingest_receipt(VENDOR, headers, body)
    except Unauthenticated:
        return False
    return True


def rows(world: World) -> int:
    with world.store.engine.connect() as connection:
        return int(connection.exec_driver_sql("select count(*) from raw_receipts").scalar_one())


@pytest.fixture
async def core(world: World) -> ProxyCore:
    return await world.core(world.profile(Capabilities(receipts=True)))


@pytest.mark.parametrize(
    ("stamp", "accepted"), [(9_699, False), (9_700, True), (9_701, True), (10_301, False)]
)
async def test_case_5_05_a_signature_is_good_for_three_hundred_seconds_around_now(
    world: World, core: ProxyCore, stamp: int, accepted: bool
) -> None:
    world.clock._micros = TEN_THOUSAND * 1_000_000
    body = body_of()
    assert await taken(core, signed(world, body, at=stamp), body) is accepted
    assert rows(world) == int(accepted)


async def test_case_5_05_the_timestamp_is_needed_and_covered_by_the_signature(
    world: World, core: ProxyCore
) -> None:
    body = body_of()
    headers = signed(world, body)
    without = {name: value for name, value in headers.items() if name != "webhook-timestamp"}
    moved = headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}
    renamed = headers | {"webhook-id": "msg_2"}
    for forged in (without, moved, renamed, headers | {"webhook-timestamp": "soon"}):
        assert not await taken(core, forged, body)
    assert rows(world) == 0
    assert core.receipt_counts.rejected == 4


async def test_case_5_05_the_same_signed_message_again_changes_nothing(
    world: World, core: ProxyCore
) -> None:
    body = body_of()
    headers = signed(world, body)
    assert await core.ingest_receipt(VENDOR, headers, body) is True
    assert await core.ingest_receipt(VENDOR, headers, body) is False
    assert rows(world) == 1


@pytest.mark.parametrize("secret", [SECRET, "", None])
@pytest.mark.parametrize("header", ["valid", "wrong", "empty", "missing"])
async def test_case_5_06_only_a_valid_signature_with_a_secret_is_taken(
    world: World, core: ProxyCore, secret: str | None, header: str
) -> None:
    if secret is None:
        del world.secrets["env:RECEIPTS"]
    else:
        world.secrets["env:RECEIPTS"] = secret
    body = body_of()
    headers = signed(world, body)
    if header == "wrong":
        headers = signed(world, body, secret="whsec_b3RoZXItc2VjcmV0LW90aGVyLXNlY3JldA==")
    elif header == "empty":
        headers["webhook-signature"] = ""
    elif header == "missing":
        del headers["webhook-signature"]
    assert await taken(core, headers, body) is (secret == SECRET and header == "valid")
    assert rows(world) == int(secret == SECRET and header == "valid")


async def test_case_5_06_a_vendor_that_names_no_secret_has_all_its_receipts_refused(
    world: World,
) -> None:
    core = await world.core(world.profile(Capabilities(receipts=True), receipt_secret_ref=""))
    body = body_of()
    assert not await taken(core, signed(world, body), body)


async def test_case_5_07_the_signature_covers_the_raw_bytes(world: World, core: ProxyCore) -> None:
    body = b'{"a": 1.0,  "n":"\\u00e9"}'
    headers = signed(world, body)
    assert await taken(core, headers, body)
    assert not await taken(core, headers, b'{"a": 2.0,  "n":"\\u00e9"}')
    assert not await taken(core, headers, '{"a":1.0,"n":"é"}'.encode())
    assert not await taken(core, headers, b"\xff\xfe")
    assert rows(world) == 1


async def test_one_good_signature_among_several_is_enough_while_a_secret_is_rotated(
    world: World, core: ProxyCore
) -> None:
    body = body_of()
    headers = signed(world, body)
    old = signed(world, body, secret="whsec_b2xkLXNlY3JldC1vbGQtc2VjcmV0LW9sZA==")
    both = old["webhook-signature"] + " v1a,zzz " + headers["webhook-signature"]
    assert await taken(core, headers | {"webhook-signature": both}, body)


async def test_header_names_are_read_in_any_case(world: World, core: ProxyCore) -> None:
    body = body_of()
    headers = {name.title(): value for name, value in signed(world, body).items()}
    assert await taken(core, headers, body)


async def test_an_unknown_account_and_a_body_too_large_are_refused(
    world: World, core: ProxyCore
) -> None:
    with pytest.raises(NotFound):
        await core.ingest_receipt("nobody", {}, b"{}")
    with pytest.raises(InvalidArgument):
        await core.ingest_receipt(VENDOR, {}, b"x" * (BODY_BYTES + 1))


async def test_the_http_door_answers_by_what_became_of_the_receipt(world: World) -> None:
    gateway = await world.gateway(world.profile(Capabilities(receipts=True)))
    url = f"http://{gateway.receipts_address}/receipts"
    body = body_of()
    headers = signed(world, body)
    answers = [
        (f"{url}/{VENDOR}", headers, body),
        (f"{url}/{VENDOR}", headers, body),
        (f"{url}/{VENDOR}", {}, body),
        (f"{url}/nobody", headers, body),
        (f"{url}/{VENDOR}", headers, b"x" * (BODY_BYTES + 1)),
    ]
    statuses = []
    for address, given, content in answers:
        async with world.session.post(address, data=io.BytesIO(content), headers=given) as answer:
            statuses.append(answer.status)
            assert "signature" not in (await answer.text()).lower()
    assert statuses == [204, 204, 401, 404, 413]
