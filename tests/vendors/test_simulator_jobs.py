"""Receives a scripted vendor; checks its jobs as receipts, queries and cancels show them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from tests.vendors.caller import Caller, HandClock, Receiver
from vendors.simulator import RunningSimulator

SECRET = "whsec_c2x1aWNlLXRlc3Qtc2VjcmV0LXNsdWljZQ=="

ASYNC = {"asynchronous": True, "receipts": True, "query_by_key": True, "query_by_id": True}


async def put(
    caller: Caller, *actions: str, capabilities: dict[str, Any] = ASYNC, **more: Any
) -> None:
    script = [{"when": {"nth": 1}, "do": do} for do in actions]
    await caller.control(
        capabilities=dict(capabilities), receipt_secret=SECRET, script=script, **more
    )


async def test_an_asynchronous_call_is_accepted_then_told_and_shown(
    caller: Caller, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller, latency_ms=500)
    accepted = await caller.call("k", receipt_url=receiver.url)
    assert (accepted.status, accepted.body["state"]) == (202, "ACCEPTED")
    external_id = accepted.body["external_id"]
    processing = await receiver.next(SECRET)
    assert processing["status"] == "processing"
    assert (await caller.query("k")).body == {"external_id": external_id, "state": "RUNNING"}
    await clock.sleeping(1)
    clock.advance(0.5)
    final = await receiver.next(SECRET)
    assert final["event_id"] != processing["event_id"]
    assert final["occurred_at"] > processing["occurred_at"]
    assert (final["reference"], final["external_id"]) == ("k", external_id)
    assert (final["status"], final["cost_micros"]) == ("succeeded", 1_000)
    shown = (await caller.ask("GET", f"/v/v/calls/{external_id}")).body
    assert shown["state"] == "SUCCEEDED"
    assert shown["result"] == final["result"]
    assert shown["usage"] == {"requests": 1}
    assert (await caller.ledger())["keys"]["k"]["receipts_sent"] == 2


async def test_a_receipt_is_signed_over_its_raw_bytes_with_the_vendors_secret(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller)
    await caller.call("k", receipt_url=receiver.url)
    letter = await receiver.letters.get()
    assert letter.verified(SECRET)["event_id"] == letter.headers["webhook-id"]
    letter.raw += b" "
    with pytest.raises(WebhookVerificationError):
        letter.verified(SECRET)


async def test_a_vendor_without_a_given_secret_shows_the_one_it_made(
    caller: Caller, receiver: Receiver
) -> None:
    shown = await caller.control(capabilities={"receipts": True})
    await caller.call("k", receipt_url=receiver.url)
    assert (await receiver.next(shown.body["settings"]["receipt_secret"]))["status"] == "succeeded"


async def test_a_receipt_is_retried_until_the_receiver_takes_it(
    caller: Caller, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller, capabilities={"receipts": True})
    receiver.statuses = [500, 503, 400]
    await caller.call("k", receipt_url=receiver.url)
    told = [await receiver.next(SECRET)]
    for backoff_seconds in (0.1, 0.2, 0.4):
        await clock.sleeping(1)
        clock.advance(backoff_seconds)
        told.append(await receiver.next(SECRET))
    assert {each["event_id"] for each in told} == {told[0]["event_id"]}
    assert (await caller.ledger())["keys"]["k"]["receipts_sent"] == 1


async def test_a_receipt_is_given_up_after_five_sends(
    caller: Caller, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller)
    receiver.statuses = [500] * 5
    await caller.call("k", receipt_url=receiver.url)
    for backoff_seconds in (0.1, 0.2, 0.4, 0.8):
        assert (await receiver.next(SECRET))["status"] == "processing"
        await clock.sleeping(1)
        clock.advance(backoff_seconds)
    assert (await receiver.next(SECRET))["status"] == "processing"
    assert (await receiver.next(SECRET))["status"] == "succeeded"


async def test_reordered_receipts_tell_the_end_first(caller: Caller, receiver: Receiver) -> None:
    await put(caller, "reorder_receipts")
    await caller.call("k", receipt_url=receiver.url)
    told = [await receiver.next(SECRET) for _ in range(2)]
    assert [each["status"] for each in told] == ["succeeded", "processing"]


async def test_a_late_receipt_waits_with_the_end_only(
    caller: Caller, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller, "late_receipt")
    await caller.call("k", receipt_url=receiver.url)
    assert (await receiver.next(SECRET))["status"] == "processing"
    await clock.sleeping(1)
    assert (await caller.query("k")).body["state"] == "SUCCEEDED"
    clock.advance(1.9)
    assert receiver.letters.empty()
    clock.advance(0.1)
    assert (await receiver.next(SECRET))["status"] == "succeeded"


async def test_duplicated_receipts_repeat_the_event_id_about_half_of_the_time(
    caller: Caller, receiver: Receiver
) -> None:
    every = [{"when": {"every": 1}, "do": "duplicate_receipt"}]
    await caller.control(
        capabilities={"receipts": True}, receipt_secret=SECRET, seed=3, script=every
    )
    same = 0
    for number in range(40):
        await caller.call(f"k{number}", receipt_url=receiver.url)
        first, second = await receiver.next(SECRET), await receiver.next(SECRET)
        same += first["event_id"] == second["event_id"]
        first.pop("event_id")
        second.pop("event_id")
        assert first == second
    assert 10 < same < 30
    assert (await caller.ledger())["keys"]["k0"]["receipts_sent"] == 2


async def test_a_forged_receipt_says_failed_and_does_not_verify(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller, "forged_receipt", capabilities={"receipts": True})
    receiver.statuses = [401]
    await caller.call("k", receipt_url=receiver.url)
    forged = await receiver.letters.get()
    with pytest.raises(WebhookVerificationError):
        forged.verified(SECRET)
    assert b'"failed"' in forged.raw
    assert (await receiver.next(SECRET))["status"] == "succeeded"
    assert (await caller.ledger())["keys"]["k"]["receipts_sent"] == 1


async def test_receipt_actions_apply_together_and_beside_a_call_action(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller, "error_after", "duplicate_receipt", "reorder_receipts")
    assert (await caller.call("k", receipt_url=receiver.url)).status == 500
    told = [(await receiver.next(SECRET))["status"] for _ in range(4)]
    assert told == ["succeeded", "succeeded", "processing", "processing"]


@pytest.mark.parametrize(
    ("actions", "capabilities"), [(["no_receipt"], ASYNC), ([], {"asynchronous": True})]
)
async def test_no_receipt_is_sent_where_there_shall_be_none(
    caller: Caller, receiver: Receiver, actions: list[str], capabilities: dict[str, Any]
) -> None:
    await put(caller, *actions, capabilities=capabilities | {"query_by_key": True})
    await caller.call("silent", receipt_url=receiver.url)

    async def ended() -> bool:
        return bool((await caller.query("silent")).body["state"] == "SUCCEEDED")

    await caller.until(ended)
    await put(caller)
    await caller.call("told", receipt_url=receiver.url)
    assert (await receiver.next(SECRET))["reference"] == "told"
    assert (await caller.ledger())["keys"]["silent"]["receipts_sent"] == 0


async def test_a_failed_job_is_told_and_shown_and_not_charged(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller, "fail")
    await caller.call("k", receipt_url=receiver.url)
    told = [(await receiver.next(SECRET))["status"] for _ in range(2)]
    assert told == ["processing", "failed"]
    shown = (await caller.query("k")).body
    assert (shown["state"], shown["error"]["code"]) == ("FAILED", "failed")
    assert (await caller.ledger())["keys"]["k"]["charges"] == 0


async def test_an_executed_call_is_invisible_until_the_lag_has_passed(
    caller: Caller, clock: HandClock
) -> None:
    lagging = {"query_by_key": True, "query_by_id": True, "consistency_lag_ms": 500}
    await caller.control(capabilities=lagging)
    external_id = (await caller.call("k")).body["external_id"]
    clock.advance(0.499)
    for path in ("/v/v/calls?key=k", f"/v/v/calls/{external_id}"):
        hidden = await caller.ask("GET", path)
        assert (hidden.status, hidden.body["error"]["code"]) == (404, "not_found")
    clock.advance(0.001)
    for path in ("/v/v/calls?key=k", f"/v/v/calls/{external_id}"):
        assert (await caller.ask("GET", path)).body["state"] == "SUCCEEDED"
    assert (await caller.ledger())["queries"] == 4


async def test_what_the_vendor_cannot_do_is_unsupported(caller: Caller) -> None:
    await caller.control()
    external_id = (await caller.call("k")).body["external_id"]
    for method, path in (
        ("GET", "/v/v/calls?key=k"),
        ("GET", f"/v/v/calls/{external_id}"),
        ("DELETE", f"/v/v/calls/{external_id}"),
    ):
        reply = await caller.ask(method, path)
        assert (reply.status, reply.body["error"]["code"]) == (405, "unsupported")


async def test_what_was_never_called_is_not_found(caller: Caller) -> None:
    can = {"query_by_key": True, "query_by_id": True, "cancel": True}
    await caller.control(capabilities=can)
    for method, path in (
        ("GET", "/v/v/calls?key=k"),
        ("GET", "/v/v/calls/k"),
        ("DELETE", "/v/v/calls/k"),
    ):
        reply = await caller.ask(method, path)
        assert (reply.status, reply.body["error"]["code"]) == (404, "not_found")


async def test_a_running_job_can_be_cancelled_and_a_finished_one_cannot(
    caller: Caller, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller, capabilities=ASYNC | {"cancel": True}, latency_ms=100, concurrency=1)
    external_id = (await caller.call("k", receipt_url=receiver.url)).body["external_id"]
    assert (await receiver.next(SECRET))["status"] == "processing"
    cancelled = await caller.ask("DELETE", f"/v/v/calls/{external_id}")
    assert (cancelled.status, cancelled.body["state"]) == (200, "CANCELLED")
    assert (await receiver.next(SECRET))["status"] == "cancelled"
    assert (await caller.query("k")).body["state"] == "CANCELLED"
    ledger = await caller.ledger()
    assert (ledger["in_flight"], ledger["keys"]["k"]["charges"]) == (0, 0)
    external_id = (await caller.call("k2")).body["external_id"]
    await clock.sleeping(2)  # the cancelled job's sleeper is still there
    clock.advance(0.1)

    async def refused() -> bool:
        reply = await caller.ask("DELETE", f"/v/v/calls/{external_id}")
        return (reply.status, reply.body["state"]) == (409, "SUCCEEDED")

    assert await refused()
    ledger = await caller.ledger()
    assert (ledger["in_flight"], ledger["keys"]["k"]["charges"]) == (0, 0)


@pytest.mark.parametrize(("counts", "statuses"), [("jobs", [202, 429]), ("requests", [202, 202])])
async def test_an_asynchronous_vendor_counts_jobs_or_requests(
    caller: Caller, counts: str, statuses: list[int]
) -> None:
    await put(caller, latency_ms=100, concurrency=1, counts=counts)
    assert [(await caller.call(key)).status for key in ("a", "b")] == statuses
    ledger = await caller.ledger()
    assert (ledger["in_flight"], ledger["peak_in_flight"]) == (1 if counts == "jobs" else 0, 1)


async def test_an_asynchronous_resend_gets_the_acceptance_again(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller, capabilities=ASYNC | {"dedupe": True}, latency_ms=100)
    first = await caller.call("k", receipt_url=receiver.url)
    second = await caller.call("k", receipt_url=receiver.url)
    assert (second.status, second.body) == (202, first.body)
    assert (await caller.ledger())["keys"]["k"]["executions"] == 1


async def test_a_receipt_by_hand_is_sent_as_wished(caller: Caller, receiver: Receiver) -> None:
    await put(caller, "no_receipt")
    external_id = (await caller.call("k", receipt_url=receiver.url)).body["external_id"]
    receiver.statuses = [202]
    wish = {"key": "k", "status": "brand_new", "event_id": "e1", "occurred_at": "not a time"}
    reply = await caller.ask("POST", "/_control/v/receipts", json=wish | {"result": {"a": 1}})
    assert (reply.status, reply.body) == (200, {"status": 202, "event_id": "e1"})
    told = await receiver.next(SECRET)
    assert told == {
        "event_id": "e1",
        "reference": "k",
        "external_id": external_id,
        "status": "brand_new",
        "occurred_at": "not a time",
        "result": {"a": 1},
    }


async def test_a_receipt_by_hand_can_be_forged_for_a_key_nobody_called(
    caller: Caller, receiver: Receiver
) -> None:
    await put(caller)
    other = "whsec_b3RoZXItc2VjcmV0LW90aGVyLXNlY3JldA=="
    wish = {"key": "k", "status": None, "event_id": None, "url": receiver.url, "secret": other}
    assert (await caller.ask("POST", "/_control/v/receipts", json=wish)).body["status"] == 204
    letter = await receiver.letters.get()
    with pytest.raises(WebhookVerificationError):
        letter.verified(SECRET)
    told = letter.verified(other)
    assert told["status"] is None
    assert "event_id" not in told
    assert (await caller.ledger())["keys"] == {}


async def test_a_receipt_by_hand_needs_an_address_and_a_receiver(caller: Caller) -> None:
    await put(caller)
    wish = {"key": "k", "status": "succeeded"}
    reply = await caller.ask("POST", "/_control/v/receipts", json=wish)
    assert (reply.status, reply.body["error"]["code"]) == (400, "invalid_receipt")
    wish["url"] = caller.base.replace("http", "nothing")
    reply = await caller.ask("POST", "/_control/v/receipts", json=wish)
    assert (reply.status, reply.body["error"]["code"]) == (502, "receiver_unreachable")


async def test_the_stop_waits_for_nobody(
    caller: Caller, simulator: RunningSimulator, clock: HandClock, receiver: Receiver
) -> None:
    await put(caller, latency_ms=1_000_000)
    await caller.call("k", receipt_url=receiver.url)
    await clock.sleeping(1)
    running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert running >= {"Vendor._work", "Teller.tell"}
    await simulator.stop()
    running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not running & {"Vendor._work", "Teller.tell"}
