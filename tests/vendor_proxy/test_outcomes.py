"""Receives answers and cuts of every kind; shows the typed outcome of each (DESIGN section 7)."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from kernel.attempt import CallOutcome, Outcome
from kernel.idempotency import CallState, Capabilities
from tests.vendor_proxy.scripted_vendor import Play, close, http, raw, raw_vendor, reset, silence
from tests.vendor_proxy.world import CALLER, World

DONE = '{"external_id":"x1","state":"SUCCEEDED","result":{"scores":{"hate":0.5}}}'
NEITHER = Capabilities()


async def outcome_of(world: World, play: Play, **profile: object) -> CallOutcome:
    async with raw_vendor(play) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint, **profile))
        return await core.execute(CALLER, world.request())


async def test_a_success_is_completed_at_the_profiles_price_where_the_answer_names_none(
    world: World,
) -> None:
    outcome = await outcome_of(world, http(200, DONE))
    assert outcome.outcome is Outcome.COMPLETED
    assert outcome.scores == {"hate": 0.5}
    assert (outcome.external_id, outcome.cost_micros, outcome.sends) == ("x1", 100, 1)


async def test_the_answers_own_cost_comes_before_the_profiles_price(world: World) -> None:
    body = DONE.replace('"state"', '"cost_micros":7,"state"')
    assert (await outcome_of(world, http(200, body))).cost_micros == 7


async def test_an_accepted_job_names_its_id_and_when_its_receipt_is_due(world: World) -> None:
    outcome = await outcome_of(
        world, http(202, '{"external_id":"x2","state":"ACCEPTED"}'), receipt_due_seconds=9.0
    )
    assert outcome.outcome is Outcome.ACCEPTED
    assert (outcome.external_id, outcome.receipt_due_seconds) == ("x2", 9.0)
    assert outcome.cost_micros == 0


async def test_a_name_that_does_not_resolve_is_not_sent(world: World) -> None:
    core = await world.core(world.profile(NEITHER, endpoint="http://no-such-host.invalid"))
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "NAME_NOT_RESOLVED")
    assert outcome.sends == 0


async def test_a_refused_connection_is_not_sent(world: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        core = await world.core(world.profile(NEITHER, endpoint=endpoint))
        outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "CONNECT_REFUSED")
    assert (await world.row(core)).ledger.sends == 0


async def test_refused_tls_is_not_sent(world: World) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        core = await world.core(world.profile(NEITHER, endpoint=f"https://127.0.0.1:{port}"))
        outcome = await core.execute(CALLER, world.request())
        assert outcome.outcome is Outcome.NOT_SENT
        assert outcome.sends == 0


async def test_a_connection_that_never_comes_up_is_not_sent_at_the_time_out(world: World) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(address)
        try:
            core = await world.core(
                world.profile(NEITHER, endpoint=f"http://127.0.0.1:{address[1]}")
            )
            call = asyncio.create_task(core.execute(CALLER, world.request()))
            # The renewal, the receipts' idle wait, and this call's own time-out.
            await world.clock.sleeping(3)
            world.clock.advance(2.0)
            outcome = await call
        finally:
            for each in fillers:
                each.close()
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "CONNECT_TIMEOUT")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_a_4xx_with_a_vendors_code_is_rejected_for_good(world: World, status: int) -> None:
    outcome = await outcome_of(world, http(status, '{"error":{"code":"bad_input"}}'))
    assert (outcome.outcome, outcome.reason, outcome.retryable) == (
        Outcome.REJECTED,
        "BAD_INPUT",
        False,
    )


@pytest.mark.parametrize(
    ("status", "code"), [(409, "busy"), (425, "too_early"), (409, "BUSY"), (400, "oddcase")]
)
async def test_a_4xx_is_retryable_where_the_profile_says_so_in_whatever_case(
    world: World, status: int, code: str
) -> None:
    codes = frozenset({"busy", "Too_Early", "OddCase"})
    answer = http(status, f'{{"error":{{"code":"{code}"}}}}')
    outcome = await outcome_of(world, answer, retryable_codes=codes)
    assert (outcome.outcome, outcome.retryable) == (Outcome.REJECTED, True)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, "<html>"),
        (404, "{}"),
        (408, '{"error":{"code":"late"}}'),
        (400, '{"error":{"code":"the text was: hello"}}'),
    ],
)
async def test_a_4xx_that_proves_no_refusal_is_unknown(
    world: World, status: int, body: str
) -> None:
    outcome = await outcome_of(world, http(status, body))
    assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, f"HTTP_{status}")


async def test_429_is_throttled_for_the_seconds_that_it_names(world: World) -> None:
    outcome = await outcome_of(world, http(429, Retry_After="7"))
    assert outcome.outcome is Outcome.THROTTLED
    assert outcome.retry_after_seconds == 7.0
    assert outcome.sends == 1


async def test_429_is_throttled_until_the_date_that_it_names(world: World) -> None:
    now = datetime.fromtimestamp(world.clock.now_micros() / 1e6, UTC)
    header = format_datetime(now + timedelta(seconds=12), usegmt=True)
    outcome = await outcome_of(world, http(429, Retry_After=header))
    assert outcome.retry_after_seconds == pytest.approx(12.0, abs=1.0)


async def test_a_declared_503_is_throttled(world: World) -> None:
    outcome = await outcome_of(world, http(503, Retry_After="1"), throttle_503=True)
    assert (outcome.outcome, outcome.retry_after_seconds) == (Outcome.THROTTLED, 1.0)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_plain_5xx_is_unknown(world: World, status: int) -> None:
    outcome = await outcome_of(world, http(status, '{"error":{"code":"internal"}}'))
    assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, f"HTTP_{status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_unknown_and_not_followed(world: World, status: int) -> None:
    async with raw_vendor() as vendor:
        vendor.answers = [http(status, Location=vendor.endpoint + "/calls"), http(200, DONE)]
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        outcome = await core.execute(CALLER, world.request())
        assert outcome.outcome is Outcome.UNKNOWN
        assert len(vendor.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 X\r\nContent-Length: 900\r\n\r\n{"external_id"',
        b"HTTP/1.1 200 X\r\nContent-Len",
        b"\x00\x01\x02 no http at all\r\n\r\n",
    ],
)
async def test_a_truncated_answer_is_unknown(world: World, answer: bytes) -> None:
    outcome = await outcome_of(world, raw(answer, then_close=True))
    assert outcome.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"state":"SUCCEEDED"}',
        '{"state":"SUCCEEDED","result":{"scores":{"hate":7}}}',
        '{"state":"RUNNING","external_id":"x"}',
    ],
)
async def test_an_unreadable_success_is_unknown(world: World, body: str) -> None:
    outcome = await outcome_of(world, http(200, body))
    assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, "REPLY_UNREADABLE")


async def test_an_answer_without_end_is_unknown(world: World) -> None:
    outcome = await outcome_of(world, http(200, b"x" * (4 * 1024 * 1024 + 1)))
    assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, "REPLY_TOO_LARGE")


@pytest.mark.parametrize("cut", [close, reset])
async def test_a_connection_cut_after_our_bytes_is_unknown(world: World, cut: Play) -> None:
    outcome = await outcome_of(world, cut)
    assert outcome.outcome is Outcome.UNKNOWN
    assert outcome.sends == 1


async def test_no_answer_in_time_is_unknown(world: World) -> None:
    async with raw_vendor(silence) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        call = asyncio.create_task(core.execute(CALLER, world.request()))
        await vendor.arrived.wait()
        world.clock.advance(2.0)
        outcome = await call
        assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, "READ_TIMEOUT")
        assert (await world.row(core)).ledger.state is CallState.UNKNOWN


async def test_a_kept_connection_that_the_vendor_closes_after_our_bytes_is_unknown(
    world: World,
) -> None:
    async with raw_vendor(http(200, DONE), close, http(200, DONE)) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        first = await core.execute(CALLER, world.request("k1"))
        second = await core.execute(CALLER, world.request("k2"))
        assert (first.outcome, second.outcome) == (Outcome.COMPLETED, Outcome.UNKNOWN)
        assert vendor.connections == 1
        assert len(vendor.requests) == 2


async def test_a_kept_connection_that_was_closed_while_idle_costs_no_call(world: World) -> None:
    async with raw_vendor(
        raw(
            b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s" % (len(DONE), DONE.encode()),
            then_close=True,
        ),
        http(200, DONE),
    ) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request("k1"))
        await vendor.closed.wait()
        second = await core.execute(CALLER, world.request("k2"))
        assert (second.outcome, vendor.connections) == (Outcome.COMPLETED, 2)


async def test_a_body_that_cannot_be_written_in_time_is_cut_and_unknown(world: World) -> None:
    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await released.wait()
        writer.close()

    connected, released = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(never_read, "127.0.0.1", 0, limit=1)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        core = await world.core(
            world.profile(NEITHER, endpoint=endpoint, client_timeout_seconds=9.0)
        )
        big = world.request(payload=b"x" * (15 * 1024 * 1024), kind="IMAGE")
        call = asyncio.create_task(core.execute(CALLER, big))
        await connected.wait()
        # The renewal, the receipts' idle wait, the call's time-out and its write bound.
        await world.clock.sleeping(4)
        world.clock.advance(2.0)
        outcome = await call
    finally:
        released.set()
        server.close()
        await server.wait_closed()
    assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, "WRITE_TIMEOUT")


async def test_a_payload_that_is_gone_is_rejected_before_anything_is_sent(world: World) -> None:
    core = await world.core()
    outcome = await core.execute(CALLER, world.request(payload=b"", payload_ref="r1"))
    assert (outcome.outcome, outcome.reason) == (Outcome.REJECTED, "PAYLOAD_GONE")
    assert outcome.sends == 0
    assert await world.requests() == 0


async def test_a_payload_reference_is_opened_right_before_the_call(world: World) -> None:
    world.vault.payloads["r1"] = b"hello"
    core = await world.core()
    outcome = await core.execute(CALLER, world.request(payload=b"", payload_ref="r1"))
    assert outcome.outcome is Outcome.COMPLETED


async def test_a_text_that_is_not_utf8_is_rejected_before_anything_is_sent(world: World) -> None:
    core = await world.core()
    outcome = await core.execute(CALLER, world.request(payload=b"\xff\xfe"))
    assert (outcome.outcome, outcome.reason) == (Outcome.REJECTED, "PAYLOAD_NOT_UTF8")
    assert await world.requests() == 0


async def test_a_missing_credential_is_not_sent(world: World) -> None:
    core = await world.core(world.profile(credential_ref="env:NONE"))
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "CREDENTIAL_MISSING")
    assert await world.requests() == 0


async def test_a_credential_travels_as_a_bearer_token(world: World) -> None:
    world.secrets["env:TOKEN"] = "s3cret"
    async with raw_vendor(http(200, DONE)) as vendor:
        core = await world.core(
            world.profile(NEITHER, endpoint=vendor.endpoint, credential_ref="env:TOKEN")
        )
        await core.execute(CALLER, world.request())
        assert b"Authorization: Bearer s3cret" in vendor.requests[0]


async def test_a_fault_of_our_own_before_the_wire_is_not_sent(world: World) -> None:
    class Broken(dict[str, bytes]):
        def __contains__(self, key: object) -> bool:
            raise RuntimeError("a fault")

    world.vault.payloads = Broken()
    core = await world.core()
    outcome = await core.execute(CALLER, world.request(payload=b"", payload_ref="r1"))
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "SEND_FAILED")
