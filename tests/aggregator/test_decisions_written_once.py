"""Receives cases whose children end; checks what is written, how often and by which rule."""

from __future__ import annotations

from kernel.attempt import BUDGET_EXHAUSTED, NO_PERMIT
from kernel.lifecycle import CaseState, Mover, State
from kernel.store import parents
from tests import factories
from tests.aggregator.world import World


async def state(world: World, case_id: str) -> CaseState:
    return (await world.core.get_case(case_id)).state


async def test_a_case_waits_until_all_required_models_answered(world: World) -> None:
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 1)
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert (view.state, view.missing) == (CaseState.PENDING, (f"{case_id}.2",))
    assert view.labels == {"source": "test"}
    assert view.decisions == ()
    await world.succeed(case_id, 2)
    await world.core.round()
    view = await world.core.get_case(case_id)
    assert (view.state, view.missing) == (CaseState.APPROVED, ())
    assert view.final


async def test_i13_a_decision_keeps_its_evidence_policy_rule_and_time(world: World) -> None:
    case_id = await world.case("text", "image", optional=("brand",), shadow=("next",))
    await world.succeed(case_id, 1, spam=0.95)
    await world.succeed(case_id, 3, logo=0.2)
    await world.succeed(case_id, 4, spam=0.99)
    await world.succeed(case_id, 2, nudity=0.0)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.version, decision.outcome) == (1, CaseState.REJECTED)
    assert (decision.reason, decision.rule) == ("SCORE_ABOVE_THRESHOLD", "spam>=0.8")
    assert (decision.policy_id, decision.policy_version) == ("default", 1)
    assert (decision.decided_by, decision.decided_at) == ("policy", world.clock.now_micros())
    assert [(e.task_id, e.model_id, e.scores) for e in decision.evidence] == [
        (f"{case_id}.1", "text", {"spam": 0.95}),
        (f"{case_id}.2", "image", {"nudity": 0.0}),
        (f"{case_id}.3", "brand", {"logo": 0.2}),
    ]
    assert decision.evidence[0].input_digest == f"{1:064x}"
    assert decision.evidence[0].model_version == "1"


async def test_a_verdict_is_told_once_with_the_cases_id_version_and_state(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    assert await world.core.round() > 0
    assert await world.core.round() == 0
    (event,) = await world.events()
    view = await world.core.get_case(case_id)
    assert event.key == case_id
    assert event.body == {"case_id": case_id, "version": view.version, "state": "APPROVED"}
    assert view.version == 2


async def test_a_required_result_that_demands_review_sends_the_case_there_at_once(
    world: World,
) -> None:
    await world.policy(factories.policy(0.9, 0.5, version=2))
    case_id = await world.case("text", "image", policy_version="2")
    await world.succeed(case_id, 1, spam=0.6)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert decision.outcome is CaseState.IN_REVIEW
    assert (decision.reason, decision.rule) == ("REVIEW_DEMANDED", "spam>=0.5")
    assert (await world.core.get_case(case_id)).missing == (f"{case_id}.2",)


async def test_a_cancelled_case_is_closed_as_cancelled(world: World) -> None:
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 1)
    await world.cancel(case_id)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.CANCELLED, "CANCELLED_BY_CALLER")
    (event,) = await world.events()
    assert event.body["state"] == "CANCELLED"


async def test_a_deadline_sends_a_case_to_review_with_what_is_missing(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.core.round()
    assert await state(world, case_id) is CaseState.PENDING
    world.clock.advance(10)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "DEADLINE_PASSED")
    assert (await world.core.get_case(case_id)).missing == (f"{case_id}.1",)


async def test_a_model_that_was_tried_until_the_deadline_is_unavailable(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.settle(case_id, 1, State.UNKNOWN, "READ_TIMEOUT")
    world.clock.advance(11)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "MODEL_UNAVAILABLE")


async def test_a_task_that_only_waited_for_a_permit_was_not_tried(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    await world.settle(case_id, 1, State.READY, NO_PERMIT)
    world.clock.advance(11)
    await world.core.round()
    assert (await world.decided(case_id))[0].reason == "DEADLINE_PASSED"


async def test_a_result_after_the_deadline_is_no_evidence(world: World) -> None:
    case_id = await world.case("text", seconds=10)
    world.clock.advance(10.5)
    await world.succeed(case_id, 1)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert decision.outcome is CaseState.IN_REVIEW
    assert decision.evidence == ()
    assert (await world.core.get_case(case_id)).missing == (f"{case_id}.1",)


async def test_a_policy_that_cannot_be_read_sends_a_case_to_a_person(world: World) -> None:
    case_id = await world.case("text", policy_version="9")
    await world.succeed(case_id, 1)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "POLICY_MISSING")


async def test_a_due_parent_that_cannot_be_decided_is_not_scanned_hot(world: World) -> None:
    of = factories.parent(world.clock.now_micros(), seconds=1)
    other = of.__class__(**{n: getattr(of, n) for n in of.__slots__} | {"kind": "MESSAGE"})
    await world.store.write(factories.add_case, other, [])
    world.clock.advance(2)
    assert await world.core.round() == 0
    assert await world.store.read(parents.due, 10) == []
    world.clock.advance(5)
    assert await world.store.read(parents.due, 10) == [of.id]


async def test_case_6_05_a_case_is_not_done_before_the_rest_of_its_set_answered(
    world: World,
) -> None:
    case_id = await world.case("a", "b", "c")
    await world.succeed(case_id, 1)
    await world.core.round()
    assert await state(world, case_id) is CaseState.PENDING
    await world.succeed(case_id, 2)
    await world.core.round()
    assert await state(world, case_id) is CaseState.PENDING
    await world.succeed(case_id, 3)
    await world.core.round()
    assert await state(world, case_id) is CaseState.APPROVED


async def test_case_6_06_a_required_model_that_failed_for_good_ends_in_review(
    world: World,
) -> None:
    case_id = await world.case("a", "b", optional=("o",))
    await world.succeed(case_id, 1)
    await world.settle(case_id, 2, State.FAILED, "REFUSED")
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "REQUIRED_MODEL_FAILED")
    assert decision.rule == "b"


async def test_case_6_06_a_failed_optional_model_alone_changes_nothing(world: World) -> None:
    case_id = await world.case("a", optional=("o",))
    await world.settle(case_id, 2, State.FAILED, "REFUSED")
    await world.core.round()
    assert await state(world, case_id) is CaseState.PENDING
    await world.succeed(case_id, 1)
    await world.core.round()
    assert await state(world, case_id) is CaseState.APPROVED


async def test_case_6_08_an_unavailable_model_neither_approves_nor_rejects(world: World) -> None:
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 2, nudity=0.01)
    await world.settle(case_id, 1, State.FAILED, BUDGET_EXHAUSTED)
    await world.core.round()
    (decision,) = await world.decided(case_id)
    assert (decision.outcome, decision.reason) == (CaseState.IN_REVIEW, "MODEL_UNAVAILABLE")
    assert [set(e.scores) for e in decision.evidence] == [{"nudity"}]


async def test_case_6_08_a_task_that_expired_in_the_queue_is_an_unavailable_model(
    world: World,
) -> None:
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 2)
    await world.store.write(
        factories.settle, (case_id, 1), State.EXPIRED, mover=Mover.TIMER, reason="DEADLINE_PASSED"
    )
    await world.core.round()
    assert (await world.decided(case_id))[0].reason == "MODEL_UNAVAILABLE"
