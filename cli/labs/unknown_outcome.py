"""Lab: the model executed and its answer is lost.

Receives nothing. Hands on a report of two vendors that execute and hide the response: one can
be asked by our key, and the query settles the call; one can neither de-duplicate nor be asked,
and the call stays UNKNOWN until a person says what became of it. Source: DESIGN section 7,
I1, I3.
"""

from __future__ import annotations

from typing import Any

from cli.labs.assembly import open_bench
from cli.labs.bench import Bench, Worker
from cli.labs.report import Report, Rows
from kernel.environment import MICROS_PER_SECOND
from kernel.errors import NotAllowedInState
from services.dispatcher.operator import Resolution

ASKED, BLIND = "asked", "blind"
_PRICE = 100
_LAG_SECONDS = 0.5  # what the vendor did is not in its own answers before

_VENDORS: dict[str, dict[str, Any]] = {
    ASKED: {
        "query_by_key": True,
        "authoritative": True,
        "consistency_lag_seconds": _LAG_SECONDS,
        "price_micros": _PRICE,
    },
    BLIND: {"price_micros": _PRICE},
}
_HIDE = [{"when": {"nth": 1}, "do": "hide_response"}]
_CONTROLS: dict[str, dict[str, Any]] = {
    ASKED: {
        "capabilities": {"query_by_key": True, "consistency_lag_ms": _LAG_SECONDS * 1_000},
        "price_micros": _PRICE,
        "script": _HIDE,
    },
    BLIND: {"capabilities": {}, "price_micros": _PRICE, "script": _HIDE},
}
_RULES: list[dict[str, Any]] = [
    {
        "kind": "TEXT",
        "labels": {"lane": BLIND},
        "models": [{"model": "text-risk", "pool": BLIND, "on_unknown": {"mode": "AT_MOST_ONCE"}}],
    },
    {"kind": "TEXT", "models": [{"model": "text-risk", "pool": ASKED}]},
]


async def run(report: Report) -> None:
    """Play both vendors on one bench."""
    async with open_bench(_VENDORS, _CONTROLS, _RULES) as bench:
        report.timeline, report.updates = bench.witness.timeline, bench.witness.updates
        worker = bench.worker("D")
        await _asked(bench, worker, report)
        await _blind(bench, worker, report)
        report.calls = await bench.calls(ASKED, BLIND)
        report.check(
            "I3: each vendor was asked once, executed once and charged once",
            [(row["requests"], row["executions"], row["charges"]) for row in report.calls],
            [(1, 1, 1), (1, 1, 1)],
        )
    report.recovery = [
        "See what is in doubt, the oldest first, with the cost at stake: sluice unknown",
        "A row that says 'no, being asked' is worked by the resolver: wait.",
        "A row that needs you: look up its key (sluice show TASK) in the vendor's console or bill.",
        "Say what you found: sluice unknown resolve TASK --as executed|not-executed|retry",
        "Check the outcome: sluice show TASK   (retry is marked as a possible duplicate)",
    ]


async def _asked(bench: Bench, worker: Worker, report: Report) -> None:
    first = await bench.submit("case 1", "post-1")
    case = first.case_id
    report.snapshots += await bench.snapshot("case 1 before", case)
    await worker.claim()
    await worker.settle()
    bench.witness.tell(ASKED, "executed the call and closed the connection without an answer")
    in_doubt = await bench.task(case)
    report.snapshots += await bench.snapshot("case 1 in doubt", case)
    again = await bench.submit("case 1", "post-1")
    tasks = len((await bench.snapshot("", case))[1].rows)
    await bench.aggregate()
    undecided = await bench.decisions(case)
    await bench.look_at_due(worker, case)
    too_early = await bench.task(case)
    bench.pass_time(2 * _LAG_SECONDS, "what the vendor did can be seen in its answers now")
    await bench.look_at_due(worker, case)
    await bench.aggregate()
    once_more = await bench.submit("case 1", "post-1")
    await bench.aggregate()
    after = await bench.task(case)
    report.snapshots += await bench.snapshot("case 1 after", case)

    report.check(
        "case 1: an executed call whose answer is lost makes the task UNKNOWN",
        (str(in_doubt.state), in_doubt.maybe_executed),
        ("UNKNOWN", True),
    )
    report.check(
        "I1: the same content again adds neither case nor task",
        [
            (str(each.disposition), each.case_id == case, len(each.tasks))
            for each in (again, once_more)
        ]
        + [tasks],
        [("EXISTS", True, 1), ("EXISTS", True, 1), 1],
    )
    report.check("I5: nothing was decided while the call was in doubt", undecided, [])
    report.check(
        "case 1: within the vendor's lag its 'not found' proves nothing",
        (str(worker.link.queries[0].answer), str(too_early.state)),
        ("TOO_EARLY", "UNKNOWN"),
    )
    report.check(
        "case 1: QueryStatus settles it, with the model's result",
        (str(worker.link.queries[1].answer), str(after.state), after.scores is not None),
        ("SETTLED", "SUCCEEDED", True),
    )
    report.check(
        "case 1: it was never FAILED on its way",
        await bench.states_met(case),
        ["IN_FLIGHT", "UNKNOWN", "SUCCEEDED"],
    )
    report.check("case 1: one send in all", after.sends, 1)
    report.check(
        "case 1: one decision, one verdict event",
        (await bench.decisions(case), bench.events("sluice.verdicts", case)),
        (["APPROVED"], 1),
    )
    _check_rows(bench, report, "case 1.1", "move UNKNOWN -> SUCCEEDED")


