"""Receives decided cases; checks what reviewers and new policy versions may make of them."""

from __future__ import annotations

import pytest

from kernel.errors import LostRace, NotAllowedInState, NotFound
from kernel.lifecycle import CaseState, State
from kernel.store import decisions, moves
from kernel.store.transaction import CommitInDoubtError
from tests import factories
from tests.aggregator.world import World


async def in_review(world: World, *, seconds: float = 60.0) -> str:
    """A case with a full set of results, one of which demanded review."""
    await world.policy(factories.policy(0.9, 0.5, version=2))
    case_id = await world.case("text", policy_version="2", seconds=seconds)
    await world.succeed(case_id, 1, spam=0.6)
    await world.core.round()
    assert (await world.core.get_case(case_id)).state is CaseState.IN_REVIEW
    return case_id


async def test_a_reviewer_closes_a_case_with_a_decision_of_their_own(world: World) -> None:
    case_id = await in_review(world)
    world.clock.advance(5)
    view = await world.core.resolve_review(
        case_id, CaseState.REJECTED, 2, "ada", "seen twice", actor="ada via desk"
    )
    assert (view.state, view.version) == (CaseState.REJECTED, 3)
    first, second = view.decisions
    assert (first.version, first.outcome, first.decided_by) == (1, CaseState.IN_REVIEW, "policy")
    assert (second.version, second.outcome, second.reason) == (2, CaseState.REJECTED, "REVIEWED")
    assert (second.decided_by, second.note) == ("ada", "seen twice")
    assert second.decided_at == world.clock.now_micros()
    assert [dict(e.scores) for e in second.evidence] == [{"spam": 0.6}]
    (action,) = await world.store.read(decisions.actions, case_id)
    assert (action.actor, action.action, action.n) == ("ada via desk", "REVIEW_REJECTED", 0)
    told = [(e.body["version"], e.body["state"]) for e in await world.events()]
    assert told == [(2, "IN_REVIEW"), (3, "REJECTED")]


async def test_the_second_of_two_reviewers_loses_and_is_told_the_version(world: World) -> None:
    case_id = await in_review(world)
    await world.core.resolve_review(case_id, CaseState.APPROVED, 2, "ada")
    with pytest.raises(LostRace) as lost:
        await world.core.resolve_review(case_id, CaseState.REJECTED, 2, "bob")
    assert lost.value.metadata["version"] == "3"
    view = await world.core.get_case(case_id)
    assert (view.state, len(view.decisions)) == (CaseState.APPROVED, 2)


async def test_only_a_case_in_review_can_be_resolved(world: World) -> None:
    case_id = await world.case("text")
    with pytest.raises(NotAllowedInState) as refused:
        await world.core.resolve_review(case_id, CaseState.APPROVED, 1, "ada")
    assert refused.value.metadata["state"] == "PENDING"


async def test_a_review_whose_commit_is_in_doubt_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = await in_review(world)
    real = world.store.write

    async def lossy(function, *args, **kwargs):  # type: ignore[no-untyped-def]
        await real(function, *args, **kwargs)
        raise CommitInDoubtError("lost")

    async def never(function, *args, **kwargs):  # type: ignore[no-untyped-def]
        raise CommitInDoubtError("lost")

    monkeypatch.setattr(world.store, "write", never)
    with pytest.raises(CommitInDoubtError):
        await world.core.resolve_review(case_id, CaseState.APPROVED, 2, "ada")
    monkeypatch.setattr(world.store, "write", lossy)
    view = await world.core.resolve_review(case_id, CaseState.APPROVED, 2, "ada")
    assert (view.state, len(view.decisions)) == (CaseState.APPROVED, 2)


async def test_a_new_policy_version_decides_again_from_stored_scores(world: World) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1, spam=0.6)
    await world.core.round()
    moved = await world.store.read(moves.recorded, case_id)
    for reject_at, expected in ((0.5, CaseState.REJECTED), (0.7, CaseState.APPROVED)):
        stored = await world.core.put_policy("default", factories.policy(reject_at), "ada")
        view, changed = await world.core.redecide(case_id, stored.policy.version)
        assert (view.state, changed) == (expected, True)
        assert view.parent.policy_version == stored.policy.version
    assert [d.outcome for d in view.decisions] == [
        CaseState.APPROVED,
        CaseState.REJECTED,
        CaseState.APPROVED,
    ]
    assert [d.policy_version for d in view.decisions] == [1, 2, 3]
    assert [e.body["version"] for e in await world.events()] == [2, 3, 4]
    assert await world.store.read(moves.recorded, case_id) == moved, "no task moved"


async def test_a_version_that_decides_the_same_is_recorded_as_no_change(world: World) -> None:
    await world.policy(factories.policy(0.85, version=2))
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    await world.core.round()
    view, changed = await world.core.redecide(case_id, 2)
    assert (changed, [d.policy_version for d in view.decisions]) == (False, [1, 2])


