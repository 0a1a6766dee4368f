"""Receives the same key again and again; shows what each meeting means."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from kernel.attempt import Outcome
from kernel.errors import InvalidArgument
from kernel.idempotency import Capabilities
from kernel.store.transaction import Store
from tests.vendor_proxy.world import CALLER, VENDOR, World

HANG = [{"when": {"key": "k1"}, "do": "hang", "times": 1}]


async def test_a_call_is_made_once_and_replayed_at_any_attempt(world: World) -> None:
    core = await world.core()
    first = await core.execute(CALLER, world.request())
    assert (first.outcome, first.sends, first.replayed) == (Outcome.COMPLETED, 1, False)
    for attempt in (1, 2, 7):
        again = await core.execute(CALLER, world.request(attempt=attempt))
        assert again.replayed
        assert (again.scores, again.external_id) == (first.scores, first.external_id)
        assert (again.sends, again.cost_micros) == (1, first.cost_micros)
    assert await world.requests() == 1


async def test_case_1_02_attempts_of_other_processes_use_the_key_stored_before_the_first_byte(
    world: World,
) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "hang"}])
    one = await world.core()
    call = asyncio.create_task(one.execute(CALLER, world.request("task-key")))
    await world.until_executed("task-key")
    stored_while_on_the_wire = (await world.row(one, "task-key")).reference
    world.clock.advance(2.0)
    assert (await call).outcome is Outcome.UNKNOWN
    world.clock.advance(1.5)
    other = await world.core()
    await other.query_status(CALLER, "task-key", VENDOR)
    later = replace(
        world.request("task-key", attempt=2), deadline=world.clock.now_micros() + 9_000_000
    )
    await other.execute(CALLER, later)
    assert list((await world.ledger())["keys"]) == [stored_while_on_the_wire] == ["task-key"]


async def test_case_1_05_twenty_equal_calls_on_two_replicas_execute_once(world: World) -> None:
    await world.control(latency_ms=300)
    other_store = Store(str(world.store.url), world.clock)
    cores = [await world.core(), await world.core(store=other_store)]
    barrier = asyncio.Event()

    async def one(number: int) -> Outcome:
        await barrier.wait()
        return (await cores[number % 2].execute(CALLER, world.request())).outcome

    calls = [asyncio.create_task(one(number)) for number in range(20)]
    barrier.set()
    await world.until_executed()
    world.clock.advance(0.3)
    outcomes = await asyncio.gather(*calls)
    assert set(outcomes) <= {Outcome.COMPLETED, Outcome.IN_PROGRESS}
    assert Outcome.COMPLETED in outcomes
    ledger = await world.ledger()
    assert (ledger["requests"], ledger["keys"]["k1"]["executions"]) == (1, 1)
    await other_store.close()


async def test_case_1_07_another_body_is_a_mismatch_even_while_the_first_is_in_flight(
    world: World,
) -> None:
    await world.control(script=HANG)
    core, other = await world.core(), await world.core()
    first = world.request(payload=b'{"to":"A","n":1}')
    reordered = replace(first, payload=b'{"n":1,"to":"A"}')
    different = replace(first, payload=orjson.dumps({"to": "B", "n": 1}))
    call = asyncio.create_task(core.execute(CALLER, first))
    await world.until_executed()

    joined = asyncio.create_task(core.execute(CALLER, reordered))
    elsewhere = await other.execute(CALLER, reordered)
    refused = [await each.execute(CALLER, different) for each in (core, other)]
    world.clock.advance(2.0)
    outcome = await call
    replayed = await joined

    assert elsewhere.outcome is Outcome.IN_PROGRESS
    assert {(each.outcome, each.field) for each in refused} == {
        (Outcome.REQUEST_MISMATCH, "payload")
    }
    assert (outcome.outcome, replayed.outcome) == (Outcome.UNKNOWN, Outcome.UNKNOWN)
    afterwards = await core.execute(CALLER, different)
    assert (afterwards.outcome, afterwards.field) == (Outcome.REQUEST_MISMATCH, "payload")
    assert await world.requests() == 1


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("model_id", "other", "model"),
        ("model_version", "9", "model"),
        ("kind", "IMAGE", "kind"),
        ("units", {"tokens": 3}, "units"),
        ("tenant_id", "t2", "tenant_id"),
        ("payload", b"other", "payload"),
    ],
)
async def test_each_field_that_differs_is_named(
    world: World, field: str, value: Any, named: str
) -> None:
    core = await world.core()
    await core.execute(CALLER, world.request())
    outcome = await core.execute(CALLER, world.request(**{field: value}))
    assert (outcome.outcome, outcome.field) == (Outcome.REQUEST_MISMATCH, named)


async def test_attempt_deadline_and_budget_are_no_part_of_sameness(world: World) -> None:
    core = await world.core()
    await core.execute(CALLER, world.request())
    again = await core.execute(
        CALLER,
        world.request(attempt=3, deadline=world.clock.now_micros() + 999_000_000, max_sends=2),
    )
    assert (again.outcome, again.replayed) == (Outcome.COMPLETED, True)


async def test_two_callers_equal_keys_never_meet_not_even_at_a_vendor_that_deduplicates(
    world: World,
) -> None:
    await world.control(capabilities={"dedupe": True})
    core = await world.core(world.profile(Capabilities(dedupe=True)))
    mine = await core.execute("one", world.request(payload=b"mine"))
    theirs = await core.execute("two", world.request(payload=b"theirs"))
    assert (mine.outcome, theirs.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert not theirs.replayed
    keys = (await world.ledger())["keys"]
    assert [page["executions"] for page in keys.values()] == [1, 1]
    assert "k1" in keys
    assert not any("two" in key for key in keys)


async def test_a_refusal_that_may_pass_is_replayed_at_its_attempt_and_sent_at_a_higher_one(
    world: World,
) -> None:
    await world.control(script=[{"when": {"nth": 1}, "do": "throttle", "retry_after": 0}])
    core = await world.core()
    first = await core.execute(CALLER, world.request())
    again = await core.execute(CALLER, world.request())
    assert (first.outcome, again.outcome) == (Outcome.THROTTLED, Outcome.THROTTLED)
    assert (first.replayed, again.replayed) == (False, True)
    third = await core.execute(CALLER, world.request(attempt=2))
    assert (third.outcome, third.sends) == (Outcome.COMPLETED, 2)
    assert await world.requests() == 2


async def test_case_2_02_a_lower_attempt_is_stale_and_reaches_no_vendor(world: World) -> None:
    core = await world.core()
    await core.execute(CALLER, world.request(attempt=2))
    stale = await core.execute(CALLER, world.request(attempt=1))
    assert stale.outcome is Outcome.STALE_ATTEMPT
    assert await world.requests() == 1


async def test_a_lower_attempt_is_stale_while_the_higher_one_is_in_flight(world: World) -> None:
    await world.control(script=HANG)
    core = await world.core()
    call = asyncio.create_task(core.execute(CALLER, world.request(attempt=2)))
    await world.until_executed()
    stale = await core.execute(CALLER, world.request(attempt=1))
    assert stale.outcome is Outcome.STALE_ATTEMPT
    world.clock.advance(2.0)
    await call


async def test_a_caller_that_leaves_ends_nothing_and_finds_the_outcome_later(world: World) -> None:
    await world.control(latency_ms=500)
    core = await world.core()
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    joined = asyncio.create_task(core.execute(CALLER, world.request()))
    while (await core.query_status(CALLER, "k1", VENDOR)).answer.value != "RUNNING":
        pass
    world.clock.advance(0.5)
    outcome = await joined
    assert (outcome.outcome, outcome.replayed) == (Outcome.COMPLETED, True)
    assert await world.executions() == 1


async def test_a_deadline_that_passed_is_not_sent_but_what_is_settled_is_replayed_first(
    world: World,
) -> None:
    core = await world.core()
    past = world.clock.now_micros() - 1
    late = await core.execute(CALLER, world.request("k2", deadline=past))
    assert (late.outcome, late.reason) == (Outcome.NOT_SENT, "DEADLINE_PASSED")
    await core.execute(CALLER, world.request())
    replayed = await core.execute(CALLER, world.request(deadline=past))
    assert (replayed.outcome, replayed.replayed) == (Outcome.COMPLETED, True)
    assert await world.requests() == 1


async def test_every_bad_field_is_named_at_once(world: World) -> None:
    core = await world.core()
    with pytest.raises(InvalidArgument) as refused:
        await core.execute(
            CALLER,
            world.request(
                "", vendor="x", pool="y", kind="SONG", payload=b"", attempt=0, max_sends=0
            ),
        )
    named = {each.field for each in refused.value.violations}
    assert named == {
        "idempotency_key",
        "vendor",
        "pool",
        "kind",
        "payload",
        "attempt",
        "max_sends",
    }
