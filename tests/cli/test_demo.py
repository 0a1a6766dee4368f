"""The demo as a whole, small: its figures come from the ledger and the store."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli import demo
from cli.main import app
from cli.outcome import DemoOutcome
from kernel.environment import Environment

ENOUGH = 120


async def test_the_demo_keeps_every_invariant_under_scripted_faults(tmp_path: Path) -> None:
    printed = io.StringIO()
    console = Console(file=printed)
    found = await demo.run(tmp_path / "demo", ENOUGH, console, Environment())
    outcome = found.outcome

    assert outcome.broken() == []
    assert (outcome.lost, outcome.duplicate_executions, outcome.over_limit) == (0, 0, 0)
    assert outcome.unknown_met == outcome.unknown_settled > 0
    assert outcome.contents == ENOUGH
    assert outcome.tasks == ENOUGH * 3 + ENOUGH // 4 * 5  # equal frames are one task
    assert outcome.vendor_executions >= outcome.tasks
    assert sum(outcome.decided.values()) + outcome.in_review == ENOUGH
    assert any("IN_FLIGHT -> UNKNOWN" in line for line in found.story)
    assert "contents decided" in printed.getvalue()

    report = tmp_path / "demo.json"
    demo.write(outcome, report)
    assert set(json.loads(report.read_text())) == {
        "contents", "tasks", "decided", "in_review", "expired", "unknown_met", "unknown_settled",
        "vendor_executions", "duplicate_executions", "marked_duplicates", "over_limit",
        "fenced_writes", "lost", "seconds", "tasks_per_s",
    }  # fmt: skip


def test_an_outcome_that_breaks_an_invariant_says_which() -> None:
    sound = DemoOutcome(contents=1, unknown_met=1, unknown_settled=1)
    assert sound.broken() == []
    for broken, word in (
        (DemoOutcome(unknown_met=1, unknown_settled=1, lost=1), "lost"),
        (DemoOutcome(unknown_met=1, unknown_settled=1, duplicate_executions=1), "duplicates"),
        (DemoOutcome(unknown_met=1, unknown_settled=1, over_limit=1), "limit"),
        (DemoOutcome(unknown_met=2, unknown_settled=1), "not settled"),
    ):
        assert any(word in line for line in broken.broken()), broken


@pytest.mark.parametrize(("amount", "status"), [(20, 0), (99, 0), (100, 1), (500, 1)])
def test_a_demo_in_which_no_fault_struck_says_so_and_calls_no_invariant_broken(
    amount: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def calm(*_: Any) -> demo.DemoRun:
        return demo.DemoRun(DemoOutcome(contents=amount), [])

    monkeypatch.setattr(demo, "run", calm)
    report = tmp_path / "demo.json"
    answer = CliRunner().invoke(app, ["demo", "--contents", str(amount), "--report", str(report)])
    assert answer.exit_code == status
    assert "No fault struck" in answer.output
    assert "invariant" not in answer.output
    assert report.exists()


def test_equal_frames_of_the_demo_are_there_and_the_contents_are_the_same_at_every_run() -> None:
    first, second = demo.contents(10, seed=1), demo.contents(10, seed=1)
    assert [c.SerializeToString(deterministic=True) for c in first] == [
        c.SerializeToString(deterministic=True) for c in second
    ]
    frames = first[0].parts[2].frames.images
    assert len(frames) == 6
    assert len(set(frames)) == 5
