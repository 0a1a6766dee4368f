"""Receives results, deadlines and cancels that meet; checks that each case is decided once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kernel.lifecycle import CaseState, State
from kernel.store import parents, snapshots, tasks
from kernel.store.transaction import CommitInDoubtError, Tx
from services.aggregator import snapshot, verdicts
from services.aggregator.verdicts import Ruling, Written
from tests import factories
from tests.aggregator.world import World


async def look(world: World) -> list[Ruling]:
    """The first half of a round: everything is read and decided, nothing is written."""
    return verdicts.rule(await world.store.read(snapshot.look, 0, 100, {}, {}))


async def write(world: World, rulings: list[Ruling]) -> Written:
    """The second half."""
    return await world.store.write(verdicts.write, rulings)


async def test_case_6_01_two_last_results_at_once_decide_300_cases_once_each(
    world: World,
) -> None:
    repetitions = 300
    replica = world.replica()
    case_ids = [await world.case("text", "image") for _ in range(repetitions)]
    for case_id in case_ids:
        for n in (1, 2):
            await world.store.write(factories.claim, (case_id, n))
        barrier = threading.Barrier(2)

        def report(case: str, n: int, score: float, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            world.store.write_now(factories.settle, (case, n), scores={"spam": score})

        await asyncio.gather(
            asyncio.to_thread(report, case_id, 1, 0.1),
            asyncio.to_thread(report, case_id, 2, 0.2),
            world.core.round(),
            replica.round(),
        )
        await asyncio.gather(world.core.round(), replica.round())
    for case_id in case_ids:
        (decision,) = await world.decided(case_id)
        assert decision.outcome is CaseState.APPROVED
        assert [dict(e.scores) for e in decision.evidence] == [{"spam": 0.1}, {"spam": 0.2}]
    events = await world.events()
    assert len(events) == repetitions
    assert {event.key for event in events} == set(case_ids)
    assert await world.events("sluice.late_results") == []


async def test_case_6_05_nothing_is_seen_of_a_submit_that_pauses_between_its_statements(
    world: World,
) -> None:
    of = factories.parent(world.clock.now_micros())
    children = [factories.task(of, n, name) for n, name in enumerate("abc", start=1)]
    paused, go_on = threading.Event(), threading.Event()

    def submit(tx: Tx) -> None:
        parents.insert(tx, [of])
        tasks.insert(tx, children[:1])
        paused.set()
        assert go_on.wait(30)
        tasks.insert(tx, children[1:])

    submitting = asyncio.create_task(world.store.write(submit))
    await asyncio.to_thread(paused.wait, 30)
    assert await world.store.read(tasks.children, of.id) == []
    assert (await world.store.read(snapshot.look, 0, 100, {}, {})).cases == ()
    go_on.set()
    await submitting
    await world.succeed(of.id, 1)
    await world.core.round()
    view = await world.core.get_case(of.id)
    assert view.state is CaseState.PENDING
    assert view.missing == (f"{of.id}.2", f"{of.id}.3")


async def test_i5_the_write_itself_refuses_an_approval_after_the_deadline(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.succeed(case_id, 1)
    rulings = await look(world)
    assert rulings[0].decision is not None
    assert rulings[0].decision.outcome is CaseState.APPROVED
    world.clock.advance(10)
    written = await write(world, rulings)
    assert (written.decided, written.lost) == ((), (case_id,))
    assert await world.decided(case_id) == []
    assert await world.events() == []
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "DEADLINE_PASSED")


async def test_i5_an_automatic_rejection_is_refused_after_the_deadline_too(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.succeed(case_id, 1, spam=0.9)
    rulings = await look(world)
    world.clock.advance(10)
    assert (await write(world, rulings)).lost == (case_id,)


async def test_a_review_is_written_even_when_the_deadline_comes_between(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.settle(case_id, 1, State.FAILED, "REFUSED")
    rulings = await look(world)
    world.clock.advance(10)
    assert (await write(world, rulings)).decided == (case_id,)


async def test_a_marker_that_comes_between_read_and_write_survives(world: World) -> None:
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 1)
    read = await world.markers(case_id)
    rulings = await look(world)
    await world.succeed(case_id, 2)
    both = await world.markers(case_id)
    assert len(both) == len(read) + 1
    await write(world, rulings)
    assert await world.markers(case_id) == both[len(read) :]
    await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.APPROVED
    assert await world.markers(case_id) == []


async def test_a_write_that_lost_keeps_its_markers_and_is_read_again(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    rulings = await look(world)
    await world.cancel(case_id)
    before = await world.markers(case_id)
    written = await write(world, rulings)
    assert (written.lost, written.markers) == ((case_id,), 0)
    assert await world.markers(case_id) == before
    await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.CANCELLED
    assert await world.markers(case_id) == []


async def test_the_same_ruling_written_twice_decides_once(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    rulings = await look(world)
    first, second = await write(world, rulings), await write(world, rulings)
    assert (first.decided, second.decided, second.lost) == ((case_id,), (), (case_id,))
    assert len(await world.decided(case_id)) == 1
    assert len(await world.events()) == 1


async def test_a_case_that_cannot_be_judged_holds_up_no_other(world: World) -> None:
    odd, sound = await world.case("text"), await world.case("text")
    for case_id in (odd, sound):
        await world.succeed(case_id, 1)

    found = await world.store.read(snapshot.look, 0, 100, {}, {})
    broken = [
        snapshot.Case(c.parent_id, c.parent, c.markers, children=(None,))  # type: ignore[arg-type]
        if c.parent_id == odd
        else c
        for c in found.cases
    ]
    rulings = verdicts.rule(snapshot.Look(found.now, tuple(broken), found.policies, None))
    assert (await write(world, rulings)).decided == (sound,)
    assert await world.markers(odd) != []


async def test_a_commit_whose_answer_was_lost_is_read_again_and_decides_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    real = world.store.write
    answers = iter([True])

    async def lossy(function, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = await real(function, *args, **kwargs)
        if next(answers, False):
            raise CommitInDoubtError("lost")
        return result

    monkeypatch.setattr(world.store, "write", lossy)
    with pytest.raises(CommitInDoubtError):
        await world.core.round()
    await world.core.round()
    assert len(await world.decided(case_id)) == 1
    assert len(await world.events()) == 1


async def test_a_large_set_is_read_at_most_17_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 160
    case_id = await world.case(*(f"m{n}" for n in range(size)))
    reads = 0
    real = snapshots.children

    def counting(tx: Tx, parent_ids: list[str]) -> object:
        nonlocal reads
        reads += case_id in parent_ids
        return real(tx, parent_ids)

    monkeypatch.setattr(snapshots, "children", counting)
    for n in range(1, size + 1):
        await world.succeed(case_id, n)
        await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.APPROVED
    assert 1 <= reads <= 17
    assert await world.markers(case_id) == []


async def test_a_large_sets_markers_count_together_over_several_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.core.MARKERS_AT_ONCE", 3)
    case_id = await world.case(*(f"m{n}" for n in range(160)))
    for n in range(1, 10):
        await world.succeed(case_id, n)
    assert await world.core.round() == 0
    assert len(await world.markers(case_id)) == 9
    await world.succeed(case_id, 10)
    await world.core.round()
    assert await world.markers(case_id) == []


async def test_a_large_set_goes_to_review_at_the_first_result_that_demands_it(
    world: World,
) -> None:
    await world.policy(factories.policy(0.9, 0.5, version=2))
    case_id = await world.case(*(f"m{n}" for n in range(160)), policy_version="2")
    await world.succeed(case_id, 7)
    await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.PENDING
    await world.succeed(case_id, 90, spam=0.6)
    await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.IN_REVIEW


async def test_more_markers_than_one_page_are_all_worked_in_one_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.core.MARKERS_AT_ONCE", 3)
    case_ids = [await world.case("text", "image") for _ in range(5)]
    for n in (1, 2):
        for case_id in case_ids:
            await world.succeed(case_id, n)
    await world.core.round()
    for case_id in case_ids:
        assert (await world.core.get_case(case_id)).state is CaseState.APPROVED
        assert await world.markers(case_id) == []
