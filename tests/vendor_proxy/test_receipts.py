"""Receives genuine receipts, early, late, repeated and contradicting; shows what they settle."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kernel.attempt import FenceAnswer, OnUnknown, OnUnknownMode, Outcome, QueryAnswer
from kernel.idempotency import CallState, Capabilities
from tests.vendor_proxy.letters import (
    ABLE,
    ACCEPTED,
    FAILURE,
    PROGRESS,
    SUCCESS,
    accepted_call,
    told,
)
from tests.vendor_proxy.scripted_vendor import http, raw_vendor
from tests.vendor_proxy.world import CALLER, VENDOR, World


async def test_a_receipt_settles_an_accepted_call_frees_its_permit_and_goes_to_the_mesh(
    world: World,
) -> None:
    core = await accepted_call(world)
    assert core.list_limits()[0].quarantined == 1
    assert await told(world, core)
    row = await world.row(core)
    assert row.outcome is not None
    assert (row.outcome.outcome, row.outcome.scores) == (Outcome.COMPLETED, {"hate": 0.25})
    assert (row.cost_micros, row.occupied_until) == (55, None)
    assert core.list_limits()[0].quarantined == 0
    await world.sink.until(lambda sink: bool(sink.told))
    (receipt,) = world.sink.told
    assert (receipt.task_id, receipt.idempotency_key) == ("0" * 32 + ".1", "k1")
    assert (receipt.state.value, receipt.vendor_status) == ("SUCCEEDED", "succeeded")


@pytest.mark.parametrize(
    "order", list(itertools.permutations([SUCCESS, PROGRESS, FAILURE])), ids=str
)
async def test_case_5_01_the_ledger_ends_the_same_in_every_order(
    world: World, order: tuple[dict[str, Any], ...]
) -> None:
    core = await accepted_call(world)
    for fields in order:
        assert await told(world, core, **fields)
        assert not await told(world, core, **fields, event_id="again")
    row = await world.row(core)
    assert row.outcome is not None
    assert row.outcome.outcome is Outcome.COMPLETED
    await world.sink.until(lambda sink: len(sink.told) == 3)


async def test_case_5_02_a_receipt_before_the_reply_is_kept_and_settles_once(world: World) -> None:
    await world.control(latency_ms=3_000)
    core = await world.core(world.profile(Capabilities(receipts=True), client_timeout_seconds=9.0))
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    (external_id,) = (await world.ledger())["keys"]["k1"]["external_ids"]
    assert await told(world, core, external_id=external_id, cost_micros=1000)
    world.clock.advance(3.0)
    outcome = await call
    assert outcome.outcome is Outcome.COMPLETED
    row = await world.row(core)
    assert (row.cost_micros, row.occupied_until, row.ledger.sends) == (1000, None, 1)
    assert core.list_limits()[0].in_flight == 0


async def test_i4_a_receipt_that_says_the_same_as_the_reply_leaves_no_permit_behind(
    world: World,
) -> None:
    done = '{"external_id":"x1","state":"SUCCEEDED","result":{"scores":{"hate":0.25}}}'
    answered = asyncio.Event()

    async def play(writer: asyncio.StreamWriter) -> None:
        await answered.wait()
        await http(200, done)(writer)

    async with raw_vendor(play) as vendor:
        profile = world.profile(Capabilities(receipts=True), endpoint=vendor.endpoint)
        core = await world.core(profile, concurrency=1)
        call = asyncio.create_task(core.execute(CALLER, world.request()))
        await vendor.arrived.wait()
        assert await told(world, core)
        answered.set()
        outcome = await call
    assert (outcome.outcome, outcome.cost_micros) == (Outcome.COMPLETED, 55)
    assert (await world.row(core)).occupied_until is None
    await world.gateways[0].drop()
    restarted = await world.core(profile, concurrency=1)
    assert restarted.list_limits()[0].quarantined == 0


async def test_case_5_02_a_receipt_by_the_vendors_id_alone_waits_for_the_reply(
    world: World,
) -> None:
    await world.control(latency_ms=1_000, capabilities={"async": False})
    core = await world.core(world.profile(Capabilities(receipts=True)))
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    (external_id,) = (await world.ledger())["keys"]["k1"]["external_ids"]
    assert await told(world, core, reference=None, external_id=external_id)
    assert not world.sink.told  # an orphan: nobody knows yet whose it is
    world.clock.advance(1.0)
    assert (await call).outcome is Outcome.COMPLETED
    # Time stands still: the mesh is told at once, not at the forwarder's next look.
    await world.sink.until(lambda sink: bool(sink.told))
    assert world.sink.told[0].idempotency_key == "k1"


async def test_case_5_02_without_a_reply_the_receipt_settles_what_is_in_doubt(
    world: World,
) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hang"}])
    core = await world.core(world.profile(Capabilities(receipts=True)), concurrency=1)
    outcome = await world.timed_out(core, world.request())
    assert outcome.outcome is Outcome.UNKNOWN
    assert core.list_limits()[0].quarantined == 1
    assert await told(world, core)
    assert core.list_limits()[0].quarantined == 0
    answer, settled = await core.fence(CALLER, "k1", VENDOR, 1)
    assert (answer, settled and settled.outcome) == (FenceAnswer.SETTLED, Outcome.COMPLETED)
    replayed = await core.execute(CALLER, world.request(attempt=2))
    assert (replayed.outcome, replayed.replayed) == (Outcome.COMPLETED, True)
    assert await world.requests() == 1


async def test_case_5_02_a_receipt_while_we_still_wait_ends_in_its_result_at_the_time_out(
    world: World,
) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hang"}])
    core = await world.core(world.profile(Capabilities(receipts=True)), concurrency=1)
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    assert await told(world, core)
    world.clock.advance(2.0)
    outcome = await call
    assert (outcome.outcome, outcome.scores) == (Outcome.COMPLETED, {"hate": 0.25})
    (limit,) = core.list_limits()
    assert (limit.in_flight, limit.quarantined) == (0, 0)
    assert (await world.row(core)).occupied_until is None


async def test_a_success_that_we_read_ourselves_beats_a_failure_that_was_told(
    world: World,
) -> None:
    await world.control(latency_ms=1_000)
    core = await world.core(world.profile(Capabilities(receipts=True)))
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    assert await told(world, core, **FAILURE)
    world.clock.advance(1.0)
    assert (await call).outcome is Outcome.COMPLETED
    row = await world.row(core)
    assert row.outcome is not None
    assert (row.outcome.outcome, row.cost_micros) == (Outcome.COMPLETED, 1000)


async def test_a_receipt_of_before_the_call_replays_it_instead_of_sending(world: World) -> None:
    core = await world.core(world.profile(Capabilities(receipts=True)))
    assert await told(world, core)
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.replayed) == (Outcome.COMPLETED, True)
    assert await world.requests() == 0
    assert core.list_limits()[0].in_flight == 0
    await world.sink.until(lambda sink: bool(sink.told))


async def test_case_5_04_the_same_fact_under_other_event_ids_is_one_receipt(world: World) -> None:
    core = await accepted_call(world)
    other = await world.core(world.profile(ABLE))
    together = await asyncio.gather(
        told(world, core, event_id="e1"), told(world, other, event_id="e2")
    )
    stored = [
        *together,
        await told(world, core, event_id=None),
        await told(world, other, event_id="e1"),
    ]
    assert sorted(stored) == [False, False, False, True]
    await world.sink.until(lambda sink: bool(sink.told))
    assert len({each.receipt_id for each in world.sink.told}) == 1
    with world.store.engine.connect() as connection:
        copies = connection.exec_driver_sql("select copies from raw_receipts").scalars().all()
    assert copies == [4]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("undelivered", "FAILED"),
        ("Rendering Failure", "FAILED"),
        ("DeliveryDelay", "ACCEPTED"),
        ("DELIVERED", "SUCCEEDED"),
        (" delivered ", "SUCCEEDED"),
        ("brand_new_2027", "UNMAPPED"),
        (None, "UNMAPPED"),
    ],
)
async def test_case_5_09_every_status_is_stored_and_an_unmapped_one_moves_nothing(
    world: World, status: str | None, state: str
) -> None:
    words = {
        "undelivered": "FAILED",
        "rendering failure": "FAILED",
        "deliverydelay": "ACCEPTED",
        "Delivered": "SUCCEEDED",
    }
    async with raw_vendor(http(202, ACCEPTED)) as vendor:
        core = await world.core(
            world.profile(
                ABLE,
                endpoint=vendor.endpoint,
                status_map=words,
                status_map_version=7,
                status_map_reviewer="ada",
            )
        )
        await core.execute(CALLER, world.request())
    assert await told(world, core, status=status)
    with world.store.engine.connect() as connection:
        row = connection.exec_driver_sql(
            "select state, status_map_version, status_map_reviewer from raw_receipts"
        ).one()
    assert tuple(row) == (state, 7, "ada")
    assert core.receipt_counts.unknown_status == int(state == "UNMAPPED")
    call = await world.row(core)
    assert call.outcome is not None
    expected = {"SUCCEEDED": Outcome.COMPLETED, "FAILED": Outcome.REJECTED}
    assert call.outcome.outcome is expected.get(state, Outcome.ACCEPTED)
    await world.sink.until(lambda sink: bool(sink.told))


async def test_a_success_without_its_result_settles_nothing_and_leaves_it_to_a_query(
    world: World,
) -> None:
    core = await accepted_call(world)
    assert await told(world, core, result=None)
    row = await world.row(core)
    assert row.outcome is not None
    assert row.outcome.outcome is Outcome.ACCEPTED
    assert core.list_limits()[0].quarantined == 0  # its vendor has stopped all the same


async def test_a_failure_of_one_of_two_possible_executions_settles_nothing(world: World) -> None:
    await world.control(script=[{"when": {"every": 1}, "do": "hide_response"}])
    core = await world.core(world.profile(Capabilities(receipts=True)))
    twice = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)
    for attempt in (1, 2):
        await core.execute(CALLER, world.request(attempt=attempt, on_unknown=twice))
    assert await told(world, core, **FAILURE)
    assert (await world.row(core)).ledger.state is CallState.UNKNOWN
    assert core.list_limits()[0].quarantined == 2
    assert await told(world, core, **SUCCESS)
    assert (await world.row(core)).ledger.state is CallState.SETTLED


async def test_receipts_of_a_real_vendor_arrive_signed_and_settle_its_jobs(world: World) -> None:
    await world.control(capabilities={"async": True, "receipts": True}, latency_ms=1_000)
    core = await world.core(world.profile(ABLE))
    assert (await core.execute(CALLER, world.request())).outcome is Outcome.ACCEPTED
    world.clock.advance(1.0)
    await world.sink.until(lambda sink: any(each.state == "SUCCEEDED" for each in sink.told))
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, core.receipt_counts.rejected) == (QueryAnswer.SETTLED, 0)


async def test_a_forged_receipt_of_a_real_vendor_changes_nothing(world: World) -> None:
    await world.control(
        capabilities={"async": True, "receipts": True},
        script=[{"when": {"every": 1}, "do": "forged_receipt"}],
    )
    core = await world.core(world.profile(ABLE))
    await core.execute(CALLER, world.request())
    await world.sink.until(lambda sink: any(each.state == "SUCCEEDED" for each in sink.told))
    assert core.receipt_counts.rejected == 1
    assert not any(each.state == "FAILED" for each in world.sink.told)