async def _blind(bench: Bench, worker: Worker, report: Report) -> None:
    case = (await bench.submit("case 2", "post-2", lane=BLIND)).case_id
    report.snapshots += await bench.snapshot("case 2 before", case)
    await worker.claim()
    await worker.settle()
    bench.witness.tell(BLIND, "executed the call and closed the connection without an answer")
    await bench.look_at_due(worker, case)
    bench.pass_time(60.0, "nobody can be asked, so nothing changes")
    found = await worker.core.timer_once()
    held = await bench.task(case)
    queue = await worker.core.list_unknown(after=(0, "", 0), most=10)
    report.snapshots += await bench.snapshot("case 2 waits for a person", case)
    bench.witness.tell(
        "operator", f"the queue holds {', '.join(bench.witness.task(*t.key) for t in queue)}"
    )
    now = await worker.core.now()
    report.observations.append(
        Rows(
            "The operator's queue",
            [
                {
                    "task": bench.witness.task(*task.key),
                    "vendor": task.vendor,
                    "age_seconds": (now - (task.unknown_since or now)) / MICROS_PER_SECOND,
                    "sends": task.sends,
                    "needs_operator": task.needs_operator,
                    "reason": task.reason,
                }
                for task in queue
            ],
        )
    )
    note = "seen on the vendor's bill"
    closed = await worker.core.resolve_unknown(held.task_id, Resolution.EXECUTED, "ana", note)
    bench.witness.tell("operator", f"resolves it as executed: {closed.state} ({closed.reason})")
    twice = ""
    try:
        await worker.core.resolve_unknown(held.task_id, Resolution.RETRY, "ana", "")
    except NotAllowedInState as refused:
        twice = refused.reason
        bench.witness.tell("operator", f"resolves it again, as retry: refused, {refused.reason}")
    await bench.aggregate()
    report.snapshots += await bench.snapshot("case 2 after", case)

    report.check(
        "case 2: no query, no key that is remembered, AT_MOST_ONCE: it stays UNKNOWN",
        (str(held.state), str(held.on_unknown.mode), held.sends, found),
        ("UNKNOWN", "AT_MOST_ONCE", 1, 0),
    )
    report.check(
        "case 2: it is in the operator's queue",
        [(task.task_id == held.task_id, task.needs_operator) for task in queue],
        [(True, True)],
    )
    report.check(
        "case 2: the operator's word closes it; a result that nobody has is RESULT_LOST",
        (str(closed.state), closed.reason, closed.wake_at),
        ("FAILED", "RESULT_LOST", None),
    )
    report.check("case 2: a closed call cannot be resolved again", twice, "STATE_FORBIDS")
    report.check(
        "I5: the case goes to a person, once",
        (await bench.decisions(case), bench.events("sluice.verdicts", case)),
        (["IN_REVIEW"], 1),
    )
    _check_rows(bench, report, "case 2.1", "move UNKNOWN -> FAILED")


def _check_rows(bench: Bench, report: Report, row: str, end: str) -> None:
    """One row for each step of the task's way."""
    for what in ("claim", "settle -> UNKNOWN", end):
        rows = [u.rows for u in bench.witness.updates_of(what) if u.row == row]
        report.check(f"{row}: {what}", rows, [1])
