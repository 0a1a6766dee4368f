"""UNKNOWN and overdue ACCEPTED: the fence first, then the vendor's answer, whatever it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kernel.attempt import CallOutcome, QueryOutcome
from kernel.lifecycle import State
from kernel.receipt import ReceiptState
from kernel.store.tasks import TaskKey
from services.dispatcher.core import DispatcherCore
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.scripted_gateway import Fence
from tests.dispatcher.world import World, resolved, run_once

SECOND = 1_000_000


async def unknown(world: World, core: DispatcherCore, answer: CallOutcome = act.UNKNOWN) -> TaskKey:
    """A task whose call nobody can vouch for."""
    key = await world.task()
    world.gateway.executes = [answer]
    await run_once(core)
    assert await world.state(key) is State.UNKNOWN
    world.gateway.calls.clear()
    return key


async def accepted(world: World, core: DispatcherCore) -> TaskKey:
    """A task that its vendor holds, whose receipt is overdue."""
    key = await world.task()
    world.gateway.executes = [act.ACCEPTED]
    await run_once(core)
    assert await world.state(key) is State.ACCEPTED
    world.clock.advance(5.0)
    world.gateway.calls.clear()
    return key


async def test_a_lost_link_is_unknown_and_the_first_step_is_always_the_fence(
    world: World,
) -> None:
    key = await world.task()
    core = world.core()
    world.gateway.executes = [act.LINK_LOST]
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.TOO_EARLY]
    await run_once(core)
    task = await world.get(key)
    assert (task.state, task.wake_at) == (State.UNKNOWN, world.clock.now_micros())
    await resolved(core)
    stored = task.idempotency_key
    assert world.gateway.calls == [
        act.Call("execute", stored, 1),
        act.Call("fence", stored, 1),
        act.Call("query", stored),
    ]


@pytest.mark.parametrize(
    ("fence", "state", "asked"),
    [
        (act.NEVER_BEGUN, State.RETRY_WAIT, ["fence"]),
        (act.STILL_RUNS, State.UNKNOWN, ["fence"]),
        (act.ended(act.COMPLETED), State.SUCCEEDED, ["fence"]),
        (act.ended(act.ACCEPTED), State.ACCEPTED, ["fence"]),
        (act.ended(act.REJECTED), State.FAILED, ["fence"]),
        (act.ended(act.THROTTLED), State.RETRY_WAIT, ["fence"]),
        (act.ended(act.NOT_SENT), State.RETRY_WAIT, ["fence"]),
        (act.IN_DOUBT, State.SUCCEEDED, ["fence", "query"]),
    ],
    ids=lambda value: (
        str(value[0]) + str(value[1] and value[1].outcome) if isinstance(value, tuple) else None
    ),
)
async def test_each_answer_of_the_fence_moves_an_unknown_task(
    world: World, fence: Fence, state: State, asked: list[str]
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [fence]
    world.gateway.queries = [act.settled(act.COMPLETED)]
    await resolved(core)
    task = await world.get(key)
    assert task.state is state
    assert world.gateway.verbs() == asked
    doubt = state in (State.UNKNOWN, State.ACCEPTED)
    assert task.maybe_executed is doubt


@pytest.mark.parametrize(
    ("answer", "state", "wakes_in", "operator"),
    [
        (act.settled(act.COMPLETED), State.SUCCEEDED, None, False),
        (act.settled(act.REJECTED), State.FAILED, None, False),
        (act.settled(act.ACCEPTED), State.ACCEPTED, 5.0, False),
        (act.RUNNING, State.ACCEPTED, 1.0, False),
        (act.NOT_FOUND, State.RETRY_WAIT, 1.0, False),
        (act.TOO_EARLY, State.UNKNOWN, 3.0, False),
        (act.CANNOT_TELL, State.UNKNOWN, 3600.0, True),
        (act.MAY_RESEND, State.RETRY_WAIT, 1.0, False),
        (act.SAFE_RESEND, State.RETRY_WAIT, 1.0, False),
    ],
    ids=["completed", "rejected", "accepted", "running", "not_found", "too_early", "cannot_tell",
         "marked_resend", "safe_resend"],
)  # fmt: skip
async def test_each_answer_of_the_vendor_moves_an_unknown_task(
    world: World, answer: QueryOutcome, state: State, wakes_in: float | None, operator: bool
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [answer]
    await resolved(core)
    task = await world.get(key)
    expected = None if wakes_in is None else world.clock.now_micros() + int(wakes_in * SECOND)
    assert (task.state, task.wake_at, task.needs_operator) == (state, expected, operator)
    cleared = state in (State.SUCCEEDED, State.FAILED) or answer is act.NOT_FOUND
    assert task.maybe_executed is not cleared


@pytest.mark.parametrize(
    ("answer", "state", "wakes_in"),
    [
        (act.settled(act.COMPLETED), State.SUCCEEDED, None),
        (act.settled(act.REJECTED), State.FAILED, None),
        (act.RUNNING, State.ACCEPTED, 1.0),
        (QueryOutcome(act.RUNNING.answer), State.ACCEPTED, 1.0),
        (act.TOO_EARLY, State.ACCEPTED, 3.0),
        (act.CANNOT_TELL, State.UNKNOWN, 3600.0),
        (act.NOT_FOUND, State.UNKNOWN, 0.0),
    ],
    ids=["completed", "rejected", "running", "running_no_id", "too_early", "cannot_tell",
         "not_found"],
)  # fmt: skip
async def test_each_answer_of_the_vendor_moves_an_overdue_accepted_task(
    world: World, answer: QueryOutcome, state: State, wakes_in: float | None
) -> None:
    core = world.core()
    key = await accepted(world, core)
    world.gateway.queries = [answer]
    await resolved(core)
    task = await world.get(key)
    expected = None if wakes_in is None else world.clock.now_micros() + int(wakes_in * SECOND)
    assert (task.state, task.wake_at) == (state, expected)
    assert world.gateway.verbs() == ["query"]


async def test_what_waits_for_the_operator_does_not_become_accepted_again(world: World) -> None:
    core = world.core()
    key = await accepted(world, core)
    world.gateway.queries = [act.CANNOT_TELL]
    world.gateway.fences = [act.ended(act.ACCEPTED)]
    await resolved(core)
    since = (await world.get(key)).unknown_since
    world.clock.advance(3600.0)
    await resolved(core)
    task = await world.get(key)
    assert (task.state, task.needs_operator) == (State.UNKNOWN, True)
    assert task.unknown_since == since


async def test_an_answer_that_comes_too_early_backs_off_and_never_spins(world: World) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [act.STILL_RUNS]
    waits = []
    for _ in range(5):
        assert await resolved(core) == 1
        assert await resolved(core) == 0, "the row was due again at once"
        task = await world.get(key)
        assert task.wake_at is not None
        waits.append((task.wake_at - world.clock.now_micros()) / SECOND)
        world.clock.advance(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


async def test_a_marked_resend_is_marked_before_it_is_sent(world: World) -> None:
    """I3: a receipt may close the task before the resend's own outcome comes."""
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [act.IN_DOUBT]
    world.gateway.queries = [act.MAY_RESEND]
    await resolved(core)
    assert (await world.get(key)).possible_duplicates == 1
    world.clock.advance(1.0)
    await resolved(core)
    world.gateway.executes = [act.LINK_LOST]
    await run_once(core)
    assert await world.receive(key) == "APPLIED"
    task = await world.get(key)
    assert (task.state, task.possible_duplicates) == (State.SUCCEEDED, 1)


