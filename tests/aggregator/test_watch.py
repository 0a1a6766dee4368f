"""Receives cases that change; checks what a watcher is shown, and when the stream ends."""

from __future__ import annotations

import asyncio

import pytest

from kernel.errors import InvalidArgument, NotFound, StoreAway
from kernel.lifecycle import CaseState
from kernel.runtime.wakeups import CHANGED, InProcessWakeups
from services.aggregator.core import AggregatorCore
from tests import factories
from tests.aggregator.world import World


async def test_a_watcher_sees_each_change_until_the_verdict(world: World) -> None:
    case_id = await world.case("text", "image")
    watch = world.core.watch_case(case_id)
    first = await anext(watch)
    assert (first.state, first.missing) == (CaseState.PENDING, (f"{case_id}.1", f"{case_id}.2"))
    await world.succeed(case_id, 1)
    second = await anext(watch)
    assert second.missing == (f"{case_id}.2",)
    await world.succeed(case_id, 2)
    assert (await anext(watch)).missing == ()
    await world.core.round()
    assert (await anext(watch)).state is CaseState.APPROVED
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_closed_case_is_shown_once(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    await world.core.round()
    assert [v.state async for v in world.core.watch_case(case_id)] == [CaseState.APPROVED]


async def test_a_case_in_review_is_watched_until_a_reviewer_closes_it(world: World) -> None:
    await world.policy(factories.policy(0.9, 0.5, version=2))
    case_id = await world.case("text", policy_version="2")
    await world.succeed(case_id, 1, spam=0.6)
    await world.core.round()
    watch = world.core.watch_case(case_id)
    assert (await anext(watch)).state is CaseState.IN_REVIEW
    waiting = asyncio.ensure_future(anext(watch))
    await world.core.resolve_review(case_id, CaseState.APPROVED, 2, "ada")
    assert (await waiting).state is CaseState.APPROVED
    assert [view async for view in watch] == []


async def test_a_watcher_is_woken_by_a_round_and_need_not_wait_for_the_poll(world: World) -> None:
    core = AggregatorCore(world.store, world.environment, world.wakeups, poll_seconds=3600.0)
    case_id = await world.case("text")
    watch = core.watch_case(case_id)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await world.succeed(case_id, 1)
    await core.round()
    assert (await waiting).state is CaseState.APPROVED


async def test_a_round_that_did_nothing_wakes_no_watcher(world: World) -> None:
    case_id = await world.case("text")
    await world.core.round()
    change = world.core._changes.next()
    assert await world.core.round() == 0
    assert not change.is_set()
    await world.succeed(case_id, 1)
    assert await world.core.round() > 0
    assert change.is_set()


class SignalledWakeups(InProcessWakeups):
    """Says when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = asyncio.Event()

    async def wait(self, topics: frozenset[str], timeout_seconds: float) -> bool:
        self.waited.set()
        return await super().wait(topics, timeout_seconds)


async def test_a_loop_waits_for_a_wake_up_then_decides_all(world: World) -> None:
    wakeups = SignalledWakeups()
    core = AggregatorCore(world.store, world.environment, wakeups, poll_seconds=3600.0)
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    looping = asyncio.ensure_future(core.run_round())
    await wakeups.waited.wait()
    assert (await core.get_case(case_id)).state is CaseState.PENDING
    await wakeups.publish(CHANGED, case_id, "")
    await looping
    assert (await core.get_case(case_id)).state is CaseState.APPROVED


async def test_with_every_wake_up_lost_the_poll_finds_the_work(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    await world.core.run_round()
    assert (await world.core.get_case(case_id)).state is CaseState.APPROVED


async def test_stopping_ends_every_watch_with_a_word_to_come_again(world: World) -> None:
    case_id = await world.case("text")
    watch = world.core.watch_case(case_id)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    world.core.stop_watching()
    with pytest.raises(StoreAway) as ended:
        await waiting
    assert ended.value.reason == "STOPPING"


async def test_watching_nothing_is_told_at_once(world: World) -> None:
    with pytest.raises(NotFound):
        await anext(world.core.watch_case("0" * 32))
    with pytest.raises(InvalidArgument):
        await anext(world.core.watch_case("nothing"))
