"""Receives a scripted vendor; checks its control, its ledger, its bill and its seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest

from kernel.environment import Environment
from tests.vendors.caller import Caller, HandClock
from vendors.simulator import RunningSimulator, serve
from vendors.simulator.chance import Chance
from vendors.simulator.script import Script
from vendors.simulator.settings import Settings


def chosen(calls: list[tuple[str, str]], *entries: dict[str, Any], seed: int = 0) -> list[Any]:
    """What the script does to each (key, model): its call action, then its receipt actions."""
    settings = Settings.model_validate({"script": entries}, strict=False)
    script = Script(settings.script, Chance(Environment(), seed))

    def each() -> Iterator[Any]:
        for key, model in calls:
            action, receipts = script.choose(key, model)
            yield tuple(entry.do.value for entry in (action, *receipts) if entry)

    return list(each())


def same_model(count: int) -> list[tuple[str, str]]:
    return [(f"k{number}", "m") for number in range(count)]


def test_nth_and_every_count_from_one() -> None:
    entries = (
        {"when": {"nth": 2}, "do": "hang"},
        {"when": {"every": 3}, "do": "slow"},
    )
    assert chosen(same_model(6), *entries) == [(), ("hang",), ("slow",), (), (), ("slow",)]


def test_with_a_model_only_its_calls_are_counted() -> None:
    calls = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")]
    entry = {"when": {"nth": 2, "model": "y"}, "do": "hang"}
    assert chosen(calls, entry) == [(), (), (), ("hang",)]


def test_the_first_call_action_wins_and_all_receipt_actions_apply() -> None:
    dos = ("late_receipt", "slow", "hang", "no_receipt")
    entries = [{"when": {"every": 1}, "do": do} for do in dos]
    assert chosen(same_model(1), *entries) == [("slow", "late_receipt", "no_receipt")]


def test_times_bounds_an_entry_and_lets_the_next_one_fire() -> None:
    entries = (
        {"when": {"every": 1}, "do": "slow", "times": 2},
        {"when": {"every": 1}, "do": "hang", "times": 1},
    )
    assert chosen(same_model(4), *entries) == [("slow",), ("slow",), ("hang",), ()]


def test_once_per_key_never_fires_twice_on_one_key() -> None:
    entry = {"when": {"every": 1}, "do": "drop_before", "once_per_key": True}
    calls = [("a", "m"), ("a", "m"), ("b", "m"), ("a", "m")]
    assert chosen(calls, entry) == [("drop_before",), (), ("drop_before",), ()]


def test_a_key_is_met_whenever_it_comes() -> None:
    entry = {"when": {"key": "a"}, "do": "hang"}
    assert chosen([("a", "m"), ("b", "m"), ("a", "m")], entry) == [("hang",), (), ("hang",)]


def test_a_probability_draws_the_same_under_the_same_seed() -> None:
    entry = {"when": {"p": 0.3}, "do": "hang"}
    first = chosen(same_model(500), entry, seed=7)
    assert first == chosen(same_model(500), entry, seed=7)
    assert first != chosen(same_model(500), entry, seed=8)
    assert 100 < first.count(("hang",)) < 200


def test_who_wins_does_not_change_the_draws_of_those_behind() -> None:
    behind = {"when": {"p": 0.5}, "do": "no_receipt"}
    alone = chosen(same_model(100), behind, seed=7)
    after_a_winner = chosen(same_model(100), {"when": {"nth": 1}, "do": "hang"}, behind, seed=7)
    assert alone[1:] == after_a_winner[1:]


def test_a_spent_entry_does_not_change_the_draws_of_those_behind() -> None:
    behind = {"when": {"p": 0.5}, "do": "no_receipt"}
    before = {"when": {"p": 1.0}, "do": "hang"}
    unbounded = chosen(same_model(100), before, behind, seed=7)
    bounded = chosen(same_model(100), before | {"times": 1}, behind, seed=7)
    assert [dos[-1] == "no_receipt" for dos in unbounded[1:]] == [bool(x) for x in bounded[1:]]


def test_latency_is_fixed_or_log_normal_between_its_percentiles() -> None:
    chance = Chance(Environment(), 1)
    assert chance.latency_seconds(250) == 0.25
    drawn = sorted(chance.latency_seconds((100, 900)) for _ in range(10_000))
    assert drawn[5_000] == pytest.approx(0.1, rel=0.05)
    assert drawn[9_900] == pytest.approx(0.9, rel=0.15)
    again = Chance(Environment(), 1)
    assert sorted(again.latency_seconds((100, 900)) for _ in range(10_000)) == drawn


async def test_a_seeded_vendor_acts_the_same_twice(caller: Caller) -> None:
    async def statuses(vendor: str, seed: int) -> list[int]:
        script = [{"when": {"p": 0.5}, "do": "throttle"}]
        await caller.control(vendor, seed=seed, script=script)
        return [(await caller.call(f"k{number}", vendor)).status for number in range(40)]

    first = await statuses("one", 5)
    assert first == await statuses("two", 5)
    assert first != await statuses("three", 6)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"colour": 1}, "colour"),
        ({"capabilities": {"dedup": True}}, "capabilities.dedup"),
        ({"capabilities": {"dedupe": 1}}, "capabilities.dedupe"),
        ({"capabilities": {"consistency_lag_ms": -1}}, "capabilities.consistency_lag_ms"),
        ({"script": [{"when": {"nth": 1}, "do": "explode"}]}, "script.0.do"),
        ({"script": [{"when": {"nth": 0}, "do": "hang"}]}, "script.0.when.nth"),
        ({"script": [{"when": {"nth": 1, "p": 0.5}, "do": "hang"}]}, "script.0.when"),
        ({"script": [{"when": {}, "do": "hang"}]}, "script.0.when"),
        ({"script": [{"when": {"p": 2}, "do": "hang"}]}, "script.0.when.p"),
        ({"script": [{"when": {"nth": 1}, "do": "hang", "slow": 1}]}, "script.0.slow"),
        ({"latency_ms": [5, 1]}, "latency_ms"),
        ({"latency_ms": -5}, "latency_ms"),
        ({"concurrency": 0}, "concurrency"),
        ({"counts": "calls"}, "counts"),
        ({"results": {"default": {"hate": 1.5}}}, "results.default.hate"),
        ({"receipt_secret": "whsec_"}, "receipt_secret"),
        ([], "body"),
    ],
)
async def test_wrong_settings_are_refused_by_name_and_change_nothing(
    caller: Caller, settings: object, field: str
) -> None:
    reply = await caller.ask("PUT", "/_control/v", json=settings)
    assert (reply.status, reply.body["error"]["code"]) == (400, "invalid_settings")
    assert f"{field}: " in reply.body["error"]["message"]
    assert (await caller.ask("GET", "/_control/v")).status == 404


async def test_a_wrong_value_is_not_repeated(caller: Caller) -> None:
    wrong = {"receipt_secret": "whsec_a-secret", "counts": "a-secret", "seed": "a-secret"}
    reply = await caller.ask("PUT", "/_control/v", json=wrong)
    assert reply.status == 400
    assert "a-secret" not in str(reply.body)


async def test_a_change_replaces_the_given_fields_and_keeps_the_rest(caller: Caller) -> None:
    await caller.control(capabilities={"dedupe": True}, price_micros=5)
    await caller.call("k")
    shown = (await caller.control(script=[{"when": {"nth": 1}, "do": "throttle"}])).body
    assert shown["settings"]["capabilities"]["dedupe"] is True
    assert shown["settings"]["price_micros"] == 5
    assert shown["calls"]["requests"] == shown["calls"]["executions"] == 1
    assert (await caller.call("k")).status == 429
    assert "Idempotent-Replayed" in (await caller.call("k")).headers


async def test_settings_that_do_not_touch_the_script_keep_its_count(caller: Caller) -> None:
    await caller.control(script=[{"when": {"nth": 2}, "do": "throttle"}])
    await caller.call("a")
    await caller.control(price_micros=7)
    assert (await caller.call("b")).status == 429


async def test_an_unknown_vendor_is_said_to_be_unknown(caller: Caller) -> None:
    for method, path in (
        ("POST", "/v/nobody/calls"),
        ("POST", "/v/nobody/batch"),
        ("GET", "/v/nobody/calls?key=k"),
        ("GET", "/v/nobody/calls/1"),
        ("DELETE", "/v/nobody/calls/1"),
        ("GET", "/_control/nobody"),
        ("GET", "/_control/nobody/ledger"),
        ("GET", "/_control/nobody/statement"),
        ("POST", "/_control/nobody/receipts"),
    ):
        reply = await caller.ask(method, path)
        assert (reply.status, reply.body["error"]["code"]) == (404, "unknown_vendor")


async def test_a_reset_forgets_the_vendor_and_its_books(caller: Caller) -> None:
    await caller.control(capabilities={"dedupe": True})
    await caller.call("k")
    assert (await caller.ask("DELETE", "/_control/v")).status == 204
    assert (await caller.call("k")).status == 404
    await caller.control()
    assert (await caller.ledger())["keys"] == {}
    assert (await caller.ask("DELETE", "/_control/nobody")).status == 204


async def test_vendors_keep_separate_books(caller: Caller) -> None:
    for vendor in ("one", "two"):
        await caller.control(vendor, capabilities={"dedupe": True})
        await caller.call("k", vendor)
    for vendor in ("one", "two"):
        assert (await caller.ledger(vendor))["keys"]["k"]["executions"] == 1


async def test_the_statement_has_one_line_a_charge_and_agrees_with_the_ledger(
    caller: Caller, clock: HandClock
) -> None:
    await caller.control(price_micros=300, script=[{"when": {"nth": 2}, "do": "error_before"}])
    await caller.call("a,1", units={"frames": 2})
    await caller.call("b")
    clock.advance(60)
    await caller.control(price_micros=500)
    await caller.call("b")
    await caller.call("a,1")
    reply = await caller.ask("GET", "/_control/v/statement")
    assert reply.headers["Content-Type"].startswith("text/csv")
    assert reply.body.startswith("external_id,idempotency_key,executed_at,units,cost_micros\n")
    lines = list(csv.DictReader(io.StringIO(reply.body)))
    ledger = await caller.ledger()
    assert [line["idempotency_key"] for line in lines] == ["a,1", "b", "a,1"]
    assert [line["cost_micros"] for line in lines] == ["300", "500", "500"]
    assert lines[0]["units"] == '{"frames":2,"requests":1}'
    assert lines[0]["executed_at"] < lines[1]["executed_at"]
    assert lines[0]["executed_at"].endswith("Z")
    for key, page in ledger["keys"].items():
        billed = [line for line in lines if line["idempotency_key"] == key]
        assert page["charges"] == len(billed)
        assert page["cost_micros"] == sum(int(line["cost_micros"]) for line in billed)
        assert page["external_ids"] == [line["external_id"] for line in billed]
    assert ledger["requests"] == sum(page["requests"] for page in ledger["keys"].values()) == 4


async def test_a_taken_port_is_an_error_that_leaves_nothing_open(
    simulator: RunningSimulator,
) -> None:
    with pytest.raises(OSError, match="in use"):
        await serve(simulator.port, Environment())


async def test_a_stopped_simulator_frees_its_port() -> None:
    first = await serve(0, Environment())
    await first.stop()
    second = await serve(first.port, Environment())
    await second.stop()
