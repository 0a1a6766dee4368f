"""Receives calls in every state; shows what a fence and a cancel make of each."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import (
    FenceAnswer,
    OnUnknown,
    OnUnknownMode,
    Outcome,
    QueryAnswer,
)
from kernel.errors import InvalidArgument
from kernel.idempotency import CallState, Capabilities
from services.vendor_proxy.adapters import CancelAnswer
from tests.vendor_proxy.scripted_vendor import http, raw_vendor
from tests.vendor_proxy.world import CALLER, VENDOR, World

LOST_AFTER = [{"when": {"nth": 1}, "do": "hide_response"}]
ONCE_MORE = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)


async def test_a_fence_makes_a_late_execute_stale_and_lets_the_next_attempt_send(
    world: World,
) -> None:
    core = await world.core()
    assert await core.fence(CALLER, "k1", VENDOR, 1) == (FenceAnswer.NEVER_BEGUN, None)
    assert (await core.execute(CALLER, world.request())).outcome is Outcome.STALE_ATTEMPT
    assert await world.requests() == 0
    never = await core.query_status(CALLER, "k1", VENDOR)
    assert (never.answer, never.reason) == (QueryAnswer.NOT_FOUND, "NEVER_BEGUN")
    assert (await core.execute(CALLER, world.request(attempt=2))).outcome is Outcome.COMPLETED
    answer, settled = await core.fence(CALLER, "k1", VENDOR, 2)
    assert (answer, settled and settled.outcome) == (FenceAnswer.SETTLED, Outcome.COMPLETED)


@pytest.mark.parametrize(
    ("key", "attempt", "named"),
    [
        ("", 1, ["idempotency_key"]),
        ("k" * 129, 1, ["idempotency_key"]),
        ("k1", 0, ["attempt"]),
        ("", 0, ["idempotency_key", "attempt"]),
    ],
)
async def test_a_fence_names_each_bad_field(
    world: World, key: str, attempt: int, named: list[str]
) -> None:
    core = await world.core()
    with pytest.raises(InvalidArgument) as refused:
        await core.fence(CALLER, key, VENDOR, attempt)
    assert [each.field for each in refused.value.violations] == named


async def test_a_fence_says_what_stands_and_never_lowers_itself(world: World) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hang"}])
    core = await world.core()
    call = asyncio.create_task(core.execute(CALLER, world.request(attempt=2)))
    await world.until_executed()
    assert (await core.fence(CALLER, "k1", VENDOR, 3))[0] is FenceAnswer.IN_PROGRESS
    assert (await core.fence(CALLER, "k1", VENDOR, 1))[0] is FenceAnswer.IN_PROGRESS
    world.clock.advance(2.0)
    await call
    assert (await core.fence(CALLER, "k1", VENDOR, 2))[0] is FenceAnswer.UNKNOWN
    assert (await world.row(core)).ledger.fenced_attempt == 3
    assert (await core.execute(CALLER, world.request(attempt=3))).outcome is Outcome.STALE_ATTEMPT


async def test_a_fence_closes_an_attempt_that_stands_between_permit_and_begin(
    world: World,
) -> None:
    core = await world.core()
    fence = asyncio.create_task(core.fence(CALLER, "k1", VENDOR, 1))
    await asyncio.sleep(0)
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    assert (await fence)[0] is FenceAnswer.NEVER_BEGUN
    assert (await call).outcome is Outcome.STALE_ATTEMPT
    assert await world.requests() == 0


async def test_a_vendors_yes_to_a_cancel_settles_the_call(world: World) -> None:
    await world.control(
        capabilities={"async": True, "cancel": True, "query_by_id": True}, latency_ms=9_000
    )
    able = Capabilities(cancel=True, query_by_id=True)
    core = await world.core(world.profile(able, counts="jobs"), concurrency=1)
    await core.execute(CALLER, world.request())
    assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.CANCELLED
    row = await world.row(core)
    assert row.outcome is not None
    assert (row.outcome.outcome, row.outcome.reason) == (Outcome.REJECTED, "CANCELLED")
    assert core.list_limits()[0].quarantined == 0
    assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.TOO_LATE


async def test_a_call_in_doubt_is_cancelled_by_the_id_that_a_query_told(world: World) -> None:
    await world.control(
        capabilities={"async": True, "cancel": True, "query_by_key": True},
        latency_ms=9_000,
        script=LOST_AFTER,
    )
    able = Capabilities(cancel=True, query_by_key=True)
    core = await world.core(world.profile(able), concurrency=1)
    assert (await core.execute(CALLER, world.request())).outcome is Outcome.UNKNOWN
    # Before the vendor's id is known there is nothing to name to it.
    assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.CANNOT_TELL
    assert (await core.query_status(CALLER, "k1", VENDOR)).answer is QueryAnswer.RUNNING
    assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.CANCELLED
    answer, settled = await core.fence(CALLER, "k1", VENDOR, 1)
    assert (answer, settled and settled.reason) == (FenceAnswer.SETTLED, "CANCELLED")
    assert core.list_limits()[0].quarantined == 0


async def test_a_cancel_of_one_of_two_possible_executions_does_not_say_that_nothing_runs(
    world: World,
) -> None:
    accepted = http(202, '{"external_id":"x2","state":"ACCEPTED"}')
    async with raw_vendor(http(500), accepted, http(200, "{}")) as vendor:
        core = await world.core(world.profile(Capabilities(cancel=True), endpoint=vendor.endpoint))
        for attempt in (1, 2):
            await core.execute(CALLER, world.request(attempt=attempt, on_unknown=ONCE_MORE))
        assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.CANNOT_TELL
        assert (await world.row(core)).ledger.state is CallState.UNKNOWN


async def test_a_vendor_that_cannot_cancel_cannot_tell(world: World) -> None:
    await world.control(capabilities={"async": True})
    core = await world.core(world.profile(Capabilities()))
    await core.execute(CALLER, world.request())
    assert await core.cancel_call(CALLER, "k1", VENDOR) is CancelAnswer.CANNOT_TELL
