from __future__ import annotations

from kernel.attempt import Outcome
from tests.vendor_proxy.world import CALLER, World


async def test_a_call_is_made_once_and_replayed(world: World) -> None:
    core = await world.core()
    first = await core.execute(CALLER, world.request())
    assert first.outcome is Outcome.COMPLETED
    assert first.sends == 1
    again = await core.execute(CALLER, world.request(attempt=2))
    assert again.replayed
    assert again.scores == first.scores
    assert await world.executions() == 1
