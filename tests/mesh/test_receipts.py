"""Receipts of vendors that tell later: in any order, twice, late, forged, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.lifecycle import State
from mesh.v1 import aggregator_pb2, dispatcher_pb2
from mesh.v1 import types_pb2 as types
from tests.mesh.declared import Vendor, model, script
from tests.mesh.world import Opening

JOBS = {"asynchronous": True, "query_by_id": True, "receipts": True}
TELLS = {"receipts": True}
SURELY = [model("v", on_unknown={"mode": "AT_LEAST_ONCE", "max_duplicates": 3})]


def jobs(able: dict[str, Any] = JOBS, **control: Any) -> Vendor:
    """A vendor that takes jobs."""
    return Vendor(able, {"latency_ms": 50, **control}, more={"counts": "jobs"})


@pytest.mark.parametrize(
    "fault",
    ["", "duplicate_receipt", "reorder_receipts", "late_receipt", "forged_receipt", "no_receipt"],
)
async def test_i6_whatever_becomes_of_the_receipts_one_job_has_one_result(
    mesh_of: Opening, fault: str
) -> None:
    wishes = script(fault, late_ms=400) if fault else {}
    async with mesh_of({"v": jobs(**wishes)}) as mesh:
        cases = [await mesh.submit() for _ in range(4)]
        for case_id in cases:
            case = await mesh.verdict(case_id)
            assert case.state == types.CASE_STATE_APPROVED
            assert len(case.decisions) == 1
            task = await mesh.task(case_id)
            assert (task.state, task.wake_at) == (State.SUCCEEDED, None)
            page = await mesh.page("v", task)
            assert (page["executions"], page["requests"], page["charges"]) == (1, 1, 1)
            assert task.cost_micros == 100
            path = await mesh.path(case_id)
            assert path[0] is State.IN_FLIGHT
            assert path.count(State.SUCCEEDED) == 1
            assert State.FAILED not in path, "a forged receipt was believed"


async def test_a_job_whose_receipt_never_comes_waits_for_a_person_where_nobody_can_be_asked(
    mesh_of: Opening,
) -> None:
    able = {"asynchronous": True, "receipts": True}
    async with mesh_of({"v": jobs(able, **script("no_receipt"))}, {"TEXT": SURELY}) as mesh:
        case_id = await mesh.submit(seconds=2.5)
        await mesh.reaches(case_id, State.ACCEPTED)
        case = await mesh.verdict(case_id)
        assert case.state == types.CASE_STATE_IN_REVIEW
        task = await mesh.task(case_id)
        assert (task.state, task.needs_operator) == (State.UNKNOWN, True)
        assert (await mesh.page("v", task))["requests"] == 1
        unknown = await mesh.tasks.ListUnknown(dispatcher_pb2.ListUnknownRequest(), timeout=10)
        (listed,) = unknown.tasks
        assert listed.task.task_id == task.task_id
        assert listed.cost_at_stake_micros == 100


async def test_after_a_receipt_of_accepted_the_final_one_is_due_as_the_vendor_declares(
    mesh_of: Opening,
) -> None:
    """The answer is lost, the first receipt comes, the final one never does."""
    wishes = script("hide_response")
    wishes["script"] += script("late_receipt", late_ms=60_000)["script"]
    vendor = jobs(**wishes)
    vendor.more["receipt_grace_seconds"] = 20.0
    async with mesh_of({"v": vendor}) as mesh:
        case_id = await mesh.submit()
        await mesh.reaches(case_id, State.SUCCEEDED)
        path = await mesh.path(case_id)
        assert State.UNKNOWN in path
        assert path[-2:] == [State.ACCEPTED, State.SUCCEEDED]
        assert (await mesh.page("v", await mesh.task(case_id)))["requests"] == 1


async def test_a_job_that_failed_at_its_vendor_is_failed_and_never_in_doubt(
    mesh_of: Opening,
) -> None:
    wishes = script("fail")
    wishes["script"] += script("no_receipt")["script"]
    async with mesh_of({"v": jobs(**wishes)}) as mesh:
        case_id = await mesh.submit()
        await mesh.verdict(case_id)
        path = await mesh.path(case_id)
        assert path == [State.IN_FLIGHT, State.ACCEPTED, State.FAILED]


async def test_case_5_02_a_receipt_before_the_reply_is_kept_and_counts_once(
    mesh_of: Opening,
) -> None:
    vendor = Vendor(TELLS, script("slow", slow_ms=1000), timeout=5.0, execution=5.0)
    async with mesh_of({"v": vendor}) as mesh:
        case_id = await mesh.submit()
        await mesh.verdict(case_id)
        task = await mesh.task(case_id)
        page = await mesh.page("v", task)
        assert task.state is State.SUCCEEDED
        assert (page["requests"], page["receipts_sent"]) == (1, 1)
        assert task.cost_micros == 100


async def test_case_5_02_a_receipt_without_any_reply_settles_what_is_unknown(
    mesh_of: Opening,
) -> None:
    wishes = script("hang")
    wishes["script"] += script("late_receipt", late_ms=1_000)["script"]
    vendor = Vendor(TELLS, wishes, timeout=0.3, more={"receipt_grace_seconds": 20.0})
    async with mesh_of({"v": vendor}, {"TEXT": SURELY}) as mesh:
        case_id = await mesh.submit()
        await mesh.reaches(case_id, State.UNKNOWN)
        case = await mesh.verdict(case_id)
        assert case.state == types.CASE_STATE_APPROVED
        task = await mesh.task(case_id)
        page = await mesh.page("v", task)
        assert task.state is State.SUCCEEDED
        assert (page["requests"], page["executions"]) == (1, 1), "it was sent again"
        assert task.possible_duplicates == 0


async def test_a_receipt_after_the_verdict_is_late_evidence_and_changes_nothing(
    mesh_of: Opening,
) -> None:
    """Case 6-09's rule, through the vendor's own door."""
    wishes = script("late_receipt", late_ms=2_500)
    vendor = jobs({"asynchronous": True, "receipts": True}, **wishes)
    async with mesh_of({"v": vendor}) as mesh:
        case_id = await mesh.submit(seconds=1.5)
        case = await mesh.verdict(case_id)
        assert case.state == types.CASE_STATE_IN_REVIEW
        await mesh.reaches(case_id, State.SUCCEEDED)

        async def told() -> bool:
            rows = mesh.rows("mesh", "select count(*) from late_results where parent_id=?", case_id)
            return rows == [(1,)]

        await mesh.until(told, "the late result is kept")
        request = aggregator_pb2.GetCaseRequest(case_id=case_id)
        after = (await mesh.cases.GetCase(request, timeout=10)).case
        assert after.state == types.CASE_STATE_IN_REVIEW
        assert len(after.decisions) == 1
