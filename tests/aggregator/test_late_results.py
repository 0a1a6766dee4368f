"""Receives results that come after the decision; checks that they are kept and told once."""

from __future__ import annotations

import asyncio

from kernel.lifecycle import CaseState, Mover, State
from kernel.receipt import Disposition, ReceiptState
from services.aggregator import snapshot, verdicts
from tests import factories
from tests.aggregator.world import World

LATE = "sluice.late_results"


async def test_case_6_09_a_late_optional_result_leaves_the_decision_and_is_told_once(
    world: World,
) -> None:
    case_id = await world.case("a", optional=("o",), seconds=5)
    await world.succeed(case_id, 1)
    await world.settle(case_id, 2, State.ACCEPTED)
    await world.core.round()
    (before,) = await world.decided(case_id)
    world.clock.advance(60)
    told = await world.core.apply_receipts(
        [
            factories.receipt((case_id, 2), scores={"spam": 0.99}),
            # A retry of A from an old attempt: its settle lost the fence.
            factories.receipt((case_id, 1), scores={"spam": 0.99}, source="late_attempt"),
        ]
    )
    assert told == ["APPLIED", "CONFLICT"]
    await world.core.round()
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert (view.state, view.decisions) == (CaseState.APPROVED, (before,))
    (late,) = view.late_results
    assert (late.n, late.source, dict(late.scores)) == (2, "receipt", {"spam": 0.99})
    (event,) = await world.events(LATE)
    assert event.body == {"case_id": case_id, "task_id": f"{case_id}.2", "version": 1}
    assert len(await world.events()) == 1


async def test_a_late_result_of_a_settle_is_kept_and_later_ones_have_higher_versions(
    world: World,
) -> None:
    case_id = await world.case("a", optional=("o", "p"))
    await world.succeed(case_id, 1)
    await world.core.round()
    for n in (3, 2):
        world.clock.advance(1)
        await world.succeed(case_id, n)
        await world.core.round()
    view = await world.core.get_case(case_id)
    assert [(late.n, late.source) for late in view.late_results] == [(3, "attempt"), (2, "attempt")]
    versions = [(e.body["task_id"], e.body["version"]) for e in await world.events(LATE)]
    assert versions == [(f"{case_id}.3", 1), (f"{case_id}.2", 2)]


async def test_a_shadow_result_is_never_late(world: World) -> None:
    case_id = await world.case("a", shadow=("s",))
    await world.succeed(case_id, 1)
    await world.core.round()
    await world.succeed(case_id, 2, spam=1.0)
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert view.late_results == ()
    assert view.tasks[1].scores == {"spam": 1.0}
    assert await world.events(LATE) == []
    assert await world.markers(case_id) == []


async def test_a_result_between_read_and_write_of_the_decision_is_late_not_lost(
    world: World,
) -> None:
    case_id = await world.case("a", optional=("o",))
    await world.succeed(case_id, 1)
    rulings = verdicts.rule(await world.store.read(snapshot.look, 0, 100, {}, {}))
    await world.succeed(case_id, 2)
    world.clock.advance(1)
    await world.store.write(verdicts.write, rulings)
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert view.tasks[1].result_at is not None
    assert view.parent.decided_at is not None
    assert view.tasks[1].result_at < view.parent.decided_at
    assert [late.n for late in view.late_results] == [2]
    assert len(await world.events(LATE)) == 1


async def test_a_success_for_a_cancelled_task_is_late_evidence(world: World) -> None:
    case_id = await world.case("a", "b")
    await world.succeed(case_id, 1)
    await world.cancel(case_id)
    await world.store.write(
        factories.settle,
        (case_id, 2),
        State.CANCELLED,
        mover=Mover.INTAKE,
    )
    await world.core.round()
    told = await world.core.apply_receipts([factories.receipt((case_id, 2))])
    assert told == [Disposition.LATE]
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert view.state is CaseState.CANCELLED
    assert [late.n for late in view.late_results] == [2], "what came before the cancel is not late"


async def test_two_replicas_tell_a_late_result_once(world: World) -> None:
    replica = world.replica()
    case_id = await world.case("a", optional=("o",))
    await world.succeed(case_id, 1)
    await world.core.round()
    await world.succeed(case_id, 2)
    found = await world.store.read(snapshot.look, 0, 100, {}, {})
    await asyncio.gather(
        world.core.round(),
        replica.round(),
        world.store.write(verdicts.write, verdicts.rule(found)),
    )
    assert len(await world.events(LATE)) == 1
    assert await world.markers(case_id) == []


async def test_a_failure_that_comes_late_is_no_result(world: World) -> None:
    case_id = await world.case("a", optional=("o",))
    await world.settle(case_id, 2, State.ACCEPTED)
    await world.succeed(case_id, 1)
    await world.core.round()
    await world.core.apply_receipts([factories.receipt((case_id, 2), ReceiptState.FAILED)])
    await world.core.round()
    assert (await world.core.get_case(case_id)).late_results == ()
    assert await world.markers(case_id) == []
