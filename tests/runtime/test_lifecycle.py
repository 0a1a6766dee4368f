"""Receives loops whose rounds fail and heal; checks what health says, and that none dies."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kernel.environment import Environment
from kernel.runtime.lifecycle import Loops
from tests.manual_clock import ManualClock


class Rounds:
    """A round that waits for the test, and then does what it was told."""

    def __init__(self) -> None:
        self.done = 0
        self._ended = asyncio.Event()
        self._next: asyncio.Queue[BaseException | None] = asyncio.Queue()

    def go(self, error: BaseException | None = None) -> None:
        self._next.put_nowait(error)

    async def reached(self, rounds: int) -> None:
        while self.done < rounds:
            self._ended.clear()
            await self._ended.wait()

    async def one_round(self) -> None:
        error = await self._next.get()
        self.done += 1
        self._ended.set()
        if error is not None:
            raise error


class Health:
    """What the loops told about themselves, one by one."""

    def __init__(self, loops: Loops) -> None:
        self._told: asyncio.Queue[bool] = asyncio.Queue()
        loops.on_health = self._hear

    async def next(self) -> bool:
        return await self._told.get()

    @property
    def silent(self) -> bool:
        return self._told.empty()

    async def _hear(self, healthy: bool) -> None:
        self._told.put_nowait(healthy)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def loops(clock: ManualClock) -> Loops:
    return Loops("tests", Environment(clock=clock))


async def test_a_failing_round_makes_unhealthy_until_a_later_one_succeeds(
    loops: Loops, clock: ManualClock
) -> None:
    health, rounds = Health(loops), Rounds()
    loops.start("claim", rounds.one_round)
    assert loops.healthy
    rounds.go(ValueError("no"))
    assert await health.next() is False
    assert not loops.healthy
    await clock.sleeping(1)
    clock.advance(5.0)
    rounds.go()
    assert await health.next() is True
    assert loops.healthy
    rounds.go()
    rounds.go()
    await rounds.reached(4)
    assert health.silent
    await loops.stop()


async def test_one_loop_that_heals_does_not_hide_another_that_fails(
    loops: Loops, clock: ManualClock
) -> None:
    health = Health(loops)
    sick, well = Rounds(), Rounds()
    loops.start("sick", sick.one_round)
    loops.start("well", well.one_round)
    for rounds in (sick, well):
        rounds.go(ValueError("no"))
        assert await health.next() is False
    await clock.sleeping(2)
    clock.advance(5.0)
    well.go()
    assert await health.next() is False
    assert not loops.healthy
    sick.go()
    assert await health.next() is True
    await loops.stop()


async def test_a_loop_that_fails_waits_longer_each_time_and_never_dies(
    loops: Loops, clock: ManualClock
) -> None:
    health, rounds = Health(loops), Rounds()
    loops.start("claim", rounds.one_round)
    waits = []
    for _ in range(8):
        rounds.go(ValueError("no"))
        assert await health.next() is False
        before = clock.now_micros()
        await clock.sleeping(1)
        (sleeper,) = clock._sleepers
        waits.append((sleeper.until - before) / 1_000_000)
        clock.advance(5.0)
    for failures, wait in enumerate(waits):
        ceiling = min(0.1 * 2**failures, 5.0)
        assert ceiling / 2 <= wait <= ceiling
    rounds.go()
    assert await health.next() is True
    await loops.stop()


async def test_i8_the_log_names_the_loop_and_the_kind_of_fault_and_not_its_text(
    loops: Loops,
) -> None:
    health, rounds = Health(loops), Rounds()
    with capture_logs() as logs:
        loops.start("claim", rounds.one_round)
        rounds.go(ValueError("PRIVATE-TEXT"))
        await health.next()
    (line,) = logs
    assert (line["service"], line["loop"], line["error"], line["failures"]) == (
        "tests",
        "claim",
        "ValueError",
        1,
    )
    assert "PRIVATE" not in repr(line)
    await loops.stop()


async def test_a_loop_that_ends_by_itself_is_unhealthy(loops: Loops) -> None:
    rounds = Rounds()
    loops.start("claim", rounds.one_round)
    (task,) = loops._tasks.values()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not loops.healthy
    await loops.stop()


async def test_stopping_ends_every_loop_at_its_next_wait(loops: Loops) -> None:
    rounds = [Rounds(), Rounds()]
    for at, each in enumerate(rounds):
        loops.start(f"loop-{at}", each.one_round)
    await asyncio.sleep(0)
    assert not loops.stopping
    tasks = list(loops._tasks.values())
    await loops.stop()
    assert loops.stopping
    assert all(task.done() for task in tasks)
    rounds[0].go()
    await asyncio.sleep(0)
    assert rounds[0].done == 0
    await loops.stop()
