"""Receives calls that are tried again and again; shows that sends and marks stay in bounds."""

from __future__ import annotations

from kernel.attempt import OnUnknown, OnUnknownMode, Outcome
from kernel.idempotency import Capabilities
from tests.vendor_proxy.world import CALLER, World

NEITHER = Capabilities()


async def test_i12_the_ledger_refuses_sends_above_the_budget_of_the_key(world: World) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "throttle", "retry_after": 0}])
    core = await world.core()
    outcomes = [
        (await core.execute(CALLER, world.request(attempt=n, max_sends=3))).outcome
        for n in range(1, 7)
    ]
    assert outcomes == [Outcome.THROTTLED] * 3 + [Outcome.BUDGET_EXHAUSTED] * 3
    assert await world.requests() == 3


async def test_case_1_09_the_proxy_and_its_http_client_repeat_nothing_by_themselves(
    world: World,
) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "throttle", "retry_after": 0}])
    core = await world.core()
    for _ in range(3):
        outcome = await core.execute(CALLER, world.request())
        assert (outcome.outcome, outcome.sends) == (Outcome.THROTTLED, 1)
    assert await world.requests() == 1


async def test_i12_a_later_request_cannot_raise_the_budget(world: World) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "throttle", "retry_after": 0}])
    core = await world.core()
    await core.execute(CALLER, world.request(max_sends=1))
    outcome = await core.execute(CALLER, world.request(attempt=2, max_sends=9))
    assert outcome.outcome is Outcome.BUDGET_EXHAUSTED
    assert await world.requests() == 1


async def test_i12_what_was_not_sent_gives_its_send_back(world: World) -> None:
    core = await world.core(world.profile(endpoint="http://no-such-host.invalid"))
    for attempt in range(1, 6):
        outcome = await core.execute(CALLER, world.request(attempt=attempt, max_sends=1))
        assert (outcome.outcome, outcome.sends) == (Outcome.NOT_SENT, 0)


async def test_i3_a_resend_where_the_vendor_can_do_neither_is_marked_and_bounded(
    world: World,
) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "hide_response"}])
    core = await world.core(world.profile(NEITHER))
    twice = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=2)
    seen = []
    for attempt in range(1, 6):
        outcome = await core.execute(
            CALLER, world.request(attempt=attempt, max_sends=9, on_unknown=twice)
        )
        seen.append((outcome.outcome, outcome.possible_duplicates, outcome.replayed))
    assert seen == [
        (Outcome.UNKNOWN, 0, False),
        (Outcome.UNKNOWN, 1, False),
        (Outcome.UNKNOWN, 2, False),
        (Outcome.UNKNOWN, 2, True),
        (Outcome.UNKNOWN, 2, True),
    ]
    assert await world.executions() == 3


async def test_i3_at_most_once_is_never_sent_again(world: World) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "hide_response"}])
    core = await world.core(world.profile(NEITHER))
    for attempt in range(1, 4):
        outcome = await core.execute(CALLER, world.request(attempt=attempt))
        assert outcome.outcome is Outcome.UNKNOWN
    assert await world.executions() == 1


async def test_i3_duplicates_stop_at_what_they_may_cost(world: World) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "hide_response"}])
    core = await world.core(world.profile(NEITHER, price_micros=100))
    rule = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=9, max_cost_micros=250)
    for attempt in range(1, 6):
        await core.execute(CALLER, world.request(attempt=attempt, max_sends=9, on_unknown=rule))
    assert await world.executions() == 3
    assert (await world.row(core)).ledger.possible_duplicates == 2


async def test_a_mark_is_taken_back_when_the_resend_surely_did_nothing(world: World) -> None:
    await world.control(
        script=[
            {"when": {"nth": 1}, "do": "hide_response"},
            {"when": {"nth": 2}, "do": "throttle", "retry_after": 0},
        ]
    )
    core = await world.core(world.profile(NEITHER))
    once = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)
    marks = []
    for attempt in (1, 2, 3):
        outcome = await core.execute(CALLER, world.request(attempt=attempt, on_unknown=once))
        marks.append((outcome.outcome, outcome.possible_duplicates))
    assert marks == [(Outcome.UNKNOWN, 0), (Outcome.THROTTLED, 0), (Outcome.COMPLETED, 1)]
    assert await world.executions() == 2


async def test_i10_costs_add_up_over_the_sends_of_a_key(world: World) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hide_response"}], price_micros=70)
    core = await world.core(world.profile(NEITHER))
    once = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)
    first = await core.execute(CALLER, world.request(on_unknown=once))
    second = await core.execute(CALLER, world.request(attempt=2, on_unknown=once))
    assert (first.cost_micros, second.cost_micros) == (0, 70)
