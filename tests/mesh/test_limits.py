"""Limits as the vendor counts them, budgets over all layers, and what a cancel keeps away."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.lifecycle import State
from mesh.v1 import intake_pb2 as intake
from mesh.v1 import types_pb2 as types
from tests.mesh.declared import DEDUPES, KEYED, NEITHER, Vendor, model, script
from tests.mesh.world import Opening


@pytest.mark.parametrize("fault", ["latency", "hang"])
async def test_i4_a_time_out_gives_no_permit_back_while_the_vendor_works(
    mesh_of: Opening, fault: str
) -> None:
    control: dict[str, Any] = {"latency_ms": 700, "concurrency": 2}
    if fault == "hang":
        control |= {"script": [{"when": {"every": 2}, "do": "hang", "once_per_key": True}]}
    vendor = Vendor(DEDUPES, control, timeout=0.3, execution=1.0, concurrency=2)
    async with mesh_of({"v": vendor}) as mesh:
        cases = [await mesh.submit() for _ in range(6)]
        for case_id in cases:
            assert (await mesh.verdict(case_id)).state == types.CASE_STATE_APPROVED
        ledger = await mesh.ledger("v")
        assert ledger["calls_above_limit"] == 0
        assert ledger["peak_in_flight"] <= 2
        assert {page["executions"] for page in ledger["keys"].values()} == {1}
        assert any(page["requests"] > 1 for page in ledger["keys"].values()), "nothing timed out"


async def test_i9_what_is_cancelled_while_it_waits_for_a_permit_never_reaches_the_vendor(
    mesh_of: Opening,
) -> None:
    vendor = Vendor(KEYED, {"latency_ms": 800}, timeout=5.0, execution=5.0, concurrency=1)
    async with mesh_of({"v": vendor}) as mesh:
        holding = await mesh.submit()
        await mesh.reaches(holding, State.IN_FLIGHT)
        waiting = await mesh.submit()
        answer = await mesh.cancelled(waiting)
        answers = [each.answer for each in answer.tasks]
        assert answers == [intake.CancelledTask.ANSWER_CANCELLED]
        assert (await mesh.verdict(waiting)).state == types.CASE_STATE_CANCELLED
        assert (await mesh.verdict(holding)).state == types.CASE_STATE_APPROVED
        task = await mesh.task(waiting)
        assert (task.state, task.attempt) == (State.CANCELLED, 0)
        keys = (await mesh.ledger("v"))["keys"]
        assert list(keys) == [(await mesh.task(holding)).idempotency_key]


async def test_i9_a_cancel_after_the_point_of_no_return_says_so(mesh_of: Opening) -> None:
    vendor = Vendor(KEYED, {"latency_ms": 500}, timeout=5.0, execution=5.0)
    async with mesh_of({"v": vendor}) as mesh:
        case_id = await mesh.submit()
        await mesh.reaches(case_id, State.IN_FLIGHT)
        answer = await mesh.cancelled(case_id)
        answers = [each.answer for each in answer.tasks]
        assert answers == [intake.CancelledTask.ANSWER_TOO_LATE]
        assert (await mesh.verdict(case_id)).state == types.CASE_STATE_CANCELLED
        task = await mesh.reaches(case_id, State.SUCCEEDED)
        assert (await mesh.page("v", task))["executions"] == 1


@pytest.mark.parametrize(
    ("able", "fault"),
    [
        (NEITHER, "hide_response"),
        (NEITHER, "error_before"),
        (DEDUPES, "error_before"),
        (KEYED, "drop_before"),
        (KEYED, "throttle"),
    ],
    ids=["neither-hidden", "neither-5xx", "dedupe-5xx", "by_key-dropped", "by_key-throttled"],
)
async def test_i12_sends_never_exceed_the_tasks_budget(
    mesh_of: Opening, able: dict[str, Any], fault: str
) -> None:
    on_unknown = {"mode": "AT_LEAST_ONCE", "max_duplicates": 100}
    models = [model("v", max_sends=3, on_unknown=on_unknown)]
    wishes = script(fault, **({"retry_after": 0} if fault == "throttle" else {}))
    async with mesh_of({"v": Vendor(able, wishes)}, {"TEXT": models}) as mesh:
        case_id = await mesh.submit()

        async def over() -> bool:
            task = await mesh.task(case_id)
            return task.wake_at is None or task.needs_operator

        await mesh.until(over, "the task has spent its budget")
        task = await mesh.task(case_id)
        page = await mesh.page("v", task)
        assert page["requests"] == task.sends == 3
        doubtful = fault in ("hide_response", "error_before")
        assert task.state is (State.UNKNOWN if doubtful else State.FAILED)
        assert page["executions"] <= 1 + task.possible_duplicates
