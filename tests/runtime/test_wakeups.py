"""Receives wake-ups told before, between and during waits; checks that none is lost."""

from __future__ import annotations

import asyncio

import pytest

from kernel.runtime.wakeups import CHANGED, InProcessWakeups, ready_topic

A, B = ready_topic("a"), ready_topic("b")


@pytest.fixture
def wakeups() -> InProcessWakeups:
    return InProcessWakeups()


async def waiting(wakeups: InProcessWakeups, *topics: str) -> asyncio.Task[bool]:
    """A waiter that waits by now."""
    task = asyncio.ensure_future(wakeups.wait(frozenset(topics), 30.0))
    await asyncio.sleep(0)
    return task


async def test_a_waiter_is_woken_by_each_of_its_topics_and_by_no_other(
    wakeups: InProcessWakeups,
) -> None:
    one, other = await waiting(wakeups, A, CHANGED), await waiting(wakeups, B)
    await wakeups.publish(CHANGED, "key", "body")
    assert await one is True
    assert not other.done()
    await wakeups.publish(B, "", "")
    assert await other is True


async def test_a_wake_up_told_between_two_waits_is_not_lost(wakeups: InProcessWakeups) -> None:
    first = await waiting(wakeups, A)
    await wakeups.publish(A, "", "")
    assert await first is True
    await wakeups.publish(A, "", "")
    assert await wakeups.wait(frozenset({A}), 0.0) is True
    assert await wakeups.wait(frozenset({A}), 0.0) is False


async def test_a_wake_up_told_while_a_waiter_wakes_is_not_lost(wakeups: InProcessWakeups) -> None:
    first = await waiting(wakeups, A)
    await wakeups.publish(A, "", "")
    await wakeups.publish(A, "", "")
    assert await first is True
    assert await wakeups.wait(frozenset({A}), 0.0) is False  # two of them are one look


async def test_a_time_out_is_no_wake_up_and_the_next_one_is(wakeups: InProcessWakeups) -> None:
    assert await wakeups.wait(frozenset({A}), 0.0) is False
    await wakeups.publish(A, "", "")
    assert await wakeups.wait(frozenset({A}), 30.0) is True


async def test_telling_nobody_is_no_error(wakeups: InProcessWakeups) -> None:
    await wakeups.publish(A, "", "")
