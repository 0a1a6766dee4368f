"""Every outcome of an Execute, from the claim to what the row says afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kernel.attempt import CallOutcome, CallRequest
from kernel.lifecycle import State
from kernel.store import markers
from services.dispatcher.gateway import Occupied
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.dispatcher.world import POOL, World, claimed, resolved, run_once, settled

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("answer", "state", "reason", "wakes_in", "maybe"),
    [
        (act.COMPLETED, State.SUCCEEDED, "", None, False),
        (act.RESULT_LOST, State.FAILED, "RESULT_LOST", None, False),
        (act.ACCEPTED, State.ACCEPTED, "", 5.0, True),
        (act.REJECTED, State.FAILED, "INVALID_INPUT", None, False),
        (act.BUSY, State.RETRY_WAIT, "BUSY", 1.0, False),
        (act.THROTTLED, State.RETRY_WAIT, "THROTTLED", 1.0, False),
        (act.NOT_SENT, State.RETRY_WAIT, "CONNECT_REFUSED", 1.0, False),
        (act.FULL, State.READY, "NO_PERMIT", 60.0, False),
        (act.UNKNOWN, State.UNKNOWN, "READ_TIMEOUT", 0.0, True),
        (act.IN_PROGRESS, State.UNKNOWN, "IN_PROGRESS", 1.0, True),
        (act.STALE, State.UNKNOWN, "STALE_ATTEMPT", 0.0, True),
        (act.MISMATCH, State.FAILED, "REQUEST_MISMATCH", None, False),
        (act.EXHAUSTED, State.FAILED, "BUDGET_EXHAUSTED", None, False),
        (act.LINK_LOST, State.UNKNOWN, "LINK_LOST_UNAVAILABLE", 0.0, True),
        (ZeroDivisionError(), State.UNKNOWN, "DISPATCHER_FAULT", 0.0, True),
    ],
    ids=lambda value: getattr(value, "outcome", type(value).__name__),
)
async def test_each_outcome_settles_to_its_state(
    world: World,
    answer: CallOutcome | Exception,
    state: State,
    reason: str,
    wakes_in: float | None,
    maybe: bool,
) -> None:
    key = await world.task()
    world.gateway.executes = [answer]
    await run_once(world.core())
    task = await world.get(key)
    assert (task.state, task.reason, task.maybe_executed) == (state, reason, maybe)
    expected = None if wakes_in is None else world.clock.now_micros() + int(wakes_in * SECOND)
    assert task.wake_at == expected
    assert task.owner == ""
    assert task.attempt == 1


async def test_a_result_is_stored_with_its_cost_and_tells_the_parent(world: World) -> None:
    key = await world.task()
    await run_once(world.core())
    task = await world.get(key)
    assert task.scores == act.SCORES
    assert (task.external_id, task.cost_micros, task.sends) == ("x-1", 7, 1)
    assert await world.store.read(markers.of_parent, key[0])


async def test_a_case_1_02_every_attempt_carries_the_stored_key_and_nothing_volatile(
    world: World,
) -> None:
    key = await world.task()
    stored = (await world.get(key)).idempotency_key
    core = world.core()
    world.gateway.executes = [act.NOT_SENT, act.FULL, act.COMPLETED]
    await run_once(core)
    world.clock.advance(1.0)
    await resolved(core)
    await run_once(core)
    world.clock.advance(1.0)
    await run_once(core)
    assert await world.state(key) is State.SUCCEEDED
    requests = world.gateway.requests
    assert {each.idempotency_key for each in requests} == {stored}
    assert [each.attempt for each in requests] == [1, 2, 3]
    assert len({replace(each, attempt=0) for each in _hashable(requests)}) == 1


def _hashable(requests: list[CallRequest]) -> list[Any]:
    return [replace(each, units=tuple(sorted(each.units.items()))) for each in requests]  # type: ignore[arg-type]


async def test_want_of_a_permit_charges_nothing_and_is_not_asked_again_at_once(
    world: World,
) -> None:
    key = await world.task()
    core = world.core()
    world.gateway.executes = [act.FULL, act.COMPLETED]
    await run_once(core)
    task = await world.get(key)
    assert (task.state, task.tries, task.sends) == (State.READY, 0, 0)
    for _ in range(5):
        await run_once(core)
    assert world.gateway.verbs() == ["execute"], "a full pool was asked again in a hot loop"
    world.clock.advance(0.5)
    await run_once(core)
    assert await world.state(key) is State.SUCCEEDED
    assert world.gateway.verbs() == ["execute", "execute"]


async def test_with_the_proxy_away_nothing_is_claimed(world: World) -> None:
    key = await world.task()
    core = world.core()
    world.gateway.away = True
    assert await claimed(core) == []
    assert await world.state(key) is State.READY
    assert (await world.get(key)).attempt == 0
    world.gateway.away = False
    assert await claimed(core) == []  # it is not asked again at once
    world.clock.advance(1.0)
    await run_once(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_no_more_is_claimed_than_the_proxy_has_free_permits(world: World) -> None:
    keys = await world.tasks(5)
    core = world.core(concurrency=4)
    hang = act.Hang()
    world.gateway.executes = [hang]
    world.gateway.occupied_by = {POOL: Occupied(limit=3, in_use=1)}
    assert len(await claimed(core)) == 2
    world.gateway.occupied_by = {POOL: Occupied(limit=3, in_use=3)}
    assert len(await claimed(core)) == 2
    states = [await world.state(key) for key in keys]
    assert states.count(State.IN_FLIGHT) == 2
    hang.let_go.set()
    await settled(core)


async def test_case_2_01_a_worker_with_one_place_claims_one_of_ten(world: World) -> None:
    keys = await world.tasks(10)
    core = world.core(concurrency=1)
    for number in range(1, 11):
        assert len(await claimed(core)) == 1
        await settled(core)
        states = [await world.state(key) for key in keys]
        assert states.count(State.SUCCEEDED) == number
        world.clock.advance(25.0 / 10)
    assert {(await world.get(key)).attempt for key in keys} == {1}


async def test_case_2_07_three_wakeups_to_two_dispatchers_are_one_claim(world: World) -> None:
    key = await world.task()
    one, two = world.core(), world.core()
    await asyncio.gather(*(claimed(core) for core in (one, two, one, two, one)))
    await settled(one)
    await settled(two)
    assert world.gateway.verbs() == ["execute"]
    task = await world.get(key)
    assert (task.state, task.attempt) == (State.SUCCEEDED, 1)
    assert await world.path(key) == [State.READY, State.IN_FLIGHT, State.SUCCEEDED]


async def test_priority_classes_come_in_order_and_within_one_the_oldest_first(
    world: World,
) -> None:
    first, second = await world.tasks(2)
    gateway = ScriptedGateway()
    core = world.core(gateway, concurrency=1)
    await run_once(core)
    await run_once(core)
    keys = [(await world.get(key)).idempotency_key for key in (first, second)]
    assert [each.key for each in gateway.calls] == keys


async def test_an_accepted_answer_whose_receipt_came_first_is_settled_with_it(
    world: World,
) -> None:
    key = await world.task()
    core = world.core()
    hang = act.Hang(act.ACCEPTED)
    world.gateway.executes = [hang]
    await claimed(core)
    await hang.begun.wait()
    assert await world.receive(key) == "STORED"
    hang.let_go.set()
    await settled(core)
    assert await world.state(key) is State.SUCCEEDED
    assert (await world.get(key)).wake_at is None
