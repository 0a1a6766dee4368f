"""Receives a later attempt that never left; shows that it settles nothing of the first one."""

from __future__ import annotations

from kernel.attempt import FenceAnswer, Outcome
from kernel.idempotency import CallState, Capabilities
from tests.vendor_proxy.world import CALLER, VENDOR, World

REMEMBERS = Capabilities(dedupe=True)


async def test_i3_a_payload_that_is_gone_proves_nothing_of_an_earlier_send(world: World) -> None:
    await world.control(capabilities={"dedupe": True}, latency_ms=19_000, concurrency=2)
    world.vault.payloads["r1"] = b"hello"
    core = await world.core(world.profile(REMEMBERS), concurrency=2)
    first = world.request(payload=b"", payload_ref="r1")
    assert (await world.timed_out(core, first)).outcome is Outcome.UNKNOWN
    del world.vault.payloads["r1"]
    again = await core.execute(CALLER, world.request(payload=b"", payload_ref="r1", attempt=2))
    assert (again.outcome, again.reason, again.sends) == (Outcome.REJECTED, "PAYLOAD_GONE", 1)
    (limit,) = core.list_limits()
    assert (limit.in_flight, limit.quarantined) == (0, 1)  # the vendor may still work on the first
    row = await world.row(core)
    assert row.occupied_until is not None
    assert row.ledger.state is CallState.UNKNOWN
    fence, settled = await core.fence(CALLER, "k1", VENDOR, 2)
    assert fence is FenceAnswer.UNKNOWN
    assert settled is None
    assert await world.executions() == 1