async def test_a_re_decision_asked_twice_is_written_once_and_answered_alike(world: World) -> None:
    await world.policy(factories.policy(0.05, version=2))
    case_id = await world.case("text")
    await world.succeed(case_id, 1)
    await world.core.round()
    first, second = [await world.core.redecide(case_id, 2) for _ in range(2)]
    assert first == second
    assert first[1]
    assert len(first[0].decisions) == 2


async def test_i5_a_case_that_its_deadline_sent_to_review_is_not_approved_again(
    world: World,
) -> None:
    case_id = await world.case("text", seconds=10)
    await world.succeed(case_id, 1)
    world.clock.advance(10)
    await world.core.round()
    assert (await world.decided(case_id))[0].reason == "DEADLINE_PASSED"
    await world.policy(factories.policy(0.99, version=2))
    view, changed = await world.core.redecide(case_id, 2)
    assert (view.state, changed) == (CaseState.IN_REVIEW, False)
    assert view.decisions[-1].reason == "DEADLINE_HAD_COME"
    await world.policy(factories.policy(0.05, version=3))
    view, changed = await world.core.redecide(case_id, 3)
    assert (view.state, changed) == (CaseState.REJECTED, True)
    view, _ = await world.core.redecide(case_id, 2)
    assert view.state is CaseState.IN_REVIEW, "not even by way of a rejection"


async def test_a_case_that_was_decided_in_time_may_be_approved_again_after_its_deadline(
    world: World,
) -> None:
    await world.policy(factories.policy(0.05, version=2), factories.policy(0.9, version=3))
    case_id = await world.case("text", seconds=10)
    await world.succeed(case_id, 1)
    await world.core.round()
    world.clock.advance(20)
    outcomes = [(await world.core.redecide(case_id, version))[0].state for version in (2, 3)]
    assert outcomes == [CaseState.REJECTED, CaseState.APPROVED]


async def test_i5_a_re_decision_without_the_full_set_stays_in_review(world: World) -> None:
    await world.policy(factories.policy(0.05, version=2))
    case_id = await world.case("text", "image")
    await world.succeed(case_id, 1, spam=0.9)
    await world.settle(case_id, 2, State.FAILED, "REFUSED")
    await world.core.round()
    for version in (1, 2):
        view, changed = await world.core.redecide(case_id, version)
        assert (view.state, changed) == (CaseState.IN_REVIEW, False)
    assert view.decisions[-1].reason == "REQUIRED_RESULT_MISSING"


async def test_a_case_that_one_result_sent_to_review_may_be_approved_once_its_set_is_full(
    world: World,
) -> None:
    await world.policy(factories.policy(0.9, 0.5, version=2), factories.policy(0.9, version=3))
    case_id = await world.case("text", "image", policy_version="2")
    await world.succeed(case_id, 1, spam=0.6)
    await world.core.round()
    view, _ = await world.core.redecide(case_id, 3)
    assert view.state is CaseState.IN_REVIEW
    await world.succeed(case_id, 2)
    view, changed = await world.core.redecide(case_id, 3)
    assert (view.state, changed) == (CaseState.APPROVED, True)


@pytest.mark.parametrize("why", ["pending", "failed", "cancelled"])
async def test_a_case_without_a_verdict_is_not_decided_again(world: World, why: str) -> None:
    case_id = await world.case("text")
    if why == "cancelled":
        await world.cancel(case_id)
    if why == "failed":
        body = factories.policy().__class__(
            "default", 2, factories.policy().rules, on_required_failed=CaseState.FAILED
        )
        await world.policy(body)
        case_id = await world.case("text", policy_version="2")
        await world.settle(case_id, 1, State.FAILED, "REFUSED")
    await world.core.round()
    with pytest.raises(NotAllowedInState) as refused:
        await world.core.redecide(case_id, 1)
    assert refused.value.metadata["state"] == why.upper()


async def test_another_tenants_case_is_a_case_that_does_not_exist(world: World) -> None:
    case_id = await in_review(world)
    others = frozenset({"umbrella"})
    with pytest.raises(NotFound):
        await world.core.get_case(case_id, others)
    with pytest.raises(NotFound):
        await world.core.resolve_review(case_id, CaseState.APPROVED, 2, "eve", tenants=others)
    with pytest.raises(NotFound):
        await world.core.redecide(case_id, 2, tenants=others)
    with pytest.raises(NotFound):
        await anext(world.core.watch_case(case_id, others))
    assert len(await world.decided(case_id)) == 1
    assert (await world.core.get_case(case_id, frozenset({"acme"}))).case_id == case_id


async def test_a_policys_versions_rise_and_never_change(world: World) -> None:
    second = await world.core.put_policy("default", factories.policy(0.3, 0.2), "ada")
    other = await world.core.put_policy("strict", factories.policy(0.1), "bob")
    assert (second.policy.version, second.author) == (2, "ada")
    assert (other.policy.version, other.policy.policy_id) == (1, "strict")
    listed = await world.core.list_policies("default")
    assert [(p.policy.version, p.policy.rules[0].reject_at) for p in listed] == [(1, 0.8), (2, 0.3)]
    assert len(await world.core.list_policies()) == 3
    assert await world.core.list_policies("nobody") == []
