"""Receives every way in which a call can end; shows that its permit returns once, and when."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import NO_PERMIT, Outcome, QueryAnswer
from kernel.errors import InvalidArgument, NotFound
from kernel.idempotency import Capabilities
from kernel.store.calls import CallKey
from services.vendor_proxy.permits import Permits
from tests.manual_clock import ManualClock
from tests.vendor_proxy.scripted_vendor import Play, close, http, raw, raw_vendor, reset
from tests.vendor_proxy.world import BOUNDS, CALLER, POOL, VENDOR, World

DONE = '{"external_id":"x1","state":"SUCCEEDED","result":{"scores":{"hate":0.5}}}'
NEITHER = Capabilities()
KEY = CallKey("c", "v", "k")


def a_permit(limit: int) -> tuple[ManualClock, Permits]:
    clock = ManualClock()
    return clock, Permits({POOL: limit}, clock.suspended_seconds)


def test_a_permit_returns_once_however_often_it_is_released() -> None:
    _, permits = a_permit(1)
    permit = permits.take(POOL, KEY, 10.0)
    assert permit is not None
    assert permits.take(POOL, KEY, 10.0) is None
    permit.release()
    permit.release()
    assert permits.take(POOL, KEY, 10.0) is not None
    assert permits.take(POOL, KEY, 10.0) is None


def test_a_quarantined_permit_returns_by_itself_at_its_end() -> None:
    clock, permits = a_permit(1)
    permit = permits.take(POOL, KEY, 10.0)
    assert permit is not None
    permit.quarantine(clock.suspended_seconds() + 5.0)
    clock.advance(4.9)
    assert permits.take(POOL, KEY, 10.0) is None
    clock.advance(0.1)
    assert permits.take(POOL, KEY, 10.0) is not None


def test_freeing_a_key_leaves_calls_in_flight_and_other_keys_alone() -> None:
    clock, permits = a_permit(3)
    for each in (KEY, CallKey("c", "v", "other")):
        permit = permits.take(POOL, each, 10.0)
        assert permit is not None
        permit.quarantine(clock.suspended_seconds() + 5.0)
    permits.take(POOL, KEY, 10.0)
    permits.free(KEY)
    use = permits.use(POOL)
    assert (use.in_flight, use.quarantined) == (1, 1)


def test_lowering_takes_force_when_the_surplus_has_drained() -> None:
    _, permits = a_permit(4)
    for seconds in (3.0, 9.0, 5.0, 7.0):
        permits.take(POOL, KEY, seconds)
    assert permits.set_limit(POOL, 2) == pytest.approx(5.0)
    assert permits.take(POOL, KEY, 1.0) is None
    assert permits.set_limit(POOL, 8) == 0.0
    assert permits.take(POOL, KEY, 1.0) is not None


@pytest.mark.parametrize(
    ("play", "outcome", "quarantined"),
    [
        (http(200, DONE), Outcome.COMPLETED, 0),
        (http(202, '{"external_id":"x"}'), Outcome.ACCEPTED, 0),
        (http(400, '{"error":{"code":"bad"}}'), Outcome.REJECTED, 0),
        (http(409, '{"error":{"code":"busy"}}'), Outcome.REJECTED, 0),
        (http(429), Outcome.THROTTLED, 0),
        (http(500), Outcome.UNKNOWN, 1),
        (http(302), Outcome.UNKNOWN, 1),
        (http(200, "{"), Outcome.UNKNOWN, 1),
        (raw(b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n{", then_close=True), Outcome.UNKNOWN, 1),
        (close, Outcome.UNKNOWN, 1),
        (reset, Outcome.UNKNOWN, 1),
    ],
)
async def test_i4_a_permit_returns_exactly_once_on_every_exit_path(
    world: World, play: Play, outcome: Outcome, quarantined: int
) -> None:
    async with raw_vendor(play) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint), concurrency=1)
        assert (await core.execute(CALLER, world.request())).outcome is outcome
        (limit,) = core.list_limits()
        assert (limit.in_flight, limit.quarantined) == (0, quarantined)


async def test_a_call_that_is_not_sent_holds_no_permit(world: World) -> None:
    core = await world.core(
        world.profile(NEITHER, endpoint="http://no-such-host.invalid"), concurrency=1
    )
    for key in ("k1", "k2"):
        outcome = await core.execute(CALLER, world.request(key))
        assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "NAME_NOT_RESOLVED")
    (limit,) = core.list_limits()
    assert (limit.in_flight, limit.quarantined) == (0, 0)


async def test_without_a_free_permit_nothing_is_sent_and_no_row_is_made(world: World) -> None:
    await world.control(latency_ms=500)
    core = await world.core(concurrency=1)
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    refused = await core.execute(CALLER, world.request("k2"))
    assert (refused.outcome, refused.reason) == (Outcome.NOT_SENT, NO_PERMIT)
    with pytest.raises(NotFound):
        await world.row(core, "k2")
    world.clock.advance(0.5)
    assert (await call).outcome is Outcome.COMPLETED
    assert (await core.execute(CALLER, world.request())).replayed  # replays need no permit


async def test_i4_after_a_time_out_the_permit_is_quarantined_as_long_as_the_vendor_may_work(
    world: World,
) -> None:
    await world.control(latency_ms=19_000, concurrency=1)
    core = await world.core(world.profile(NEITHER), concurrency=1)
    assert (await world.timed_out(core, world.request())).outcome is Outcome.UNKNOWN
    (limit,) = core.list_limits()
    assert (limit.in_flight, limit.quarantined) == (0, 1)
    refused = await core.execute(CALLER, world.request("k2"))
    assert refused.reason == NO_PERMIT
    row = await world.row(core)
    assert row.occupied_until == world.clock.now_micros() + 20_000_000
    await world.pass_time(20.0)
    await world.control(latency_ms=0)
    assert (await core.execute(CALLER, world.request("k2"))).outcome is Outcome.COMPLETED
    assert (await world.ledger())["calls_above_limit"] == 0


async def test_i4_a_terminal_answer_of_the_vendor_frees_the_quarantine(world: World) -> None:
    await world.control(
        capabilities={"query_by_key": True}, script=[{"when": {"nth": 1}, "do": "hang"}]
    )
    core = await world.core(concurrency=1)
    await world.timed_out(core, world.request())
    assert core.list_limits()[0].quarantined == 1
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert answer.answer is QueryAnswer.SETTLED
    assert core.list_limits()[0].quarantined == 0
    assert (await world.row(core)).occupied_until is None


async def test_i4_after_a_restart_the_calls_of_the_dead_count_until_the_vendor_has_stopped(
    world: World,
) -> None:
    await world.control(latency_ms=30_000, concurrency=2)
    profile = world.profile(NEITHER)
    first = await world.gateway(profile, concurrency=2)
    calls = [
        asyncio.create_task(first.core.execute(CALLER, world.request(key))) for key in ("a", "b")
    ]
    await world.until_executed("a")
    await world.until_executed("b")
    await first.drop()
    await asyncio.gather(*calls, return_exceptions=True)

    core = await world.core(profile, concurrency=2)
    assert core.list_limits()[0].quarantined == 2
    assert (await core.execute(CALLER, world.request("c"))).reason == NO_PERMIT
    held = BOUNDS.lease_seconds + BOUNDS.write_seconds + profile.max_execution_seconds
    await world.pass_time(held - 2.0)
    assert core.list_limits()[0].quarantined == 2
    await world.pass_time(2.0)
    assert core.list_limits()[0].quarantined == 0


async def test_i4_a_second_restart_still_counts_what_was_taken_over_in_doubt(world: World) -> None:
    await world.control(latency_ms=90_000)
    first = await world.gateway(world.profile(NEITHER))
    call = asyncio.create_task(first.core.execute(CALLER, world.request()))
    await world.until_executed()
    await first.drop()
    await asyncio.gather(call, return_exceptions=True)
    world.clock.advance(BOUNDS.lease_seconds + BOUNDS.write_seconds + 1.0)
    second = await world.gateway(world.profile(NEITHER))
    await second.drop()
    third = await world.core(world.profile(NEITHER))
    assert third.list_limits()[0].quarantined == 1


async def test_a_jobs_permit_is_held_until_its_receipt_or_its_longest_time(world: World) -> None:
    await world.control(capabilities={"async": True, "query_by_id": True}, latency_ms=5_000)
    able = Capabilities(query_by_id=True)
    core = await world.core(world.profile(able, counts="jobs"), concurrency=1)
    accepted = await core.execute(CALLER, world.request())
    assert accepted.outcome is Outcome.ACCEPTED
    assert (await core.execute(CALLER, world.request("k2"))).reason == NO_PERMIT
    world.clock.advance(5.0)

    async def ended() -> bool:
        return bool((await world.ledger())["in_flight"] == 0)

    await world.until(ended)
    assert (await core.query_status(CALLER, "k1", VENDOR)).answer is QueryAnswer.SETTLED
    assert (await core.execute(CALLER, world.request("k2"))).outcome is Outcome.ACCEPTED


async def test_a_vendor_that_counts_requests_gets_its_permit_back_when_it_accepts(
    world: World,
) -> None:
    await world.control(
        capabilities={"async": True, "query_by_id": True}, counts="requests", latency_ms=5_000
    )
    able = Capabilities(query_by_id=True)
    core = await world.core(world.profile(able), concurrency=1)
    for key in ("k1", "k2"):
        assert (await core.execute(CALLER, world.request(key))).outcome is Outcome.ACCEPTED


async def test_retry_after_closes_the_pool_for_every_replica(world: World) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "throttle", "retry_after": 30}])
    one, two = await world.core(), await world.core()
    assert (await one.execute(CALLER, world.request())).outcome is Outcome.THROTTLED
    closed = await one.execute(CALLER, world.request("k2"))
    assert (closed.outcome, closed.reason) == (Outcome.NOT_SENT, "POOL_CLOSED")
    assert closed.retry_after_seconds == pytest.approx(30.0)
    await world.pass_time(BOUNDS.renew_interval_seconds)
    assert (await two.execute(CALLER, world.request("k3"))).reason == "POOL_CLOSED"
    assert two.list_limits()[0].closed_until > world.clock.now_micros()


async def test_throttling_without_retry_after_closes_nothing(world: World) -> None:
    async with raw_vendor(http(429), http(200, DONE)) as vendor:
        core = await world.core(world.profile(NEITHER, endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request())
        assert (await core.execute(CALLER, world.request("k2"))).outcome is Outcome.COMPLETED


async def test_setting_a_limit_says_when_it_is_in_force_and_survives_a_restart(
    world: World,
) -> None:
    await world.control(latency_ms=60_000)
    first = await world.gateway(world.profile(NEITHER), concurrency=2)
    calls = [
        asyncio.create_task(first.core.execute(CALLER, world.request(key))) for key in ("a", "b")
    ]
    await world.until_executed("a")
    await world.until_executed("b")
    limit, in_force_at = await first.core.set_limit(POOL, 1)
    assert (limit.concurrency, limit.in_flight) == (1, 2)
    assert in_force_at == world.clock.now_micros() + 22_000_000
    await first.drop()
    await asyncio.gather(*calls, return_exceptions=True)
    core = await world.core(world.profile(NEITHER), concurrency=2)
    assert core.list_limits()[0].concurrency == 1


async def test_a_limit_needs_a_pool_and_a_number(world: World) -> None:
    core = await world.core()
    with pytest.raises(NotFound):
        await core.set_limit("nowhere", 1)
    with pytest.raises(InvalidArgument):
        await core.set_limit(POOL, -1)