async def test_a_lost_link_of_the_resolver_changes_nothing_and_is_tried_again(
    world: World,
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [act.LINK_LOST, act.ended(act.COMPLETED)]
    await resolved(core)
    assert await world.state(key) is State.UNKNOWN
    assert await resolved(core) == 0
    world.clock.advance(5.0)
    await resolved(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_a_slow_answer_is_not_asked_for_twice(world: World) -> None:
    core = world.core()
    await unknown(world, core)
    world.gateway.fence_gate = asyncio.Event()
    world.gateway.fences = [act.ended(act.COMPLETED)]
    await core.timer_once()
    await world.gateway.fence_asked.wait()
    for _ in range(3):
        world.clock.advance(5.0)
        assert await core.timer_once() == 1
    world.gateway.fence_gate.set()
    await core.resolver.idle()
    assert world.gateway.verbs() == ["fence"]


async def test_a_receipt_that_comes_while_the_vendor_is_asked_is_not_undone(
    world: World,
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [act.IN_DOUBT]
    query = world.gateway.query

    async def slow_query(idempotency_key: str, vendor: str) -> QueryOutcome:
        assert await world.receive(key) == "APPLIED"
        return await query(idempotency_key, vendor)

    world.gateway.queries = [act.CANNOT_TELL]
    world.gateway.query = slow_query  # type: ignore[method-assign]
    await resolved(core)
    assert await world.state(key) is State.SUCCEEDED


async def test_a_failed_receipt_beside_a_lost_link_settles_the_task(world: World) -> None:
    core = world.core()
    key = await unknown(world, core)
    assert await world.receive(key, ReceiptState.FAILED) == "APPLIED"
    assert await world.state(key) is State.FAILED


@pytest.mark.parametrize(
    "answer", [act.THROTTLED, act.BUSY, act.NOT_SENT], ids=["throttled", "busy", "not_sent"]
)
async def test_i7_a_refusal_that_was_lost_on_the_way_ends_with_the_wish_to_cancel(
    world: World, answer: CallOutcome
) -> None:
    core = world.core()
    key = await unknown(world, core)
    await world.tombstone(key)
    world.gateway.fences = [act.ended(answer)]
    await resolved(core)
    assert await world.state(key) is State.CANCELLED


async def test_i7_a_refusal_that_was_lost_on_the_way_ends_with_the_deadline(
    world: World,
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.clock.advance(60.0)
    world.gateway.fences = [act.ended(act.THROTTLED)]
    await resolved(core)
    assert await world.state(key) is State.EXPIRED


async def test_a_refusal_of_the_last_of_several_sends_does_not_speak_for_the_first(
    world: World,
) -> None:
    core = world.core()
    key = await unknown(world, core)
    world.gateway.fences = [
        act.ended(replace(act.REJECTED, sends=2, possible_duplicates=1, settles_key=False))
    ]
    await resolved(core)
    task = await world.get(key)
    assert (task.state, task.needs_operator) == (State.UNKNOWN, True)


async def test_an_accepted_task_that_nobody_wants_is_cancelled_at_the_vendor(
    world: World,
) -> None:
    core = world.core()
    key = await accepted(world, core)
    await world.tombstone(key)
    world.gateway.cancels = True
    await resolved(core)
    assert await world.state(key) is State.CANCELLED
    assert world.gateway.verbs() == ["cancel"]


async def test_an_accepted_task_that_the_vendor_would_not_cancel_is_asked_about(
    world: World,
) -> None:
    core = world.core()
    key = await accepted(world, core)
    await world.tombstone(key)
    world.gateway.queries = [act.settled(act.COMPLETED)]
    await resolved(core)
    assert await world.state(key) is State.SUCCEEDED
    assert world.gateway.verbs() == ["cancel", "query"]
