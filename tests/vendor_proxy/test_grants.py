"""Receives an operator's word for one more send; shows that it is sent once, and marked."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import CallOutcome, CallRequest, Outcome, QueryAnswer, Resend
from kernel.errors import InvalidArgument
from kernel.idempotency import CallState, Capabilities
from kernel.store.calls import StoredCall
from services.vendor_proxy.core import ProxyCore
from tests.vendor_proxy.flaky_store import FlakyStore
from tests.vendor_proxy.world import CALLER, VENDOR, World

NEITHER = Capabilities()
LOST_ONCE = [{"when": {"nth": 1}, "do": "hide_response"}]
LOST_ALWAYS = [{"when": {"every": 1}, "do": "hide_response"}]
THROTTLED_SECOND = [*LOST_ONCE, {"when": {"nth": 2}, "do": "throttle", "retry_after": 0}]


def granted(world: World, attempt: int = 2) -> CallRequest:
    """The next attempt, with one send granted and the budget that goes with it."""
    return world.request(attempt=attempt, max_sends=2, granted_sends=1)


async def spent(world: World, core: ProxyCore) -> CallOutcome:
    """A call whose one send is in doubt."""
    outcome = await core.execute(CALLER, world.request(max_sends=1))
    assert (outcome.outcome, outcome.sends) == (Outcome.UNKNOWN, 1)
    return outcome


def books(row: StoredCall) -> tuple[int, int, int, int]:
    """What the row says of sends, budget, grants and marks."""
    ledger = row.ledger
    return (ledger.sends, ledger.max_sends, ledger.granted_sends, ledger.possible_duplicates)


async def test_a_spent_call_in_doubt_is_sent_once_more_at_an_operators_word_and_marked(
    world: World,
) -> None:
    await world.control(script=LOST_ONCE)
    core = await world.core(world.profile(NEITHER))
    await spent(world, core)
    without = await core.execute(CALLER, world.request(attempt=2, max_sends=2))
    assert (without.outcome, without.replayed) == (Outcome.UNKNOWN, True)
    outcome = await core.execute(CALLER, granted(world))
    assert (outcome.outcome, outcome.sends, outcome.possible_duplicates) == (
        Outcome.COMPLETED,
        2,
        1,
    )
    assert books(await world.row(core)) == (2, 2, 1, 1)
    assert await world.executions() == 2


async def test_a_vendor_that_has_authority_and_refuses_to_tell_is_sent_to_once_more(
    world: World,
) -> None:
    await world.control(script=LOST_ONCE)  # it answers every query with 405
    core = await world.core()
    await spent(world, core)
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.CANNOT_TELL, Resend.REFUSED)
    outcome = await core.execute(CALLER, granted(world))
    assert (outcome.outcome, outcome.possible_duplicates) == (Outcome.COMPLETED, 1)


async def test_the_same_grant_never_sends_twice_and_another_one_does(world: World) -> None:
    await world.control(script=LOST_ALWAYS)
    core = await world.core(world.profile(NEITHER))
    await spent(world, core)
    seen = []
    for attempt, grants in ((2, 1), (3, 1), (4, 1), (5, 2), (6, 2)):
        outcome = await core.execute(
            CALLER, world.request(attempt=attempt, max_sends=9, granted_sends=grants)
        )
        seen.append((outcome.outcome, outcome.replayed, outcome.possible_duplicates))
    assert seen == [
        (Outcome.UNKNOWN, False, 1),
        (Outcome.UNKNOWN, True, 1),
        (Outcome.UNKNOWN, True, 1),
        (Outcome.UNKNOWN, False, 2),
        (Outcome.UNKNOWN, True, 2),
    ]
    assert await world.executions() == 3


async def test_i12_a_grant_is_used_by_a_send_that_was_throttled(world: World) -> None:
    await world.control(script=THROTTLED_SECOND)
    core = await world.core(world.profile(NEITHER))
    await spent(world, core)
    assert (await core.execute(CALLER, granted(world))).outcome is Outcome.THROTTLED
    assert books(await world.row(core)) == (2, 2, 1, 0)
    refused = await core.execute(CALLER, granted(world, attempt=3))
    assert refused.outcome is Outcome.UNKNOWN
    again = world.request(attempt=4, max_sends=3, granted_sends=2)
    outcome = await core.execute(CALLER, again)
    assert (outcome.outcome, outcome.possible_duplicates) == (Outcome.COMPLETED, 1)
    assert await world.executions() == 2


async def test_a_grant_comes_back_with_a_send_that_never_left(world: World) -> None:
    await world.control(script=LOST_ONCE)
    core = await world.core(world.profile(NEITHER))
    nowhere = await world.core(world.profile(NEITHER, endpoint="http://no-such-host.invalid"))
    await spent(world, core)
    outcome = await nowhere.execute(CALLER, granted(world))
    assert (outcome.outcome, outcome.sends) == (Outcome.NOT_SENT, 1)
    assert books(await world.row(core)) == (1, 2, 0, 0)
    outcome = await core.execute(CALLER, granted(world, attempt=3))
    assert (outcome.outcome, outcome.sends) == (Outcome.COMPLETED, 2)


async def test_what_comes_back_comes_back_once_when_the_settles_commit_lost_its_answer(
    world: World,
) -> None:
    await world.control(script=LOST_ONCE)
    store = FlakyStore(str(world.store.url), world.clock)
    nowhere = world.profile(NEITHER, endpoint="http://no-such-host.invalid")
    core, flaky = await world.core(world.profile(NEITHER)), await world.core(nowhere, store=store)
    await spent(world, core)
    store.lose_answer_of = "settle"
    call = asyncio.create_task(flaky.execute(CALLER, granted(world)))
    await store.lost.wait()
    await world.clock.sleeping(5)
    world.clock.advance(0.2)
    assert (await call).outcome is Outcome.NOT_SENT
    assert books(await world.row(core)) == (1, 2, 0, 0)
    await world.gateways[1].drop()
    await store.close()


async def test_a_spent_budget_is_lifted_where_the_vendor_joins_the_sends_and_nothing_is_marked(
    world: World,
) -> None:
    await world.control(capabilities={"dedupe": True}, script=LOST_ONCE)
    core = await world.core(world.profile(Capabilities(dedupe=True)))
    await spent(world, core)
    without = await core.execute(CALLER, world.request(attempt=2, max_sends=2))
    assert without.outcome is Outcome.BUDGET_EXHAUSTED
    outcome = await core.execute(CALLER, granted(world))
    assert (outcome.outcome, outcome.possible_duplicates) == (Outcome.COMPLETED, 0)
    assert books(await world.row(core)) == (2, 2, 1, 0)
    assert await world.executions() == 1


async def test_a_grant_changes_nothing_of_what_is_settled(world: World) -> None:
    core = await world.core(world.profile(NEITHER))
    await core.execute(CALLER, world.request(max_sends=1))
    outcome = await core.execute(CALLER, granted(world))
    assert (outcome.outcome, outcome.replayed) == (Outcome.COMPLETED, True)
    row = await world.row(core)
    assert row.ledger.state is CallState.SETTLED
    assert books(row) == (1, 1, 0, 0)


async def test_a_grant_is_not_negative(world: World) -> None:
    core = await world.core()
    with pytest.raises(InvalidArgument) as refused:
        await core.execute(CALLER, world.request(granted_sends=-1))
    assert [each.field for each in refused.value.violations] == ["granted_sends"]
