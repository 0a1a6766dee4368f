"""Receives sends beside earlier ones in doubt; shows which outcome settles the whole key."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import FenceAnswer, OnUnknown, OnUnknownMode, Outcome, QueryAnswer, Resend
from kernel.idempotency import CallState, Capabilities
from services.vendor_proxy.core import ProxyCore
from tests.vendor_proxy.letters import ACCEPTED, FAILURE, told
from tests.vendor_proxy.scripted_vendor import Play, http, raw_vendor
from tests.vendor_proxy.world import CALLER, VENDOR, World

DONE = '{"external_id":"x1","state":"SUCCEEDED","result":{"scores":{"hate":0.5}}}'
REFUSED = http(400, '{"error":{"code":"bad_input"}}')
BUSY = http(409, '{"error":{"code":"busy"}}')
ONCE_MORE = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)
NEITHER = Capabilities()
REMEMBERS = Capabilities(dedupe=True, key_window_seconds=5.0)


async def sent_twice(
    world: World, able: Capabilities, second: Play, after_seconds: float = 0.0
) -> tuple[ProxyCore, Outcome, bool]:
    """A call in doubt and sent again: the core, the second answer, whether it settles the key."""
    async with raw_vendor(http(500), second) as vendor:
        core = await world.core(world.profile(able, endpoint=vendor.endpoint))
        first = await core.execute(CALLER, world.request(on_unknown=ONCE_MORE))
        assert (first.outcome, first.settles_key) == (Outcome.UNKNOWN, False)
        await world.pass_time(after_seconds)
        outcome = await core.execute(CALLER, world.request(attempt=2, on_unknown=ONCE_MORE))
    assert not outcome.replayed
    return core, outcome.outcome, outcome.settles_key


async def test_i3_a_refusal_of_the_second_send_says_nothing_of_the_first(world: World) -> None:
    core, outcome, settles_key = await sent_twice(world, NEITHER, REFUSED)
    assert (outcome, settles_key) == (Outcome.REJECTED, False)
    assert (await world.row(core)).ledger.state is CallState.UNKNOWN
    assert core.list_limits()[0].quarantined == 1
    assert await core.fence(CALLER, "k1", VENDOR, 2) == (FenceAnswer.UNKNOWN, None)
    later = await core.execute(CALLER, world.request(attempt=3, on_unknown=ONCE_MORE))
    assert (later.outcome, later.replayed, later.settles_key) == (Outcome.UNKNOWN, True, False)


async def test_a_refusal_settles_both_sends_where_the_vendor_knows_the_key(world: World) -> None:
    core, outcome, settles_key = await sent_twice(world, REMEMBERS, REFUSED)
    assert (outcome, settles_key) == (Outcome.REJECTED, True)
    assert (await world.row(core)).ledger.state is CallState.SETTLED
    assert core.list_limits()[0].quarantined == 0


async def test_i3_a_refusal_says_nothing_of_a_send_whose_key_the_vendor_has_forgotten(
    world: World,
) -> None:
    core, outcome, settles_key = await sent_twice(world, REMEMBERS, REFUSED, after_seconds=5.0)
    assert (outcome, settles_key) == (Outcome.REJECTED, False)
    assert (await world.row(core)).ledger.state is CallState.UNKNOWN
    assert core.list_limits()[0].quarantined == 1


async def test_i4_a_success_after_the_key_was_forgotten_leaves_the_first_send_its_permit(
    world: World,
) -> None:
    core, outcome, settles_key = await sent_twice(
        world, REMEMBERS, http(200, DONE), after_seconds=5.0
    )
    assert (outcome, settles_key) == (Outcome.COMPLETED, True)
    assert core.list_limits()[0].quarantined == 1
    assert (await world.row(core)).occupied_until is not None


@pytest.mark.parametrize(
    ("play", "outcome"),
    [
        (http(200, DONE), Outcome.COMPLETED),
        (http(202, ACCEPTED), Outcome.ACCEPTED),
        (REFUSED, Outcome.REJECTED),
        (BUSY, Outcome.REJECTED),
        (http(429), Outcome.THROTTLED),
    ],
)
async def test_an_answer_settles_its_key_where_nothing_is_in_doubt_however_it_is_told(
    world: World, play: Play, outcome: Outcome
) -> None:
    async with raw_vendor(play) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        told = [await core.execute(CALLER, world.request()) for _ in range(2)]
        answer, fenced = await core.fence(CALLER, "k1", VENDOR, 1)
        assert answer is FenceAnswer.SETTLED
        asked = await core.query_status(CALLER, "k1", VENDOR)
    told += [each for each in (fenced, asked.call) if each is not None]
    assert {(each.outcome, each.settles_key) for each in told} == {(outcome, True)}


async def test_what_was_not_asked_of_the_ledger_or_is_open_there_settles_no_key(
    world: World,
) -> None:
    await world.control(script=[{"when": {"key": "k1"}, "do": "hang"}])
    core = await world.core(world.profile(NEITHER), concurrency=1)
    other = await world.core(world.profile(NEITHER))
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    told = [
        await core.execute(CALLER, world.request("k2")),  # no permit
        await other.execute(CALLER, world.request()),  # in progress
    ]
    world.clock.advance(2.0)
    told.append(await call)
    await core.fence(CALLER, "k1", VENDOR, 2)
    told.append(await core.execute(CALLER, world.request(attempt=2)))  # stale
    assert [each.outcome for each in told] == [
        Outcome.NOT_SENT,
        Outcome.IN_PROGRESS,
        Outcome.UNKNOWN,
        Outcome.STALE_ATTEMPT,
    ]
    assert not any(each.settles_key for each in told)


async def test_a_spent_budget_says_that_nothing_is_in_doubt(world: World) -> None:
    async with raw_vendor(http(429)) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request(max_sends=1))
        outcome = await core.execute(CALLER, world.request(attempt=2, max_sends=1))
    assert (outcome.outcome, outcome.settles_key) == (Outcome.BUDGET_EXHAUSTED, True)


@pytest.mark.parametrize("told_by", ["query", "receipt"])
async def test_i3_the_failure_of_an_accepted_send_leaves_an_earlier_one_in_doubt(
    world: World, told_by: str
) -> None:
    able = Capabilities(query_by_id=True, receipts=True)
    failed = http(200, '{"external_id":"x1","state":"FAILED","error":{"code":"broken"}}')
    async with raw_vendor(http(500), http(202, ACCEPTED), failed, failed) as vendor:
        core = await world.core(world.profile(able, endpoint=vendor.endpoint))
        for attempt in (1, 2):
            await core.execute(CALLER, world.request(attempt=attempt, on_unknown=ONCE_MORE))
        if told_by == "receipt":
            assert await told(world, core, **FAILURE)
        world.clock.advance(2.0)  # the receipts' grace
        answer = await core.query_status(CALLER, "k1", VENDOR)
        assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.REFUSED)
        assert (await world.row(core)).ledger.state is CallState.UNKNOWN
        assert (await core.fence(CALLER, "k1", VENDOR, 2))[0] is FenceAnswer.UNKNOWN
