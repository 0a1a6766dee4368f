"""What becomes of a task whose holder's lease ran out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel.lifecycle import State
from kernel.receipt import ReceiptState
from tests import factories
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.scripted_gateway import Fence
from tests.dispatcher.world import (
    AT_LEAST_ONCE,
    BOUNDS,
    World,
    claimed,
    in_flight_elsewhere,
    resolved,
    settled,
)


@pytest.mark.parametrize(
    ("fence", "state", "asked"),
    [
        (act.NEVER_BEGUN, State.SUCCEEDED, ["fence", "execute"]),
        (act.STILL_RUNS, State.SUCCEEDED, ["fence", "execute"]),
        (act.ended(act.COMPLETED), State.SUCCEEDED, ["fence", "execute"]),
        (act.IN_DOUBT, State.UNKNOWN, ["fence"]),
    ],
    ids=["never_begun", "in_progress", "settled", "unknown"],
)
async def test_a_takeover_fences_the_old_attempt_and_goes_on_with_its_own(
    world: World, fence: Fence, state: State, asked: list[str]
) -> None:
    key = await world.task()
    task = await in_flight_elsewhere(world, key)
    world.gateway.fences = [fence]
    await resolved(world.core())
    assert world.gateway.verbs() == asked
    assert world.gateway.calls[0].attempt == task.attempt == 1
    after = await world.get(key)
    assert (after.state, after.attempt) == (state, 2)
    if asked[-1] == "execute":
        assert world.gateway.calls[1].attempt == 2


async def test_what_is_in_doubt_at_a_takeover_is_asked_about_before_it_is_sent_again(
    world: World,
) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    core = world.core()
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.MAY_RESEND]
    await resolved(core)
    assert world.gateway.verbs() == ["fence"]
    await resolved(core)
    assert world.gateway.verbs() == ["fence", "fence", "query"]
    task = await world.get(key)
    assert (task.state, task.possible_duplicates) == (State.RETRY_WAIT, 1)


@pytest.mark.parametrize("passed", [0.0, 60.0], ids=["cancelled", "expired"])
async def test_case_2_06_a_task_whose_owner_died_before_the_send_is_closed_without_one(
    world: World, passed: float
) -> None:
    key = await world.task()
    dead = await in_flight_elsewhere(world, key)
    answer = await world.cancel(key)
    assert [each.answer for each in answer.tasks] == ["TOO_LATE"]
    world.clock.advance(passed)
    world.gateway.fences = [act.NEVER_BEGUN]
    core = world.core()
    await resolved(core)
    assert await world.state(key) is State.CANCELLED
    assert world.gateway.verbs() == ["fence"]

    # The old worker comes back with a result of its own.
    core.claimer.adopt(dead, act.COMPLETED, core.claimer.leases.steady())
    await settled(core)
    assert await world.state(key) is State.CANCELLED
    assert core.claimer.fenced == 1


async def test_an_unwanted_task_that_nobody_began_expires_at_its_deadline(world: World) -> None:
    key = await world.task(seconds=20.0)
    await in_flight_elsewhere(world, key)
    world.gateway.fences = [act.NEVER_BEGUN]
    await resolved(world.core())
    assert await world.state(key) is State.EXPIRED
    assert world.gateway.verbs() == ["fence"]


async def test_a_cancelled_task_that_may_have_been_sent_is_asked_about_and_never_sent(
    world: World,
) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    await world.cancel(key)
    core = world.core()
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.MAY_RESEND]
    await resolved(core)
    await resolved(core)
    task = await world.get(key)
    assert (task.state, task.needs_operator) == (State.UNKNOWN, True)
    assert "execute" not in world.gateway.verbs()


async def test_a_stored_receipt_means_that_nothing_is_sent_again(world: World) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    assert await world.receive(key) == "STORED"
    world.gateway.fences = [act.ended(replace(act.COMPLETED, possible_duplicates=1))]
    await resolved(world.core())
    task = await world.get(key)
    assert (task.state, task.possible_duplicates) == (State.SUCCEEDED, 1)
    assert world.gateway.verbs() == ["fence"]


async def test_a_stored_receipt_settles_what_the_ledger_is_in_doubt_about(world: World) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    await world.receive(key, ReceiptState.FAILED)
    world.gateway.fences = [act.STILL_RUNS]
    await resolved(world.core())
    assert await world.state(key) is State.FAILED
    assert world.gateway.verbs() == ["fence"]


async def test_a_refusal_that_died_with_its_dispatcher_is_final_and_no_riddle(
    world: World,
) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    world.gateway.fences = [act.ended(act.REJECTED)]
    world.gateway.executes = [act.REJECTED]
    await resolved(world.core())
    task = await world.get(key)
    assert (task.state, task.maybe_executed) == (State.FAILED, False)


async def test_after_a_refused_send_a_takeover_is_free_to_expire_and_to_be_cancelled(
    world: World,
) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    world.gateway.fences = [act.ended(act.THROTTLED)]
    world.gateway.executes = [replace(act.THROTTLED, sends=2)]
    await resolved(world.core())
    assert (await world.get(key)).maybe_executed is False
    answer = await world.cancel(key)
    assert [each.answer for each in answer.tasks] == ["CANCELLED"]


async def test_the_doubt_of_an_earlier_send_outlives_a_takeover(world: World) -> None:
    key = await world.task()
    core = world.core()
    world.gateway.executes = [act.UNKNOWN]
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.SAFE_RESEND]
    await claimed(core)
    await settled(core)
    await resolved(core)
    world.clock.advance(1.0)
    await core.timer_once()
    await in_flight_elsewhere(world, key)
    refused = replace(act.REJECTED, sends=2, settles_key=False)
    world.gateway.fences = [act.ended(refused)]
    world.gateway.executes = [refused]
    await resolved(core)
    task = await world.get(key)
    assert (task.state, task.needs_operator) == (State.UNKNOWN, True)


async def test_with_the_proxy_away_an_ended_lease_waits_for_it(world: World) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    core = world.core()
    world.gateway.away = True
    await resolved(core)
    assert (await world.get(key)).attempt == 1
    world.gateway.away = False
    world.gateway.fences = [act.NEVER_BEGUN]
    world.clock.advance(5.0)
    await resolved(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_of_two_that_take_over_one_wins(world: World) -> None:
    key = await world.task()
    stale = await in_flight_elsewhere(world, key)
    one, two = world.core(), world.core()
    world.gateway.fences = [act.NEVER_BEGUN]
    await one.resolver.take_over(stale, wanted=True)
    await two.resolver.take_over(stale, wanted=True)
    assert (len(one.claimer.held), len(two.claimer.held)) == (1, 0)
    await settled(one)
    assert world.gateway.verbs() == ["fence", "fence", "execute"]
    assert (await world.get(key)).attempt == 2


async def test_a_takeover_of_a_pool_that_is_no_longer_declared_ends_somewhere(
    world: World,
) -> None:
    key = await world.task()
    await in_flight_elsewhere(world, key)
    core = world.core()
    core.claimer.pools.clear()
    world.gateway.fences = [act.NEVER_BEGUN]
    await resolved(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_i2_a_settle_without_its_fence_changes_no_row_and_keeps_result_and_cost(
    world: World,
) -> None:
    """Case 2-02: a paused worker comes back after another has stored a result."""
    key = await world.task()
    paused, other = world.core(act.ScriptedGateway()), world.core()
    hang = act.Hang(replace(act.COMPLETED, scores={"spam": 0.9}, cost_micros=11))
    _gateway(paused).executes = [hang]
    await claimed(paused)
    await hang.begun.wait()
    world.clock.advance(BOUNDS.lease_seconds + 0.001)
    world.gateway.fences = [act.NEVER_BEGUN]
    await resolved(other)
    before = await world.get(key)
    assert (before.state, before.attempt, before.scores) == (State.SUCCEEDED, 2, act.SCORES)

    hang.let_go.set()
    await settled(paused)
    assert await world.get(key) == before
    assert paused.claimer.fenced == 1
    (late,) = await world.late(key)
    assert (late.attempt, late.cost_micros, late.disposition) == (1, 11, "CONFLICT")


async def test_case_2_02_a_resumed_worker_that_only_now_sends_is_refused_as_stale(
    world: World,
) -> None:
    key = await world.task()
    stale = await in_flight_elsewhere(world, key)
    other = world.core()
    world.gateway.fences = [act.NEVER_BEGUN]
    await resolved(other)
    before = await world.get(key)
    resumed = world.core(act.ScriptedGateway(executes=[act.STALE]))
    resumed.claimer.run_taken_over(stale, resumed.claimer.leases.steady())
    await settled(resumed)
    assert await world.get(key) == before
    assert resumed.claimer.fenced == 1


async def test_a_late_result_of_a_task_that_is_held_again_waits_for_its_settle(
    world: World,
) -> None:
    key = await world.task()
    stale = await in_flight_elsewhere(world, key)
    other, old = world.core(), world.core(act.ScriptedGateway())
    hang = act.Hang(act.UNKNOWN)
    world.gateway.executes = [hang]
    world.gateway.fences = [act.NEVER_BEGUN]
    await other.timer_once()
    await other.resolver.idle()
    await hang.begun.wait()
    old.claimer.adopt(stale, act.COMPLETED, old.claimer.leases.steady())
    await settled(old)
    assert await world.state(key) is State.IN_FLIGHT
    hang.let_go.set()
    await settled(other)
    task = await world.get(key)
    assert (task.state, task.scores, task.cost_micros) == (State.SUCCEEDED, act.SCORES, 7)


async def test_i12_the_request_of_a_takeover_carries_the_tasks_own_bounds(world: World) -> None:
    of = factories.parent(world.clock.now_micros())
    new = replace(factories.task(of, 1, "m"), max_sends=2, on_unknown=AT_LEAST_ONCE)
    await world.store.write(factories.add_case, of, [new])
    await in_flight_elsewhere(world, (of.id, 1))
    world.gateway.fences = [act.NEVER_BEGUN]
    await resolved(world.core())
    (request,) = world.gateway.requests
    assert (request.max_sends, request.on_unknown) == (2, AT_LEAST_ONCE)
    assert (request.deadline, request.payload_ref) == (of.deadline, "ref-1")


def _gateway(core: object) -> act.ScriptedGateway:
    gateway = core.claimer._gateway  # type: ignore[attr-defined]
    assert isinstance(gateway, act.ScriptedGateway)
    return gateway
