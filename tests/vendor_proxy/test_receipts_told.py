"""Receives stored receipts; shows what the mesh is told of them, and until when."""

from __future__ import annotations

import pytest

from kernel.attempt import Outcome
from kernel.idempotency import Capabilities
from tests.vendor_proxy.letters import ABLE, ACCEPTED, PROGRESS, accepted_call, told
from tests.vendor_proxy.scripted_vendor import http, raw_vendor
from tests.vendor_proxy.world import CALLER, World


async def test_progress_that_was_told_before_the_call_goes_to_the_mesh_when_it_begins(
    world: World,
) -> None:
    core = await world.core(world.profile(Capabilities(receipts=True)))
    assert await told(world, core, **PROGRESS)
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.replayed) == (Outcome.COMPLETED, False)
    await world.sink.until(lambda sink: bool(sink.told))


@pytest.mark.parametrize(("named", "charged"), [(None, 100), (0, 0), (7, 7)])
async def test_i10_a_receipt_tells_the_mesh_the_cost_that_the_ledger_charged(
    world: World, named: int | None, charged: int
) -> None:
    core = await accepted_call(world)
    assert await told(world, core, cost_micros=named)
    assert (await world.row(core)).cost_micros == charged
    await world.sink.until(lambda sink: bool(sink.told))
    assert world.sink.told[0].cost_micros == charged


async def test_i10_a_success_told_after_the_reply_carries_what_the_reply_cost(
    world: World,
) -> None:
    core = await world.core(world.profile(Capabilities(receipts=True)))
    assert (await core.execute(CALLER, world.request())).cost_micros == 1000
    assert await told(world, core, cost_micros=None)
    await world.sink.until(lambda sink: bool(sink.told))
    assert world.sink.told[0].cost_micros == 1000


async def test_the_mesh_is_told_until_it_acknowledges(world: World) -> None:
    world.sink.refusals = 2
    core = await accepted_call(world)
    assert await told(world, core)
    await world.sink.until(lambda sink: sink.calls == 1)
    for calls in (2, 3):
        await world.clock.sleeping(2)  # the renewal, and the wait for what is put off
        world.clock.advance(2.0)
        await world.sink.until(lambda sink, calls=calls: sink.calls >= calls)  # type: ignore[misc]
    assert len(world.sink.told) == 1


async def test_a_receipt_that_was_not_told_before_a_crash_is_told_after_it(world: World) -> None:
    world.sink.refusals = 1
    core = await accepted_call(world)
    assert await told(world, core)
    await world.sink.until(lambda sink: sink.calls == 1)
    await world.gateways[0].drop()
    await world.core(world.profile(ABLE))
    await world.clock.sleeping(2)  # the renewal, and the receipts' wait for what is put off
    world.clock.advance(1.0)
    await world.sink.until(lambda sink: bool(sink.told))


async def test_a_direct_callers_receipts_stay_here(world: World) -> None:
    async with raw_vendor(http(202, ACCEPTED)) as vendor:
        core = await world.core(world.profile(ABLE, endpoint=vendor.endpoint))
        await core.execute(CALLER, world.request(task_id=""))
    assert await told(world, core)
    with world.store.engine.connect() as connection:
        forward = connection.exec_driver_sql("select forward from raw_receipts").scalar_one()
    assert (forward, world.sink.calls) == ("NONE", 0)
