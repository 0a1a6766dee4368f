"""Receives a running aggregator; checks answers, refusals and streams as callers see them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kernel.errors import StoreAway
from kernel.lifecycle import State
from mesh.v1 import aggregator_pb2 as pb
from mesh.v1 import types_pb2 as types
from tests import factories
from tests.aggregator.running import Running, final, refused
from tests.aggregator.world import World


async def in_review(world: World, running: Running) -> str:
    await world.policy(factories.policy(0.9, 0.5, version=2))
    case_id = await world.case("text", policy_version="2")
    await world.succeed(case_id, 1, spam=0.6)
    await running.app.core.round()
    return case_id


async def test_receipts_of_the_gateway_make_a_verdict_that_a_watcher_sees(
    world: World, running: Running
) -> None:
    case_id = await world.case("text", "image", optional=("brand",))
    await world.settle(case_id, 1, State.ACCEPTED)
    await world.settle(case_id, 2, State.ACCEPTED)
    watch = running.desk.WatchCase(pb.WatchCaseRequest(case_id=case_id))
    first = (await watch.read()).case
    assert first.state == types.CASE_STATE_PENDING
    assert list(first.missing) == [f"{case_id}.1", f"{case_id}.2"]
    batch = [
        pb.Receipt(
            receipt_id=f"vendor:{n}",
            task_id=f"{case_id}.{n}",
            state=pb.RECEIPT_STATE_SUCCEEDED,
            result=types.ModelResult(scores={"spam": 0.1 * n}),
        )
        for n in (1, 2)
    ]
    gateway = running.stubs["gateway-token"]
    told = await gateway.ApplyReceipts(pb.ApplyReceiptsRequest(receipts=[*batch, batch[0]]))
    assert list(told.dispositions) == ["APPLIED", "APPLIED", "DUPLICATE"]
    last = None
    async for answer in watch:
        last = answer.case
    assert last is not None
    assert (last.state, last.version) == (types.CASE_STATE_APPROVED, 2)
    assert (last.content_version, last.review_round, last.tenant_id) == (3, 1, "acme")
    (decision,) = last.decisions
    assert [e.result.scores["spam"] for e in decision.evidence] == [0.1, 0.2]
    assert decision.decided_by == "policy"
    shown = (await running.desk.GetCase(pb.GetCaseRequest(case_id=case_id))).case
    assert shown == last


async def test_an_unmapped_or_unknown_state_of_a_receipt_is_stored_and_moves_nothing(
    world: World, running: Running
) -> None:
    case_id = await world.case("text")
    await world.settle(case_id, 1, State.ACCEPTED)
    batch = [
        pb.Receipt(receipt_id=f"r{value}", task_id=f"{case_id}.1", state=value)  # type: ignore[arg-type]
        for value in (0, 4, 99)
    ]
    told = await running.stubs["gateway-token"].ApplyReceipts(
        pb.ApplyReceiptsRequest(receipts=batch)
    )
    assert list(told.dispositions) == ["IGNORED_STALE"] * 3
    assert (await running.desk.GetCase(pb.GetCaseRequest(case_id=case_id))).case.tasks[
        0
    ].state == types.TASK_STATE_ACCEPTED


async def test_a_reviewer_resolves_and_the_second_one_is_told_the_version(
    world: World, running: Running
) -> None:
    case_id = await in_review(world, running)
    request = pb.ResolveReviewRequest(
        case_id=case_id,
        decision=types.CASE_STATE_APPROVED,
        expected_version=2,
        reviewer="ada",
        note="fine",
    )
    answer = (await running.desk.ResolveReview(request)).case
    assert (answer.state, answer.version) == (types.CASE_STATE_APPROVED, 3)
    assert answer.decisions[-1].decided_by == "ada"
    code, info, _ = await refused(running.desk.ResolveReview(request))
    assert (code, info.reason) == (grpc.StatusCode.ABORTED, "VERSION_MOVED")
    assert info.metadata["version"] == "3"
    request.expected_version = 3
    code, info, _ = await refused(running.desk.ResolveReview(request))
    assert (code, info.metadata["state"]) == (grpc.StatusCode.FAILED_PRECONDITION, "APPROVED")


async def test_every_bad_field_of_a_review_is_named(running: Running) -> None:
    code, info, fields = await refused(
        running.desk.ResolveReview(
            pb.ResolveReviewRequest(case_id="x", decision=types.CASE_STATE_PENDING, note="n" * 2000)
        )
    )
    assert (code, info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert fields == {"case_id", "decision", "expected_version", "reviewer", "note"}


async def test_a_re_decision_is_refused_without_its_version_or_in_the_wrong_state(
    world: World, running: Running
) -> None:
    case_id = await world.case("text")

    async def ask(case: str, version: int) -> tuple[grpc.StatusCode, Any, set[str]]:
        return await refused(
            running.desk.Redecide(pb.RedecideRequest(case_id=case, policy_version=version))
        )

    code, info, _ = await ask(case_id, 1)
    assert (code, info.metadata["state"]) == (grpc.StatusCode.FAILED_PRECONDITION, "PENDING")
    await world.succeed(case_id, 1)
    await final(running, case_id)
    assert (await ask(case_id, 7))[0] is grpc.StatusCode.NOT_FOUND
    assert (await ask("0" * 32, 1))[0] is grpc.StatusCode.NOT_FOUND
    assert (await ask("", 0))[2] == {"case_id", "policy_version"}


async def test_ids_that_are_not_there_and_ids_that_are_none(running: Running) -> None:
    code, info, _ = await refused(running.desk.GetCase(pb.GetCaseRequest(case_id="0" * 32)))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    code, _, fields = await refused(running.desk.GetCase(pb.GetCaseRequest()))
    assert (code, fields) == (grpc.StatusCode.INVALID_ARGUMENT, {"case_id"})
    watch = running.desk.WatchCase(pb.WatchCaseRequest(case_id="0" * 32))
    assert (await refused(watch.read()))[0] is grpc.StatusCode.NOT_FOUND


async def test_another_tenants_case_answers_not_found(world: World, running: Running) -> None:
    case_id = await world.case("text")
    reader = running.stubs["reader-token"]
    code, _, _ = await refused(reader.GetCase(pb.GetCaseRequest(case_id=case_id)))
    assert code is grpc.StatusCode.NOT_FOUND
    watch = reader.WatchCase(pb.WatchCaseRequest(case_id=case_id))
    assert (await refused(watch.read()))[0] is grpc.StatusCode.NOT_FOUND


async def test_roles_are_kept_apart_and_nobody_comes_without_a_token(running: Running) -> None:
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    receipts, case = pb.ApplyReceiptsRequest(), pb.GetCaseRequest(case_id="0" * 32)
    review, again = pb.ResolveReviewRequest(), pb.RedecideRequest()
    reader, gateway = running.stubs["reader-token"], running.stubs["gateway-token"]
    assert (await refused(running.desk.ApplyReceipts(receipts)))[0] is denied
    assert (await refused(gateway.GetCase(case)))[0] is denied
    assert (await refused(gateway.ListPolicies(pb.ListPoliciesRequest())))[0] is denied
    assert (await refused(reader.ResolveReview(review)))[0] is denied
    assert (await refused(reader.Redecide(again)))[0] is denied
    assert (await refused(reader.PutPolicy(pb.PutPolicyRequest())))[0] is denied
    assert (await refused(running.stubs[""].GetCase(case)))[0] is unknown


async def test_a_store_that_is_away_answers_unavailable(
    world: World, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = await world.case("text")

    async def away(*args: object, **kwargs: object) -> None:
        raise StoreAway("The database did not answer; nothing of this request was stored.")

    monkeypatch.setattr(world.store, "read", away)
    code, info, _ = await refused(running.desk.GetCase(pb.GetCaseRequest(case_id=case_id)))
    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_AWAY")
    monkeypatch.undo()
    await running.desk.GetCase(pb.GetCaseRequest(case_id=case_id))


async def test_stopping_ends_open_watches_at_once(world: World, running: Running) -> None:
    case_id = await world.case("text")
    watch = running.desk.WatchCase(pb.WatchCaseRequest(case_id=case_id))
    await watch.read()
    await running.app.stop()
    code, info, _ = await refused(watch.read())
    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STOPPING")
