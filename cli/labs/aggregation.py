"""Lab: a verdict rests on the set of required results, never on a count of messages.

Receives nothing. Hands on a report of one case with models A and B required, O optional and S
in the shadow, whose results come duplicated and out of order, as signed receipts; and of an
older version of the content, whose late result has no effect on it. Source: DESIGN sections 8
and 12, I5, I6; cases 6-03 and 6-09.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cli.labs.assembly import open_bench
from cli.labs.bench import Bench
from cli.labs.report import Report, Row, Rows
from kernel.store.tasks import Task
from services.aggregator import snapshot, verdicts

VENDOR = "panel"
_VERDICTS, _LATE = "sluice.verdicts", "sluice.late_results"
_BETWEEN_SECONDS = 1.0
_END = "2027-01-01T00:00:01Z"  # by the vendor's own clock
_LOW, _HIGH = {"violence": 0.05}, {"violence": 0.99}

_VENDORS = {
    VENDOR: {
        "query_by_id": True,
        "receipts": True,
        "receipt_secret": "keys:receipts",
        "counts": "jobs",
        "price_micros": 100,
        "status_map": {"processing": "ACCEPTED", "succeeded": "SUCCEEDED", "failed": "FAILED"},
    }
}
_CONTROLS = {
    VENDOR: {
        "capabilities": {"query_by_id": True, "receipts": True, "async": True},
        "counts": "jobs",
        "price_micros": 100,
        # The lab sends the receipts by hand, to have their order in its own hand.
        "script": [{"when": {"every": 1}, "do": "no_receipt"}],
    }
}
_RULES = [
    {
        "kind": "TEXT",
        "models": [
            {"model": "A", "pool": VENDOR},
            {"model": "B", "pool": VENDOR},
            {"model": "O", "pool": VENDOR, "requirement": "OPTIONAL"},
            {"model": "S", "pool": VENDOR, "requirement": "SHADOW"},
        ],
    }
]


@dataclass(slots=True)
class _Play:
    """The bench with the two versions' tasks by model, and what was seen after each receipt."""

    bench: Bench
    case: str
    now: dict[str, Task]
    old: dict[str, Task]
    seen: list[Row]
    results: int = 0

    @property
    def stale_case(self) -> str:
        """The case of the content's old version."""
        return self.old["A"].parent_id

    async def receipt(
        self, model: str, status: str, scores: dict[str, float] | None, why: str, **more: Any
    ) -> None:
        """One receipt for the new version, or with `old=True` for the old one."""
        task = (self.old if more.pop("old", False) else self.now)[model]
        fields = {"result": {"scores": scores}} if scores else {}
        self.bench.clock.advance(_BETWEEN_SECONDS)
        self.bench.witness.tell(VENDOR, f"receipt of {model}: {status}, {why}")
        taken = len(self.bench.sink.dispositions)
        new = await self.bench.receipt(VENDOR, task, status, **fields, **more)
        self.results += status == "succeeded"
        disposition = self.bench.sink.dispositions[taken] if new else "known at the gateway"
        await self._look(f"{model} {status}", why, disposition)

    async def _look(self, receipt: str, why: str, disposition: str) -> None:
        """What the rule says now, before the aggregator writes anything."""
        decision = await self.bench.decide(self.case)
        by_task = {task.task_id: model for model, task in self.now.items()}
        missing = [by_task[task_id] for task_id in decision.missing]
        self.seen.append(
            {
                "receipt": receipt,
                "why": why,
                "became": disposition,
                "successes": self.results,
                "decide": str(decision.outcome or decision.reason),
                "missing": missing,
            }
        )
        lacks = f", missing {' '.join(missing)}" if missing else ""
        self.bench.witness.tell("rule", f"decide: {decision.outcome or decision.reason}{lacks}")


async def run(report: Report) -> None:
    """Play it on one bench."""
    async with open_bench(_VENDORS, _CONTROLS, _RULES) as bench:
        report.timeline, report.updates = bench.witness.timeline, bench.witness.updates
        play = await _dispatched(bench)
        report.observations = [Rows("The rule after every receipt", play.seen)]
        report.snapshots += await bench.snapshot("before", play.case, play.stale_case)
        await _until_complete(play, report)
        await _decided_once(play, report)
        await _too_late(play, report)
        report.snapshots += await bench.snapshot("after", play.case, play.stale_case)
        await _check_outcome(play, report)
        report.calls = await bench.calls(VENDOR)
        report.check(
            "I3: every key was executed once",
            [row["executions"] for row in report.calls],
            [1] * 8,
        )
    report.recovery = [
        "See what a case waits for: sluice show CASE   (the missing set is named)",
        "Receipts lost? The resolver asks the vendor when they are overdue: wait, or see "
        "sluice unknown.",
        "An aggregator that stopped loses nothing: change markers are rows. Start one: sluice "
        "serve aggregator",
        "A case whose deadline comes first goes to a person; later results are kept with it.",
    ]


async def _dispatched(bench: Bench) -> _Play:
    """Both versions submitted and accepted by the vendor, which says nothing more by itself."""
    worker = bench.worker("D")
    old = (await bench.submit("version 1", "post-1", 1, text="the first wording")).case_id
    bench.pass_time(1.0, "the author edits the post")
    case = (await bench.submit("version 2", "post-1", 2, text="the second wording")).case_id
    await worker.claim()
    await worker.settle()
    return _Play(bench, case, await _by_model(bench, case), await _by_model(bench, old), [])


