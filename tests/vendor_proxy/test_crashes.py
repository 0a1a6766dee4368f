"""Receives crashes, suspensions and a store that goes away; shows that nothing is sent twice."""

from __future__ import annotations

import asyncio

import pytest

from kernel.attempt import FenceAnswer, Outcome, QueryAnswer, Resend
from kernel.errors import StoreAway
from kernel.idempotency import CallState
from tests.vendor_proxy.flaky_store import FlakyStore
from tests.vendor_proxy.world import BOUNDS, CALLER, VENDOR, MemoryVault, World

LEASE_AND_WRITE = BOUNDS.lease_seconds + BOUNDS.write_seconds


class SlowVault(MemoryVault):
    """A vault that opens when told to: the call stands between begin and wire."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.opened = asyncio.Event(), asyncio.Event()

    async def open(self, ref: str) -> bytes:
        self.asked.set()
        await self.opened.wait()
        return b"hello"


async def test_case_1_04_a_a_crash_before_the_wire_is_resolved_and_sent_once(world: World) -> None:
    await world.control(capabilities={"query_by_key": True})
    world.vault = SlowVault()
    first = await world.gateway()
    request = world.request(payload=b"", payload_ref="r1")
    call = asyncio.create_task(first.core.execute(CALLER, request))
    await world.vault.asked.wait()
    await first.drop()
    with pytest.raises(asyncio.CancelledError):
        await call
    world.vault.opened.set()

    world.clock.advance(1.0)
    core = await world.core()
    early = await core.execute(CALLER, world.request(attempt=2, payload=b"", payload_ref="r1"))
    assert early.outcome is Outcome.IN_PROGRESS
    assert (await core.query_status(CALLER, "k1", VENDOR)).answer is QueryAnswer.RUNNING

    await world.pass_time(LEASE_AND_WRITE)
    later = world.request(attempt=2, payload=b"", payload_ref="r1")
    assert (await core.execute(CALLER, later)).outcome is Outcome.UNKNOWN
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.TOO_EARLY, Resend.REFUSED)
    world.clock.advance(answer.retry_after_seconds)
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert (answer.answer, answer.resend) == (QueryAnswer.NOT_FOUND, Resend.SAFE)
    replayed = await core.execute(CALLER, world.request(payload=b"", payload_ref="r1"))
    assert replayed.outcome is Outcome.UNKNOWN  # its own attempt is in doubt and stays so
    done = await core.execute(CALLER, world.request(attempt=2, payload=b"", payload_ref="r1"))
    assert done.outcome is Outcome.COMPLETED
    assert await world.executions() == 1


async def test_case_1_04_b_a_crash_after_the_vendor_executed_is_settled_by_a_query(
    world: World,
) -> None:
    await world.control(
        capabilities={"query_by_key": True}, script=[{"when": {"key": "k1"}, "do": "hang"}]
    )
    first = await world.gateway()
    call = asyncio.create_task(first.core.execute(CALLER, world.request()))
    await world.until_executed()
    await first.drop()
    with pytest.raises(asyncio.CancelledError):
        await call

    world.clock.advance(1.0)
    core = await world.core()
    early = await core.execute(CALLER, world.request(attempt=2))
    assert early.outcome is Outcome.IN_PROGRESS

    await world.pass_time(LEASE_AND_WRITE)
    fenced, _ = await core.fence(CALLER, "k1", VENDOR, 1)
    assert fenced is FenceAnswer.UNKNOWN
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert answer.answer is QueryAnswer.SETTLED
    assert answer.call is not None
    assert answer.call.outcome is Outcome.COMPLETED
    replayed = await core.execute(CALLER, world.request(attempt=2))
    assert (replayed.outcome, replayed.replayed) == (Outcome.COMPLETED, True)
    assert await world.executions() == 1


async def test_a_dead_owners_open_rows_are_taken_over_as_unknown(world: World) -> None:
    await world.control(script=[{"when": {"key": "k1"}, "do": "hang"}])
    first = await world.gateway()
    call = asyncio.create_task(first.core.execute(CALLER, world.request()))
    await world.until_executed()
    await first.drop()
    await asyncio.gather(call, return_exceptions=True)
    world.clock.advance(LEASE_AND_WRITE)
    core = await world.core()
    row = await world.row(core)
    assert row.ledger.state is CallState.UNKNOWN
    assert row.settled_at is not None
    assert row.outcome is not None
    assert row.outcome.reason == "PROXY_LOST"
    assert row.ledger.last_byte_at == world.clock.now_micros()


async def test_a_resend_after_a_lost_owner_is_marked_since_a_frozen_one_could_still_write(
    world: World,
) -> None:
    await world.control(capabilities={"query_by_key": True})
    world.vault = SlowVault()
    first = await world.gateway()
    request = world.request(payload=b"", payload_ref="r1")
    call = asyncio.create_task(first.core.execute(CALLER, request))
    await world.vault.asked.wait()
    await first.drop()
    await asyncio.gather(call, return_exceptions=True)
    world.vault.opened.set()
    world.clock.advance(LEASE_AND_WRITE + 1.1)
    core = await world.core()
    answer = await core.query_status(CALLER, "k1", VENDOR)
    assert answer.answer is QueryAnswer.NOT_FOUND
    done = await core.execute(CALLER, world.request(attempt=2, payload=b"", payload_ref="r1"))
    assert (done.outcome, done.possible_duplicates) == (Outcome.COMPLETED, 1)


async def test_i3_a_process_suspended_between_begin_and_wire_sends_nothing(world: World) -> None:
    world.vault = SlowVault()
    core = await world.core()
    request = world.request(payload=b"", payload_ref="r1")
    call = asyncio.create_task(core.execute(CALLER, request))
    await world.vault.asked.wait()
    world.clock.advance(BOUNDS.lease_seconds + 1.0)
    world.vault.opened.set()
    outcome = await call
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "LEASE_ENDING")
    assert outcome.sends == 0
    assert await world.requests() == 0


async def test_a_deadline_that_passes_between_begin_and_wire_sends_nothing(world: World) -> None:
    world.vault = SlowVault()
    core = await world.core()
    request = world.request(
        payload=b"", payload_ref="r1", deadline=world.clock.now_micros() + 1_000_000
    )
    call = asyncio.create_task(core.execute(CALLER, request))
    await world.vault.asked.wait()
    world.clock.advance(1.0)
    world.vault.opened.set()
    outcome = await call
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "DEADLINE_PASSED")
    assert await world.requests() == 0


async def test_a_replica_that_cannot_renew_stops_sending_by_itself(world: World) -> None:
    store = FlakyStore(str(world.store.url), world.clock)
    core = await world.core(store=store)
    store.away = True
    world.clock.advance(BOUNDS.lease_seconds - BOUNDS.write_seconds)
    store.away = False
    # The clock has run past the last instant that a byte may leave; no renewal has come yet.
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.reason) == (Outcome.NOT_SENT, "PROXY_NOT_LEASED")
    assert await world.requests() == 0
    await world.gateways[0].drop()
    await store.close()


async def test_nothing_is_sent_when_the_ledger_cannot_be_reached(world: World) -> None:
    store = FlakyStore(str(world.store.url), world.clock)
    core = await world.core(store=store)
    store.away = True
    with pytest.raises(StoreAway):
        await core.execute(CALLER, world.request())
    store.away = False
    assert await world.requests() == 0
    assert core.list_limits()[0].in_flight == 0
    await world.gateways[0].drop()
    await store.close()


async def test_a_begin_whose_commit_lost_its_answer_is_read_back_and_given_back(
    world: World,
) -> None:
    store = FlakyStore(str(world.store.url), world.clock)
    core = await world.core(store=store)
    store.lose_answer_of = "_begin"
    outcome = await core.execute(CALLER, world.request())
    assert (outcome.outcome, outcome.reason, outcome.sends) == (Outcome.NOT_SENT, "STORE_AWAY", 0)
    assert await world.requests() == 0
    again = await core.execute(CALLER, world.request(attempt=2))
    assert (again.outcome, again.sends) == (Outcome.COMPLETED, 1)
    await world.gateways[0].drop()
    await store.close()


async def test_a_settle_whose_commit_lost_its_answer_counts_once(world: World) -> None:
    store = FlakyStore(str(world.store.url), world.clock)
    core = await world.core(store=store)
    store.lose_answer_of = "settle"
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await store.lost.wait()
    await world.clock.sleeping(3)  # the renewal, the receipts' idle wait, the back-off
    world.clock.advance(0.2)
    outcome = await call
    assert (outcome.outcome, outcome.sends, outcome.cost_micros) == (Outcome.COMPLETED, 1, 1000)
    row = await world.row(core)
    assert (row.cost_micros, row.ledger.sends) == (1000, 1)
    await world.gateways[0].drop()
    await store.close()


async def test_an_outcome_waits_for_the_store_and_its_permit_with_it(world: World) -> None:
    await world.control(latency_ms=500)
    store = FlakyStore(str(world.store.url), world.clock)
    core = await world.core(store=store)
    call = asyncio.create_task(core.execute(CALLER, world.request()))
    await world.until_executed()
    store.away = True
    world.clock.advance(0.5)
    await store.failed.wait()
    assert not call.done()
    assert core.list_limits()[0].in_flight == 1
    store.away = False
    await world.clock.sleeping(3)  # the renewal, the receipts' idle wait, the back-off
    world.clock.advance(0.2)
    outcome = await call
    assert outcome.outcome is Outcome.COMPLETED
    assert core.list_limits()[0].in_flight == 0
    await world.gateways[0].drop()
    await store.close()


async def test_a_late_settle_of_a_lost_owner_is_kept_as_evidence(world: World) -> None:
    """A replica that could not renew is taken over by another; its answer still comes in."""
    await world.control(latency_ms=30_000)
    store = FlakyStore(str(world.store.url), world.clock)
    patient = world.profile(client_timeout_seconds=60.0, max_execution_seconds=60.0)
    cut_off = await world.core(patient, store=store)
    call = asyncio.create_task(cut_off.execute(CALLER, world.request()))
    await world.until_executed()
    store.away = True
    world.clock.advance(LEASE_AND_WRITE + 1.0)
    core = await world.core(patient)
    assert (await world.row(core)).ledger.state is CallState.UNKNOWN
    store.away = False
    world.clock.advance(20.0)
    outcome = await call
    assert outcome.outcome is Outcome.COMPLETED
    row = await world.row(core)
    assert (row.ledger.state, row.cost_micros) == (CallState.SETTLED, 1000)
    await world.gateways[0].drop()
    await store.close()


async def test_a_stop_lets_open_calls_settle_and_gives_the_lease_up(world: World) -> None:
    await world.control(latency_ms=500)
    gateway = await world.gateway()
    call = asyncio.create_task(gateway.core.execute(CALLER, world.request()))
    await world.until_executed()
    stop = asyncio.create_task(gateway.stop(5.0))
    # The renewal, the receipts' idle wait, the call's time-out, the vendor's work, the grace.
    await world.clock.sleeping(5)
    refused = await gateway.core.execute(CALLER, world.request("k2"))
    assert (refused.outcome, refused.reason) == (Outcome.NOT_SENT, "SHUTTING_DOWN")
    world.clock.advance(0.5)
    assert (await call).outcome is Outcome.COMPLETED
    await stop
    world.gateways.remove(gateway)
