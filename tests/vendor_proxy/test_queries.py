"""Receives calls in doubt; shows what a status query makes of each."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import (
    OnUnknown,
    OnUnknownMode,
    Outcome,
    QueryAnswer,
    Resend,
)
from kernel.errors import NotFound
from kernel.idempotency import CallState, Capabilities
from tests.vendor_proxy.scripted_vendor import close, http, raw_vendor, silence
from tests.vendor_proxy.world import CALLER, VENDOR, World, with_able

LOST_BEFORE = [{"when": {"nth": 1}, "do": "drop_before"}]
LOST_AFTER = [{"when": {"nth": 1}, "do": "hide_response"}]
ONCE_MORE = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)


async def test_what_the_vendor_executed_is_settled_by_a_query_with_its_result_and_cost(
    world: World,
) -> None:
    await world.control(capabilities={"query_by_key": True}, script=LOST_AFTER)
    core = await world.core()
    assert (await core.execute(CALLER, world.request())).outcome is Outcome.UNKNOWN
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.call and answer.call.outcome) == (
        QueryAnswer.SETTLED,
        Outcome.COMPLETED,
    )
    assert answer.call is not None
    assert answer.call.cost_micros == 1000
    row = await world.row(core)
    assert (row.ledger.state, row.last_query_answer) == (CallState.SETTLED, "SETTLED")
    replayed = await core.execute(CALLER, world.request(attempt=2))
    assert (replayed.outcome, replayed.replayed) == (Outcome.COMPLETED, True)
    assert await world.executions() == 1


async def test_not_found_is_believed_only_when_asked_later_than_the_lag(world: World) -> None:
    await world.control(capabilities={"query_by_key": True}, script=LOST_BEFORE)
    core = await world.core()
    assert (await core.execute(CALLER, world.request())).outcome is Outcome.UNKNOWN

    early = await core.query_status(CALLER, "k1", VENDOR)
    assert (early.answer, early.resend) == (QueryAnswer.TOO_EARLY, Resend.REFUSED)
    assert early.retry_after_seconds == pytest.approx(1.0, abs=0.001)
    world.clock.advance(1.0)
    at_the_lag = await core.query_status(CALLER, "k1", VENDOR)
    assert at_the_lag.answer is QueryAnswer.TOO_EARLY
    refused = await core.execute(CALLER, world.request(attempt=2))
    assert (refused.outcome, refused.replayed) == (Outcome.UNKNOWN, True)

    world.clock.advance(at_the_lag.retry_after_seconds)
    late = await core.query_status(CALLER, "k1", VENDOR)
    assert (late.answer, late.resend) == (QueryAnswer.NOT_FOUND, Resend.SAFE)
    again = await core.execute(CALLER, world.request(attempt=2))
    assert (again.outcome, again.sends, again.possible_duplicate) == (Outcome.COMPLETED, 2, False)
    assert await world.executions() == 1


async def test_a_not_found_of_before_the_latest_send_proves_nothing_about_it(world: World) -> None:
    await world.control(
        capabilities={"query_by_key": True}, script=[{"when": {"every": 1}, "do": "drop_before"}]
    )
    core = await world.core()
    await core.execute(CALLER, world.request())
    world.clock.advance(1.1)
    await core.query_status(CALLER, "k1", VENDOR)
    assert (await core.execute(CALLER, world.request(attempt=2))).outcome is Outcome.UNKNOWN
    third = await core.execute(CALLER, world.request(attempt=3))
    assert (third.outcome, third.replayed, third.sends) == (Outcome.UNKNOWN, True, 2)
    assert await world.requests() == 2


async def test_not_found_without_authority_cannot_tell(world: World) -> None:
    await world.control(capabilities={"query_by_key": True}, script=LOST_BEFORE)
    core = await world.core(with_able(world.profile(), authoritative=False))
    await core.execute(CALLER, world.request(on_unknown=ONCE_MORE))
    world.clock.advance(5.0)
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.MARKED)
    assert answer.reason == "NOT_FOUND_PROVES_NOTHING"


async def test_a_vendor_that_is_asked_by_its_own_id_only_cannot_tell_without_it(
    world: World,
) -> None:
    await world.control(capabilities={"query_by_id": True}, script=LOST_AFTER)
    core = await world.core(world.profile(Capabilities(query_by_id=True, authoritative=True)))
    await core.execute(CALLER, world.request())
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.REFUSED)


async def test_a_job_is_followed_by_the_vendors_id(world: World) -> None:
    await world.control(capabilities={"async": True, "query_by_id": True}, latency_ms=1_000)
    core = await world.core(world.profile(Capabilities(query_by_id=True)))
    accepted = await core.execute(CALLER, world.request())
    running = await core.query_status(CALLER, "k1", VENDOR)
    assert running.answer is QueryAnswer.RUNNING
    assert running.call is not None
    assert running.call.external_id == accepted.external_id
    world.clock.advance(1.0)

    async def settled() -> bool:
        answer = await core.query_status(CALLER, "k1", VENDOR)
        return answer.answer is QueryAnswer.SETTLED

    await world.until(settled)
    assert (await world.row(core)).cost_micros == 1000


async def test_a_failed_execution_is_settled_as_rejected(world: World) -> None:
    await world.control(
        capabilities={"async": True, "query_by_key": True},
        script=[{"when": {"nth": 1}, "do": "fail"}],
    )
    core = await world.core(world.profile(Capabilities(query_by_key=True)))
    await core.execute(CALLER, world.request())

    async def settled() -> bool:
        answer = await core.query_status(CALLER, "k1", VENDOR)
        return answer.call is not None and answer.call.outcome is Outcome.REJECTED

    await world.until(settled)


async def test_a_query_that_fails_is_too_early_and_says_when_to_come_back(world: World) -> None:
    done = http(500)
    async with raw_vendor(done, close, http(429, Retry_After="9"), http(503)) as vendor:
        core = await world.core(world.profile(endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request())
        answers = [await core.query_status(CALLER, "k1", VENDOR) for _ in range(3)]
        assert {each.answer for each in answers} == {QueryAnswer.TOO_EARLY}
        assert all(each.retry_after_seconds > 0 for each in answers)
        assert answers[1].retry_after_seconds >= 9.0
        assert (await world.row(core)).ledger.state is CallState.UNKNOWN


@pytest.mark.parametrize("error", ['"busy"', "[]", "7", "null", '{"code":["not_found"]}'])
async def test_an_error_body_of_another_form_breaks_neither_a_call_nor_a_query(
    world: World, error: str
) -> None:
    odd = '{"error":' + error + "}"
    async with raw_vendor(http(400, odd), http(404, odd), http(400, odd)) as vendor:
        core = await world.core(world.profile(endpoint=vendor.endpoint))
        outcome = await core.execute(CALLER, world.request())
        assert (outcome.outcome, outcome.reason) == (Outcome.UNKNOWN, "HTTP_400")
        for _ in range(2):
            answer = await core.query_status(CALLER, "k1", VENDOR)
            assert (answer.answer, answer.reason) == (QueryAnswer.CANNOT_TELL, "QUERY_REFUSED")


async def test_a_vendor_that_never_answers_a_query_does_not_hold_it(world: World) -> None:
    async with raw_vendor(http(500), silence) as vendor:
        core = await world.core(world.profile(endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request())
        vendor.arrived.clear()
        query = asyncio.create_task(core.query_status(CALLER, "k1", VENDOR))
        await vendor.arrived.wait()
        world.clock.advance(5.0)
        assert (await query).answer is QueryAnswer.TOO_EARLY


async def test_status_queries_have_a_limit_of_their_own(world: World) -> None:
    async with raw_vendor(http(500), http(500), silence, http(404)) as vendor:
        core = await world.core(
            world.profile(endpoint=vendor.endpoint, query_concurrency=1), concurrency=2
        )
        await core.execute(CALLER, world.request("k1"))
        await core.execute(CALLER, world.request("k2"))
        assert core.list_limits()[0].quarantined == 2
        vendor.arrived.clear()
        queries = [
            asyncio.create_task(core.query_status(CALLER, key, VENDOR)) for key in ("k1", "k2")
        ]
        await vendor.arrived.wait()
        await world.store.read(lambda tx: tx.now())
        assert len(vendor.requests) == 3  # two calls and one query: no permit, one turn
        world.clock.advance(5.0)
        await asyncio.gather(*queries)
        assert len(vendor.requests) == 4


async def test_a_call_in_flight_here_is_running(world: World) -> None:
    await world.control(latency_ms=500)
    core = await world.core()
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    assert (await core.query_status(CALLER, "k1", VENDOR)).answer is QueryAnswer.RUNNING
    world.clock.advance(0.5)
    await call
    assert (await world.ledger())["queries"] == 0


async def test_a_settled_call_is_answered_without_asking(world: World) -> None:
    core = await world.core()
    await core.execute(CALLER, world.request())
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, (await world.ledger())["queries"]) == (QueryAnswer.SETTLED, 0)


async def test_before_the_receipts_grace_nobody_says_that_it_cannot_be_told(world: World) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hide_response"}])
    core = await world.core(world.profile(Capabilities(receipts=True), receipt_grace_seconds=3.0))
    await core.execute(CALLER, world.request(on_unknown=ONCE_MORE))
    early = await core.query_status(CALLER, "k1", VENDOR)
    assert (early.answer, early.reason) == (QueryAnswer.TOO_EARLY, "RECEIPT_MAY_COME")
    assert early.retry_after_seconds == pytest.approx(3.0)
    world.clock.advance(3.0)
    late = await core.query_status(CALLER, "k1", VENDOR)
    assert (late.answer, late.resend) == (QueryAnswer.CANNOT_TELL, Resend.MARKED)


async def test_a_deduplicating_vendor_is_sent_the_same_key_again_inside_its_window_only(
    world: World,
) -> None:
    await world.control(capabilities={"dedupe": True}, script=LOST_AFTER)
    able = Capabilities(dedupe=True, key_window_seconds=60.0)
    core = await world.core(world.profile(able))
    await core.execute(CALLER, world.request())
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.SAFE)
    again = await core.execute(CALLER, world.request(attempt=2))
    assert (again.outcome, again.sends, again.possible_duplicate) == (Outcome.COMPLETED, 2, False)
    assert await world.executions() == 1
    assert core.list_limits()[0].quarantined == 0  # one execution, and it has ended


async def test_after_the_key_window_a_resend_is_never_called_safe(world: World) -> None:
    await world.control(capabilities={"dedupe": True}, script=LOST_AFTER)
    able = Capabilities(dedupe=True, key_window_seconds=60.0)
    core = await world.core(world.profile(able))
    await core.execute(CALLER, world.request())
    await world.pass_time(60.0)
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.REFUSED)
    later = world.request(attempt=2)
    assert (await core.execute(CALLER, later)).replayed
    assert await world.requests() == 1


async def test_the_window_is_judged_again_after_a_resend_that_did_nothing(world: World) -> None:
    await world.control(
        capabilities={"dedupe": True},
        script=[*LOST_AFTER, {"when": {"nth": 2}, "do": "throttle", "retry_after": 0}],
    )
    able = Capabilities(dedupe=True, key_window_seconds=60.0)
    core = await world.core(world.profile(able))
    await core.execute(CALLER, world.request())
    throttled = await core.execute(CALLER, world.request(attempt=2))
    assert throttled.outcome is Outcome.THROTTLED
    assert (await world.row(core)).ledger.state is CallState.UNKNOWN  # the first is in doubt
    await world.pass_time(60.0)
    third = await core.execute(CALLER, world.request(attempt=3))
    assert (third.outcome, third.replayed) == (Outcome.UNKNOWN, True)
    assert await world.requests() == 2


async def test_a_key_that_the_ledger_never_saw_is_not_found(world: World) -> None:
    core = await world.core()
    await core.execute("another", world.request())
    for ask in (core.get_call, core.query_status, core.cancel_call):
        with pytest.raises(NotFound):
            await ask(CALLER, "k1", VENDOR)
    with pytest.raises(NotFound):
        await core.get_call(CALLER, "k1", "no-such-vendor")
