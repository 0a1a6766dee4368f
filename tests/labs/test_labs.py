"""Receives the labs' command; holds it to the facts that each lab is to show, and to exit 1."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from typer.testing import Result

from cli.labs import LABS, Lab, play
from cli.labs import bench as benches
from cli.labs.report import Report
from kernel.attempt import CallOutcome, Outcome, Settlement, TaskFacts, WaitRules, after_call
from kernel.decision import Decision, Policy, Snapshot, decide, evidence_of
from kernel.idempotency import Meeting, Met, meet
from kernel.lifecycle import CaseState, State
from services.aggregator import verdicts
from services.dispatcher import pipeline
from services.vendor_proxy import ledger
from tests.labs.conftest import Lab as Command

SECTIONS = (
    "Timeline",
    "Database snapshots",
    "Conditional updates and the rows they matched",
    "External request keys, by the vendor's own ledger",
    "To recover",
    "Assertions",
)


def document(result: Result) -> dict[str, Any]:
    found = orjson.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def failed(result: Result) -> list[str]:
    return [check["name"] for check in document(result)["assertions"] if not check["passed"]]


def updates(told: dict[str, Any], row: str) -> list[tuple[str, str, int]]:
    return [
        (each["what"], each["who"], each["rows"])
        for each in told["conditional_updates"]
        if each["row"] == row
    ]


def tasks(told: dict[str, Any], title: str) -> list[dict[str, Any]]:
    (found,) = [s["rows"] for s in told["snapshots"] if s["title"] == f"{title}: tasks"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", sorted(LABS))
def test_a_lab_prints_every_section_and_passes(lab: Command, name: str) -> None:
    result = lab(name)

    assert result.exit_code == 0, result.stdout
    at = [result.stdout.index(section) for section in SECTIONS]
    assert at == sorted(at)
    assert "FAIL" not in result.stdout.replace("FAILED", "")
    last = result.stdout.rstrip().splitlines()[-1]
    assert last.startswith("PASS: ")
    assert last.endswith(f"assertions of lab {name} hold")


def test_i2_the_fencing_lab_shows_that_a_late_settle_matches_no_row(lab: Command) -> None:
    """Case 2-02."""
    result = lab("fencing", "--json")
    told = document(result)

    assert (result.exit_code, told["passed"], told["lab"]) == (0, True, "fencing")
    assert updates(told, "case 1.1") == [
        ("claim", "A", 1),
        ("reserve", "", 1),
        ("takeover", "B", 1),
        ("settle -> SUCCEEDED", "B", 1),
        ("settle -> UNKNOWN", "A", 0),
    ]
    assert updates(told, "case 2.1")[-1] == ("settle -> SUCCEEDED", "A", 0)
    said = [each["what"] for each in told["timeline"]]
    assert "Execute case 1.1 attempt 1: STALE_ATTEMPT" in said
    assert said.index("resumes") < said.index("Execute case 1.1 attempt 1: STALE_ATTEMPT")
    (held,) = tasks(told, "case 1, A's lease ran out")
    assert (held["state"], held["attempt"], held["owner"]) == ("IN_FLIGHT", 1, "A")
    assert held["wakes_in_s"] < 0
    (after,) = tasks(told, "case 1 after")
    assert (after["state"], after["attempt"], after["wakes_in_s"]) == ("SUCCEEDED", 2, None)
    assert [(c["task"], c["executions"], c["charges"]) for c in told["external_calls"]] == [
        ("case 1.1", 1, 1),
        ("case 2.1", 1, 1),
    ]
    kept = [row for table in told["observations"] for row in table["rows"]]
    assert [(row["source"], row["state"]) for row in kept] == [
        ("late_attempt", "UNMAPPED"),
        ("late_attempt", "SUCCEEDED"),
    ]


def test_i3_the_unknown_lab_shows_one_execution_and_a_person_where_nobody_can_tell(
    lab: Command,
) -> None:
    result = lab("unknown_outcome", "--json")
    told = document(result)

    assert (result.exit_code, told["passed"]) == (0, True)
    (doubt,) = tasks(told, "case 1 in doubt")
    assert (doubt["state"], doubt["maybe_executed"]) == ("UNKNOWN", True)
    (after,) = tasks(told, "case 1 after")
    assert (after["state"], after["sends"]) == ("SUCCEEDED", 1)
    moved = [what for what, _, rows in updates(told, "case 1.1") if rows == 1]
    assert not [what for what in moved if "FAILED" in what]
    (waits,) = tasks(told, "case 2 waits for a person")
    assert (waits["state"], waits["needs_operator"]) == ("UNKNOWN", True)
    (closed,) = tasks(told, "case 2 after")
    assert (closed["state"], closed["reason"]) == ("FAILED", "RESULT_LOST")
    said = [each["what"] for each in told["timeline"] if each["who"] == "intake"]
    assert [line.split(": ")[1].split(",")[0] for line in said] == [
        "CREATED",
        "EXISTS",
        "EXISTS",
        "CREATED",
    ]
    assert [(c["requests"], c["executions"], c["charges"]) for c in told["external_calls"]] == [
        (1, 1, 1),
        (1, 1, 1),
    ]


def test_i5_the_aggregation_lab_shows_the_rule_after_every_receipt(lab: Command) -> None:
    """Cases 6-03 and 6-09."""
    result = lab("aggregation", "--json")
    told = document(result)

    assert (result.exit_code, told["passed"]) == (0, True)
    (rule,) = [t["rows"] for t in told["observations"]]
    waited = [row for row in rule if row["decide"] == "WAITING"]
    assert [row["missing"] for row in waited] == [["A"]] * 7
    assert waited[-1]["successes"] > len(tasks(told, "decided"))
    assert [row["decide"] for row in rule[7:]] == ["APPROVED"] + ["ALREADY_DECIDED"] * 4
    decides = [each for each in told["conditional_updates"] if each["what"].startswith("decide")]
    assert [(each["row"], each["rows"]) for each in decides] == [("version 2", 1), ("version 2", 0)]
    (after,) = [s["rows"] for s in told["snapshots"] if s["title"] == "after: parents"]
    assert [(row["parent"], row["state"], row["decisions"]) for row in after] == [
        ("version 2", "APPROVED", 1),
        ("version 1", "PENDING", 0),
    ]
    assert after[0]["late_results"] == 1


@pytest.mark.parametrize("name", sorted(LABS))
def test_a_lab_says_the_same_every_time(lab: Command, name: str) -> None:
    """But for request keys: ids come from a seed, the order of drawing them is no promise."""
    first, second = (document(lab(name, "--json")) for _ in range(2))
    for told in (first, second):
        for call in told["external_calls"]:
            del call["key"]
    assert first == second


@pytest.mark.parametrize("name", sorted(LABS))
def test_a_lab_leaves_the_configured_databases_alone(
    lab: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SLUICE_DATABASE_URL", "SLUICE_PROXY_DATABASE_URL", "SLUICE_VAULT_URL"):
        monkeypatch.setenv(variable, "sqlite:////nowhere/at/all.db")
    assert lab(name, "--json").exit_code == 0


def test_a_gateway_that_lets_an_old_attempt_pass_fails_the_fencing_lab(
    lab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfenced(*given: Any) -> Met:
        met = meet(*given)
        return Met(Meeting.REPLAY) if met.meeting is Meeting.STALE else met

    monkeypatch.setattr(ledger, "meet", unfenced)
    result = lab("fencing", "--json")
    assert result.exit_code == 1
    assert "case 1: the vendor proxy refuses A's Execute of the old attempt" in failed(result)


def test_a_settle_that_takes_unknown_for_failed_fails_the_unknown_lab(
    lab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(call: CallOutcome, task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
        if call.outcome is Outcome.UNKNOWN:
            return Settlement(State.FAILED, call.reason, None, False)
        return after_call(call, task, now, waits)

    monkeypatch.setattr(pipeline, "after_call", hasty)
    result = lab("unknown_outcome", "--json")
    assert result.exit_code == 1
    assert failed(result)


def test_a_rule_that_counts_results_fails_the_aggregation_lab(
    lab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(snapshot: Snapshot, policy: Policy, now: int) -> Decision:
        done = [child for child in snapshot.children if child.state is State.SUCCEEDED]
        if len(done) >= 2 and snapshot.state is CaseState.PENDING:
            return Decision(CaseState.APPROVED, "TWO_RESULTS", evidence=evidence_of(done))
        return decide(snapshot, policy, now)

    monkeypatch.setattr(benches, "decide", counting)
    monkeypatch.setattr(verdicts, "decide", counting)
    result = lab("aggregation", "--json")
    assert result.exit_code == 1
    assert "I5: with A missing the rule waits after every receipt, whatever their count" in failed(
        result
    )


def test_a_decision_without_its_compare_and_set_fails_the_aggregation_lab(
    lab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_move", lambda tx, parent, outcome: True)
    result = lab("aggregation", "--json")
    assert result.exit_code == 1
    assert "the lab runs to its end" in failed(result)


def test_a_broken_assertion_is_exit_status_1_and_printed_as_fail(
    lab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(report: Report) -> None:
        report.check("one and one are two", 1 + 1, 2)
        report.check("a cow is a horse", "cow", "horse")

    monkeypatch.setitem(LABS, "fencing", Lab("a lab with a broken assertion", broken))
    result = lab("fencing")
    assert result.exit_code == 1
    assert "PASS  one and one are two: 2" in result.stdout
    assert "FAIL  a cow is a horse: cow, expected horse" in result.stdout
    assert result.stdout.rstrip().endswith("FAIL: 1 of 2 assertions of lab fencing hold")


async def test_a_play_that_breaks_off_keeps_what_was_seen_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def torn(report: Report) -> None:
        report.check("it began", True, True)
        raise ConnectionError("the bench fell over")

    monkeypatch.setitem(LABS, "fencing", Lab("torn", torn))
    report = await play("fencing")
    assert [(check.passed, check.found) for check in report.checks] == [
        (True, "yes"),
        (False, "ConnectionError: the bench fell over"),
    ]
    assert not report.passed


async def test_a_play_that_hangs_is_cut_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(report: Report) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("cli.labs._LONGEST_SECONDS", 0.0)
    monkeypatch.setitem(LABS, "fencing", Lab("hangs", hangs))
    report = await play("fencing")
    assert not report.passed
    assert report.checks[0].found == "TimeoutError"


def test_a_lab_without_assertions_does_not_pass() -> None:
    assert not Report("empty", "shows nothing").passed


def test_an_unknown_lab_is_wrong_usage_that_names_the_labs(lab: Command) -> None:
    result = lab("no-such-lab")
    assert result.exit_code == 2
    assert all(name in result.output for name in LABS)
