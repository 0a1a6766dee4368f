"""Answers that get lost: nothing is done twice without a mark, and nothing is called failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernel.lifecycle import State
from kernel.store import outcome
from mesh.v1 import dispatcher_pb2
from mesh.v1 import types_pb2 as types
from tests.mesh.declared import (
    BY_ID,
    DEDUPES,
    KEYED,
    NEITHER,
    Vendor,
    script,
)
from tests.mesh.world import Opening, ProxyAlone, free_port


async def test_a_content_goes_all_the_way_to_its_verdict(mesh_of: Opening) -> None:
    async with mesh_of({"v": Vendor(KEYED)}) as mesh:
        case = await mesh.verdict(await mesh.submit())
    assert case.state == types.CASE_STATE_APPROVED
    assert [task.state for task in case.tasks] == [types.TASK_STATE_SUCCEEDED]
    assert list(case.missing) == []


async def test_case_1_01_a_time_out_after_the_execution_is_asked_about_and_never_resent(
    mesh_of: Opening,
) -> None:
    async with mesh_of({"v": Vendor(KEYED, script("hang", nth=1))}) as mesh:
        case_id = await mesh.submit()
        case = await mesh.verdict(case_id)
        assert case.state == types.CASE_STATE_APPROVED
        path = await mesh.path(case_id)
        assert path[:2] == [State.IN_FLIGHT, State.UNKNOWN]
        assert path[-1] is State.SUCCEEDED
        assert State.FAILED not in path
        ledger = await mesh.ledger("v")
        page = await mesh.page("v", await mesh.task(case_id))
        assert (page["executions"], page["requests"]) == (1, 1)
        assert ledger["queries"] >= 1


async def test_case_1_01_a_second_send_comes_after_a_query_that_proved_the_first_away(
    mesh_of: Opening,
) -> None:
    async with mesh_of({"v": Vendor(KEYED, script("drop_before", nth=1))}) as mesh:
        case_id = await mesh.submit()
        await mesh.verdict(case_id)
        path = await mesh.path(case_id)
        assert path[:2] == [State.IN_FLIGHT, State.UNKNOWN]
        assert path[-4:] == [State.RETRY_WAIT, State.READY, State.IN_FLIGHT, State.SUCCEEDED]
        page = await mesh.page("v", await mesh.task(case_id))
        assert (page["executions"], page["requests"]) == (1, 2)
        assert (await mesh.ledger("v"))["queries"] >= 1


async def test_case_1_02_all_attempts_carry_the_one_key_that_was_stored_first(
    mesh_of: Opening,
) -> None:
    vendor = Vendor(KEYED, script("error_before", nth=1))
    vendor.control["script"].append({"when": {"nth": 2}, "do": "throttle", "retry_after": 0})
    async with mesh_of({"v": vendor}) as mesh:
        case_id = await mesh.submit()
        await mesh.verdict(case_id)
        task = await mesh.task(case_id)
        keys = (await mesh.ledger("v"))["keys"]
        assert list(keys) == [task.idempotency_key]
        assert keys[task.idempotency_key]["requests"] == 3
        assert keys[task.idempotency_key]["bodies"] == 1
        assert task.attempt == 3
        for volatile in (case_id, "acme", "127.0.0.1", "text number"):
            assert volatile not in task.idempotency_key


async def test_case_1_03_a_resubmit_during_a_slow_call_is_the_same_task_and_effect(
    mesh_of: Opening,
) -> None:
    vendor = Vendor(KEYED, {"latency_ms": 400}, timeout=3.0, execution=5.0)
    async with mesh_of({"v": vendor}) as mesh:
        request = mesh.request()
        first = await mesh.intake.SubmitContent(request, timeout=10)
        await mesh.reaches(first.case_id, State.IN_FLIGHT)
        second = await mesh.intake.SubmitContent(request, timeout=10)
        assert (second.case_id, second.disposition) == (
            first.case_id,
            types.DISPOSITION_EXISTS,
        )
        await mesh.verdict(first.case_id)
        third = await mesh.intake.SubmitContent(request, timeout=10)
        assert third.case_id == first.case_id
        assert mesh.rows("mesh", "select count(*) from tasks") == [(1,)]
        page = await mesh.page("v", await mesh.task(first.case_id))
        assert (page["executions"], page["charges"]) == (1, 1)


async def test_case_1_09_a_vendor_that_always_throttles_sees_exactly_max_sends(
    mesh_of: Opening,
) -> None:
    async with mesh_of({"v": Vendor(KEYED, script("throttle", retry_after=0))}) as mesh:
        case_id = await mesh.submit()
        case = await mesh.verdict(case_id)
        task = await mesh.task(case_id)
        assert (task.state, task.reason) == (State.FAILED, "RATE_LIMITED")
        assert (await mesh.ledger("v"))["requests"] == task.max_sends == 4
        assert case.state == types.CASE_STATE_IN_REVIEW


async def test_case_1_11_a_proxy_that_dies_after_the_execution_leads_to_one_execution(
    mesh_of: Opening,
) -> None:
    """Case 1-04 (b) too: the send is not repeated, a query settles it."""
    vendor = Vendor(KEYED, {"latency_ms": 300}, timeout=3.0, execution=3.0)
    port = free_port()
    async with mesh_of(
        {"v": vendor},
        names=("aggregator", "dispatcher", "intake"),
        vendor_proxy_addr=f"127.0.0.1:{port}",
    ) as mesh:
        first = await ProxyAlone.start(mesh)
        case_id = await mesh.submit()

        async def executed() -> bool:
            return bool((await mesh.ledger("v"))["keys"])

        await mesh.until(executed, "the vendor executes")
        await first.crash()
        task = await mesh.reaches(case_id, State.UNKNOWN)
        assert task.maybe_executed
        second = await ProxyAlone.start(mesh)
        try:
            await mesh.verdict(case_id)
            after = await mesh.task(case_id)
            assert after.state is State.SUCCEEDED
            page = await mesh.page("v", after)
            assert (page["executions"], page["requests"]) == (1, 1)
            assert (await mesh.ledger("v"))["queries"] >= 1
            assert after.idempotency_key == task.idempotency_key
        finally:
            await second.stop()


async def test_case_1_04_a_proxy_that_dies_before_the_call_blocks_its_key_for_one_lease(
    mesh_of: Opening,
) -> None:
    port = free_port()
    async with mesh_of(
        {"v": Vendor(KEYED)},
        names=("aggregator", "dispatcher", "intake"),
        vendor_proxy_addr=f"127.0.0.1:{port}",
    ) as mesh:
        first = await ProxyAlone.start(mesh)
        gate, reached = asyncio.Event(), asyncio.Event()
        core: Any = first.app.core

        async def stuck(ref: str) -> bytes:
            reached.set()
            await gate.wait()
            raise AssertionError

        core._sender.vault.open = stuck  # after the begin, before the wire
        case_id = await mesh.submit()
        await asyncio.wait_for(reached.wait(), 10)
        await first.crash()
        second = await ProxyAlone.start(mesh)
        try:
            await mesh.verdict(case_id)
            task = await mesh.task(case_id)
            assert task.state is State.SUCCEEDED
            page = await mesh.page("v", task)
            assert (page["executions"], page["requests"]) == (1, 1)
        finally:
            await second.stop()


@pytest.mark.parametrize("at_most_once", [True, False], ids=["at_most_once", "at_least_once"])
@pytest.mark.parametrize(
    "able", [DEDUPES, KEYED, BY_ID, NEITHER], ids=["dedupe", "by_key", "by_id", "neither"]
)
@pytest.mark.parametrize("fault", ["hide_response", "drop_before", "error_after", "garbage"])
async def test_i3_duplicates_are_never_more_than_the_marks(
    mesh_of: Opening, able: dict[str, Any], at_most_once: bool, fault: str
) -> None:
    on_unknown = (
        {"mode": "AT_MOST_ONCE"} if at_most_once else {"mode": "AT_LEAST_ONCE", "max_duplicates": 1}
    )
    models = [{"model": "m", "pool": "v", "on_unknown": on_unknown}]
    knows = bool(able) and able is not BY_ID
    async with mesh_of({"v": Vendor(able, script(fault, nth=1))}, {"TEXT": models}) as mesh:
        case_id = await mesh.submit()
        resends = knows or not at_most_once
        if resends:
            await mesh.verdict(case_id)
        else:

            async def waits() -> bool:
                return (await mesh.task(case_id)).needs_operator

            await mesh.until(waits, "it waits for a person")
        task = await mesh.task(case_id)
        page = await mesh.page("v", task)
        marks = (await mesh.store.read(outcome.marks)).get(task.idempotency_key, 0)
        assert task.state is (State.SUCCEEDED if resends else State.UNKNOWN)
        assert page["executions"] - 1 <= marks
        if knows:
            assert (page["executions"], marks) == (1, 0)
        elif at_most_once:
            assert (page["requests"], marks) == (1, 0)
        else:
            assert (page["requests"], marks) == (2, 1)


@pytest.mark.parametrize("able", [NEITHER, BY_ID], ids=["neither", "by_id"])
async def test_i3_an_operators_retry_is_really_sent_and_marked(
    mesh_of: Opening, able: dict[str, Any]
) -> None:
    models = [{"model": "m", "pool": "v", "on_unknown": {"mode": "AT_MOST_ONCE"}, "max_sends": 1}]
    vendor = Vendor(able, script("hide_response", nth=1))
    async with mesh_of({"v": vendor}, {"TEXT": models}) as mesh:
        case_id = await mesh.submit()

        async def waits() -> bool:
            return (await mesh.task(case_id)).needs_operator

        await mesh.until(waits, "it waits for a person")
        kinds = dispatcher_pb2.ResolveUnknownRequest
        wish = kinds(task_id=f"{case_id}.1", resolution=kinds.RESOLUTION_RETRY, operator="ana")
        await mesh.tasks.ResolveUnknown(wish, timeout=10)
        task = await mesh.reaches(case_id, State.SUCCEEDED)
        page = await mesh.page("v", task)
        assert (page["requests"], page["executions"], task.possible_duplicates) == (2, 2, 1)
