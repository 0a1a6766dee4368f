"""The relay publishes what was committed, deletes only then, and holds no transaction meanwhile."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from kernel.store import markers, outbox
from services.intake.relay import BATCH, LEASE_SECONDS, Relay
from tests.intake.world import RecordingWakeups, World, text_content


def relay_of(world: World, owner: str = "r1", wakeups: RecordingWakeups | None = None) -> Relay:
    return Relay(world.store, wakeups or world.wakeups, world.environment, owner, 0.5)


def outbox_topics(world: World) -> list[str]:
    return [topic for (topic,) in world.rows("select topic from outbox order by id")]


async def told(world: World, *topics: str) -> None:
    await world.store.write(outbox.append, [(topic, "k", {"id": "k"}) for topic in topics])


async def test_a_committed_submit_is_told_with_ids_only_and_then_forgotten(world: World) -> None:
    submitted = await world.core.submit(text_content())
    assert await relay_of(world).publish() == 2
    body = orjson.dumps({"id": submitted.case_id, "version": 1}).decode()
    assert world.wakeups.told == [
        ("sluice.ready.text", submitted.case_id, body),
        ("sluice.ready.tone", submitted.case_id, body),
    ]
    assert outbox_topics(world) == []
    assert await relay_of(world).publish() == 0


async def test_topics_that_nobody_waits_for_in_this_process_are_published_and_deleted(
    world: World,
) -> None:
    await told(world, "sluice.verdicts", "sluice.late_results")
    await relay_of(world).one_round()
    assert [topic for topic, _, _ in world.wakeups.told] == [
        "sluice.verdicts",
        "sluice.late_results",
    ]
    assert outbox_topics(world) == []


async def test_a_row_that_could_not_be_published_stays_and_those_before_it_do_not(
    world: World,
) -> None:
    await told(world, "a", "b", "c")
    world.wakeups.down.add("b")
    with pytest.raises(ConnectionError):
        await relay_of(world).publish()
    assert outbox_topics(world) == ["b", "c"]

    world.wakeups.down.clear()
    assert await relay_of(world, "r2").publish() == 0  # leased by the first one still
    world.clock.advance(LEASE_SECONDS)
    assert await relay_of(world, "r2").publish() == 2
    assert [topic for topic, _, _ in world.wakeups.told] == ["a", "b", "c"]
    assert outbox_topics(world) == []


async def test_case_3_12_two_relays_share_the_rows_and_miss_none(world: World) -> None:
    await told(world, *(f"t{n}" for n in range(2 * BATCH + 50)))
    relays = [relay_of(world, "r1"), relay_of(world, "r2")]
    counts = await asyncio.gather(*(relay.publish() for relay in relays for _ in range(2)))
    assert sum(counts) == 2 * BATCH + 50
    topics = [topic for topic, _, _ in world.wakeups.told]
    assert sorted(topics) == sorted(f"t{n}" for n in range(2 * BATCH + 50))
    assert outbox_topics(world) == []


async def test_no_transaction_is_open_while_the_bus_is_waited_for(world: World) -> None:
    class WritingWakeups(RecordingWakeups):
        async def publish(self, topic: str, key: str, body: str) -> None:
            async with asyncio.timeout(5):
                await world.store.write(markers.append, ["0" * 32])
            await RecordingWakeups.publish(self, topic, key, body)

    await told(world, "a", "b")
    assert await relay_of(world, wakeups=WritingWakeups()).publish() == 2
    assert len(await world.store.read(markers.of_parent, "0" * 32)) == 2


async def test_an_idle_relay_wakes_by_a_nudge_before_its_poll(world: World) -> None:
    relay = relay_of(world)
    idle = asyncio.create_task(relay.one_round())
    await world.clock.sleeping(1)
    relay.nudge()
    async with asyncio.timeout(5):
        await idle


async def test_an_idle_relay_wakes_by_its_poll_without_any_nudge(world: World) -> None:
    idle = asyncio.create_task(relay_of(world).one_round())
    await world.clock.sleeping(1)
    assert not idle.done()
    world.clock.advance(0.5)
    async with asyncio.timeout(5):
        await idle


async def test_a_nudge_between_the_look_and_the_wait_is_not_lost(world: World) -> None:
    relay = relay_of(world)
    looked = asyncio.create_task(relay.one_round())
    await asyncio.sleep(0)  # the round has begun, and its look at the outbox is under way
    relay.nudge()
    async with asyncio.timeout(5):
        await looked  # the clock stands still: only the nudge can end the wait