async def _until_complete(play: _Play, report: Report) -> None:
    """Receipts, until the required set is complete; nothing before may approve."""
    end = {"occurred_at": _END}
    await play.receipt("B", "succeeded", _LOW, "before its own 'processing'", event_id="e1", **end)
    await play.receipt("B", "processing", None, "reordered: after its end")
    await play.receipt("B", "succeeded", _LOW, "the same event again", event_id="e1", **end)
    await play.receipt("B", "succeeded", _LOW, "the same fact, another event", event_id="e2", **end)
    await play.receipt("B", "succeeded", _LOW, "the same result, another time")
    await play.receipt("S", "succeeded", _HIGH, "a shadow model, alarmed")
    await play.receipt("A", "succeeded", _LOW, "of the content's version 1", old=True)
    await play.bench.aggregate()
    written = await play.bench.decisions(play.case)
    b = await play.bench.task(play.case, play.now["B"].n)
    report.check(
        "I5: with A missing the rule waits after every receipt, whatever their count",
        [(row["decide"], row["missing"]) for row in play.seen],
        [("WAITING", ["A"])] * 7,
    )
    report.check(
        "I5: six successes had come by then for four tasks, and nothing was decided",
        (play.results, written),
        (6, []),
    )
    report.check(
        "I6: the reordered 'processing' does not move B back",
        (play.seen[1]["became"], str(b.state)),
        ("IGNORED_STALE", "SUCCEEDED"),
    )
    report.check(
        "duplicates count once: known by fact whatever their event id, or stale",
        [row["became"] for row in play.seen[2:5]],
        ["known at the gateway", "known at the gateway", "IGNORED_STALE"],
    )
    old_a = await play.bench.task(play.stale_case, play.old["A"].n)
    new_a = await play.bench.task(play.case, play.now["A"].n)
    report.check(
        "the result of the stale version answers that version's own task, by its key alone",
        [(str(task.state), task.scores) for task in (old_a, new_a)],
        [("SUCCEEDED", _LOW), ("ACCEPTED", None)],
    )
    await play.receipt("A", "succeeded", _LOW, "the last required one")
    report.check(
        "the required set decides, without O and in spite of S",
        (play.seen[-1]["decide"], play.seen[-1]["missing"]),
        ("APPROVED", []),
    )


async def _decided_once(play: _Play, report: Report) -> None:
    """Two aggregators look at the same set; the CAS on the case's version lets one write."""
    bench = play.bench
    looks = [await bench.mesh.read(snapshot.look, 0, 1_000, {}, {}) for _ in range(2)]
    bench.witness.tell("aggregators", "X and Y both read the set, and both rule APPROVED")
    written = [await bench.mesh.write(verdicts.write, verdicts.rule(look)) for look in looks]
    await bench.relay_all()
    report.snapshots += await bench.snapshot("decided", play.case)
    report.check(
        "X decides; Y, whose version is stale, changes nothing",
        [(len(each.decided), len(each.lost)) for each in written],
        [(1, 0), (0, 1)],
    )
    report.check(
        "row counts of both compare-and-sets",
        [update.rows for update in bench.witness.updates_of("decide")],
        [1, 0],
    )


async def _too_late(play: _Play, report: Report) -> None:
    """What comes after the decision: a duplicate, a contradiction, the optional result twice."""
    bench = play.bench
    decided = await bench.task(play.case, play.now["A"].n)
    await play.receipt("A", "succeeded", _LOW, "once more")
    await play.receipt("A", "failed", None, "a contradiction")
    await play.receipt("O", "succeeded", _HIGH, "optional, alarmed, after the decision")
    await play.receipt("O", "succeeded", _HIGH, "once more")
    await bench.aggregate()
    await bench.aggregate()
    after = await bench.task(play.case, play.now["A"].n)
    report.check(
        "I6: the contradiction is kept and listed, and moves nothing",
        (play.seen[-3]["became"], after == decided),
        ("CONFLICT", True),
    )


async def _check_outcome(play: _Play, report: Report) -> None:
    bench = play.bench
    view = await bench.aggregator.get_case(play.case)
    report.check(
        "one decision and one verdict event in all",
        (await bench.decisions(play.case), bench.events(_VERDICTS, play.case)),
        (["APPROVED"], 1),
    )
    report.check(
        "the late optional result raised one late_result event, and the decision stands",
        (
            bench.events(_LATE, play.case),
            [late.n for late in view.late_results],
            str(view.state),
            view.version,
        ),
        (1, [play.now["O"].n], "APPROVED", 2),
    )
    report.check(
        "every batch that the gateway repeated was known to the aggregator",
        set(bench.sink.repeated),
        {"DUPLICATE"},
    )
    report.check(
        "the stale version is as undecided as before",
        await bench.decisions(play.stale_case),
        [],
    )


async def _by_model(bench: Bench, case_id: str) -> dict[str, Task]:
    found = [await bench.task(case_id, n) for n in range(1, 5)]
    return {task.model_id: task for task in found}
