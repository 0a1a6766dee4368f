"""The story of a case and of a task, as one reads it afterwards."""

from __future__ import annotations

from kernel.lifecycle import State
from services.dispatcher.operator import Resolution
from tests import factories
from tests.dispatcher import scripted_gateway as act
from tests.dispatcher.test_operator import stuck
from tests.dispatcher.world import World, resolved, run_once


async def test_a_story_holds_every_step_in_the_order_of_time(world: World) -> None:
    core = world.core()
    world.clock.advance(1.0)
    key = await stuck(world, core)
    task_id = (await world.get(key)).task_id
    world.clock.advance(1.0)
    await core.resolve_unknown(task_id, Resolution.RETRY, "ana", "asked them by phone")
    world.clock.advance(1.0)
    world.gateway.executes = [act.COMPLETED]
    await resolved(core)
    await run_once(core)
    world.clock.advance(1.0)
    await world.receive(key, scores={"spam": 0.9})
    lines = await core.story(task_id)
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert [line.to_state for line in lines if line.kind == "ATTEMPT"] == [
        State.IN_FLIGHT,
        State.UNKNOWN,
        State.UNKNOWN,  # nobody can tell: a person is needed
        State.RETRY_WAIT,
        State.READY,
        State.IN_FLIGHT,
        State.SUCCEEDED,
    ]
    kinds = [line.kind for line in lines]
    assert (kinds[0], kinds[-1], kinds.count("OPERATOR")) == ("ACCEPTED", "RECEIPT", 1)
    assert {line.task_id for line in lines if line.kind == "ATTEMPT"} == {task_id}
    told = " ".join(line.text for line in lines)
    assert "READ_TIMEOUT" in told
    assert "CONFLICT" in told
    assert "asked them by phone" in told


async def test_the_story_of_a_case_holds_all_its_tasks_and_that_of_a_task_its_own(
    world: World,
) -> None:
    of = factories.parent(world.clock.now_micros())
    children = [factories.task(of, n, "m") for n in (1, 2)]
    await world.store.write(factories.add_case, of, children)
    core = world.core()
    await run_once(core)
    whole = await core.story(of.id)
    assert {line.task_id for line in whole if line.task_id} == {f"{of.id}.1", f"{of.id}.2"}
    one = await core.story(f"{of.id}.2")
    assert {line.task_id for line in one if line.task_id} == {f"{of.id}.2"}


async def test_a_wish_to_cancel_is_part_of_the_story(world: World) -> None:
    key = await world.task()
    await world.cancel(key)
    kinds = [line.kind for line in await world.core().story(key[0])]
    assert kinds == ["ACCEPTED", "CANCEL_REQUESTED", "ATTEMPT"]
