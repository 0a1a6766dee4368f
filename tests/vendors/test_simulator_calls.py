"""Receives a scripted vendor; checks what each call switch executes and answers."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import aiohttp
import pytest

from tests.vendors.caller import Caller, HandClock
from vendors.simulator import RunningSimulator


def script(do: str, **entry: Any) -> list[dict[str, Any]]:
    return [{"when": {"nth": 1}, "do": do} | entry]


async def page(caller: Caller, key: str) -> Any:
    return (await caller.ledger())["keys"][key]


async def test_a_plain_call_succeeds_with_low_scores_usage_and_price(caller: Caller) -> None:
    await caller.control(price_micros=250)
    reply = await caller.call("k", units={"frames": 30, "tokens": 1.5})
    assert reply.status == 200
    assert reply.body.pop("external_id")
    assert reply.body == {
        "state": "SUCCEEDED",
        "result": {"scores": {"violence": 0.01, "sexual": 0.01, "hate": 0.01}},
        "usage": {"requests": 1, "frames": 30, "tokens": 1.5},
        "cost_micros": 250,
    }


async def test_results_are_chosen_by_text_then_model_then_default(caller: Caller) -> None:
    await caller.control(
        results={"default": {"hate": 0.1}, "m2": {"hate": 0.2}, "knife": {"hate": 0.9}}
    )

    async def hate(key: str, **fields: Any) -> float:
        score: float = (await caller.call(key, **fields)).body["result"]["scores"]["hate"]
        return score

    assert await hate("a") == 0.1
    assert await hate("b", model="m2") == 0.2
    assert await hate("c", model="m2", input={"parts": [{"text": "a knife here"}]}) == 0.9
    assert await hate("d", model="m2", input={"text": "by default"}) == 0.2


@pytest.mark.parametrize("do", ["hide_response", "drop_before"])
async def test_a_cut_call_gets_no_answer(caller: Caller, do: str) -> None:
    await caller.control(script=script(do))
    with pytest.raises(aiohttp.ClientConnectionError):
        await caller.call("k")
    executed = do == "hide_response"
    assert (await page(caller, "k"))["executions"] == executed
    assert (await page(caller, "k"))["charges"] == executed
    assert (await caller.call("k")).status == 200


@pytest.mark.parametrize(
    ("do", "status", "code", "executions", "charges"),
    [
        ("throttle", 429, "throttled", 0, 0),
        ("refuse", 400, "invalid_input", 0, 0),
        ("error_before", 500, "internal", 0, 0),
        ("error_after", 500, "internal", 1, 1),
        ("fail", 422, "failed", 1, 0),
    ],
)
async def test_an_error_says_its_code_and_executes_only_where_it_says_so(
    caller: Caller, do: str, status: int, code: str, executions: int, charges: int
) -> None:
    await caller.control(script=script(do))
    reply = await caller.call("k")
    assert (reply.status, reply.body["error"]["code"]) == (status, code)
    booked = await page(caller, "k")
    assert (booked["executions"], booked["charges"]) == (executions, charges)


async def test_a_throttled_call_is_told_how_long_to_wait(caller: Caller) -> None:
    await caller.control(script=[*script("throttle"), *script("throttle", when={"nth": 2})])
    assert (await caller.call("k")).headers["Retry-After"] == "1"
    await caller.control(script=script("throttle", retry_after=30))
    assert (await caller.call("k")).headers["Retry-After"] == "30"


async def test_garbage_is_executed_and_unreadable(caller: Caller) -> None:
    await caller.control(script=script("garbage"))
    with pytest.raises(ValueError, match="Unterminated"):
        await caller.call("k")
    assert (await page(caller, "k"))["charges"] == 1


async def test_a_slow_call_is_executed_at_once_and_answered_later(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(script=script("slow", slow_ms=3_000))
    pending = asyncio.create_task(caller.call("k"))
    await clock.sleeping(1)
    clock.advance(2.9)
    assert (await page(caller, "k"))["charges"] == 1
    assert not pending.done()
    clock.advance(0.2)
    assert (await pending).status == 200


async def test_a_hanging_call_is_executed_and_ends_without_an_answer_at_the_stop(
    caller: Caller, simulator: RunningSimulator
) -> None:
    await caller.control(script=script("hang"))
    pending = asyncio.create_task(caller.call("k"))
    await caller.until_executed("k")
    await simulator.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await pending


async def test_a_hanging_call_ends_when_its_client_leaves(caller: Caller) -> None:
    await caller.control(script=[{"when": {"every": 1}, "do": "hang"}])
    pending = [asyncio.create_task(caller.call(f"k{number}")) for number in range(3)]
    for number in range(3):
        await caller.until_executed(f"k{number}")
    for each in pending:
        each.cancel()

    async def one_connection_left() -> bool:
        await caller.ledger()
        return sum("RequestHandler" in repr(task.get_coro()) for task in asyncio.all_tasks()) == 1

    await caller.until(one_connection_left)
    assert (await caller.ledger())["in_flight"] == 0


async def test_a_call_whose_client_left_goes_on_and_counts_until_it_ends(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(latency_ms=1_000, concurrency=1)
    pending = asyncio.create_task(caller.call("k"))
    await clock.sleeping(1)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    assert (await caller.ledger())["in_flight"] == 1
    assert (await caller.call("other")).status == 429
    clock.advance(1)

    async def ended() -> bool:
        return bool((await caller.ledger())["in_flight"] == 0)

    await caller.until(ended)
    assert (await page(caller, "k"))["charges"] == 1


async def test_calls_above_the_limit_are_counted_and_not_executed(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(latency_ms=100, concurrency=2)
    pending = [asyncio.create_task(caller.call(key)) for key in ("a", "b")]
    await clock.sleeping(2)
    refused = await caller.call("c")
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    clock.advance(0.1)
    assert [reply.status for reply in await asyncio.gather(*pending)] == [200, 200]
    later = asyncio.create_task(caller.call("d"))
    await clock.sleeping(1)
    clock.advance(0.1)
    assert (await later).status == 200
    ledger = await caller.ledger()
    assert ledger["keys"]["c"]["executions"] == 0
    assert (ledger["peak_in_flight"], ledger["calls_above_limit"]) == (2, 1)
    assert ledger["in_flight"] == 0


async def test_without_deduplication_each_resend_executes_and_charges(caller: Caller) -> None:
    await caller.control()
    first, second = await caller.call("k"), await caller.call("k")
    assert first.body["external_id"] != second.body["external_id"]
    booked = await page(caller, "k")
    assert (booked["executions"], booked["charges"], booked["cost_micros"]) == (2, 2, 2_000)
    assert booked["external_ids"] == [first.body["external_id"], second.body["external_id"]]


async def test_with_deduplication_a_resend_gets_the_stored_answer(caller: Caller) -> None:
    await caller.control(capabilities={"dedupe": True}, script=script("hide_response"))
    with pytest.raises(aiohttp.ClientConnectionError):
        await caller.call("k")
    first, second = await caller.call("k"), await caller.call("k")
    assert first.headers["Idempotent-Replayed"] == "true"
    assert first.body == second.body
    booked = await page(caller, "k")
    assert (booked["requests"], booked["executions"], booked["charges"]) == (3, 1, 1)


async def test_concurrent_equal_keys_wait_for_the_first_and_execute_once(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(capabilities={"dedupe": True}, latency_ms=300, concurrency=1)
    pending = [asyncio.create_task(caller.call("k")) for _ in range(20)]

    async def all_came_in() -> bool:
        return bool((await caller.ledger())["requests"] == 20)

    await caller.until(all_came_in)
    assert not any(each.done() for each in pending)
    clock.advance(0.3)
    replies = await asyncio.gather(*pending)
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body["external_id"] for reply in replies}) == 1
    assert sum("Idempotent-Replayed" in reply.headers for reply in replies) == 19
    booked = await page(caller, "k")
    assert (booked["executions"], booked["charges"], booked["requests"]) == (1, 1, 20)
    assert (await caller.ledger())["calls_above_limit"] == 0


async def test_another_body_under_a_known_key_is_a_mismatch_even_in_flight(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(capabilities={"dedupe": True}, latency_ms=100)
    pending = asyncio.create_task(caller.call("k", input={"to": "A", "n": 1}))
    await clock.sleeping(1)
    in_flight = await caller.call("k", input={"to": "B", "n": 1})
    clock.advance(0.1)
    await pending
    after = await caller.call("k", input={"to": "B", "n": 1})
    for refused in (in_flight, after):
        assert (refused.status, refused.body["error"]["code"]) == (422, "key_mismatch")
    reordered = await caller.call("k", input={"n": 1, "to": "A"})
    assert reordered.headers["Idempotent-Replayed"] == "true"
    booked = await page(caller, "k")
    assert (booked["executions"], booked["bodies"]) == (1, 2)


async def test_after_the_key_window_a_resend_executes_again(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(capabilities={"dedupe": True, "key_window_ms": 1_000})
    await caller.call("k")
    clock.advance(1)
    assert "Idempotent-Replayed" in (await caller.call("k")).headers
    clock.advance(0.001)
    assert "Idempotent-Replayed" not in (await caller.call("k")).headers
    assert (await page(caller, "k"))["executions"] == 2


async def test_a_batch_answers_each_call_in_order(caller: Caller) -> None:
    await caller.control(
        capabilities={"dedupe": True},
        script=[
            {"when": {"key": "b"}, "do": "throttle", "retry_after": 7},
            {"when": {"key": "c"}, "do": "error_after"},
            {"when": {"key": "d"}, "do": "garbage"},
        ],
    )
    reply = await caller.batch("a", "b", "c", "d", "a")
    a, b, c, d, again = reply.body["results"]
    assert [each["status"] for each in (a, b, c, d, again)] == [200, 429, 500, 200, 200]
    assert b["headers"] == {"Retry-After": "7"}
    assert isinstance(d["body"], str)
    assert again["body"] == a["body"]
    assert again["headers"] == {"Idempotent-Replayed": "true"}
    executions = {key: each["executions"] for key, each in (await caller.ledger())["keys"].items()}
    assert executions == {"a": 1, "b": 0, "c": 1, "d": 1}


async def test_a_batch_call_and_a_single_call_share_keys_and_bodies(caller: Caller) -> None:
    await caller.control(capabilities={"dedupe": True})
    single = await caller.call("k")
    batch = await caller.batch("k", kind="TEXT", input={"text": "hello"})
    assert batch.body["results"][0]["body"] == single.body
    assert (await page(caller, "k"))["bodies"] == 1


@pytest.mark.parametrize(("do", "executions"), [("hide_response", 1), ("drop_before", 0)])
async def test_a_cut_in_a_batch_cuts_the_whole_batch(
    caller: Caller, do: str, executions: int
) -> None:
    await caller.control(script=[{"when": {"key": "b"}, "do": do}])
    with pytest.raises(aiohttp.ClientConnectionError):
        await caller.batch("a", "b", "c")
    keys = (await caller.ledger())["keys"]
    assert [keys[key]["executions"] for key in "abc"] == [executions] * 3


async def test_a_bad_call_in_a_batch_spoils_only_itself(caller: Caller) -> None:
    await caller.control()
    calls: list[Any] = [{"idempotency_key": "a"}, {}, 7, {"idempotency_key": "b", "model": 7}]
    reply = await caller.ask("POST", "/v/v/batch", json={"calls": calls})
    assert [each["status"] for each in reply.body["results"]] == [200, 400, 400, 400]
    assert (await caller.ledger())["requests"] == 1


@pytest.mark.parametrize(
    "how",
    [
        {"data": b"secret-text", "headers": {"Idempotency-Key": "k"}},
        {"json": ["secret-text"], "headers": {"Idempotency-Key": "k"}},
        {"json": {"input": "secret-text"}},
        {"json": {"units": {"secret-text": -1}}, "headers": {"Idempotency-Key": "k"}},
        {"json": {"model": {"secret-text": 1}}, "headers": {"Idempotency-Key": "k"}},
    ],
)
async def test_a_malformed_call_is_refused_without_repeating_it(
    caller: Caller, how: dict[str, Any]
) -> None:
    await caller.control()
    reply = await caller.ask("POST", "/v/v/calls", **how)
    assert (reply.status, reply.body["error"]["code"]) == (400, "invalid_input")
    assert "secret-text" not in str(reply.body)
    assert (await caller.ledger())["requests"] == 0


@pytest.mark.parametrize(("mebibytes", "status"), [(63, 200), (64, 413)])
async def test_a_body_may_have_64_mebibytes(caller: Caller, mebibytes: int, status: int) -> None:
    await caller.control()
    body = io.BytesIO(b'{"input": "' + b"x" * (mebibytes * 1024 * 1024) + b'"}')
    reply = await caller.ask("POST", "/v/v/calls", data=body, headers={"Idempotency-Key": "k"})
    assert reply.status == status
    assert status == 200 or reply.body["error"]["code"] == "too_large"
