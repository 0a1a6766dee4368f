"""Lab: a lease that ran out does not mean that its holder is gone.

Receives nothing. Hands on a report of two dispatchers and a model whose latency is in our
hand: A claims and is paused past its lease, B takes over and completes, A resumes. Once A is
paused before its call leaves, once while the model works. Source: DESIGN sections 2 and 5, I2;
case 2-02.
"""

from __future__ import annotations

from cli.labs.assembly import open_bench
from cli.labs.bench import Bench, Worker
from cli.labs.report import Report, Rows
from kernel.attempt import Outcome
from kernel.store.tasks import Task

VENDOR = "model"
_PAUSE_SECONDS = 31.0  # the lease is 30
_SLOW_SECONDS = 40.0
_PRICE = 100  # millionths

_VENDORS = {
    VENDOR: {
        "query_by_key": True,
        "authoritative": True,
        "client_timeout_seconds": 50.0,
        "max_execution_seconds": 60.0,
        "price_micros": _PRICE,
    }
}
_CONTROLS = {
    VENDOR: {"capabilities": {"query_by_key": True}, "latency_ms": 0, "price_micros": _PRICE}
}
_RULES = [{"kind": "TEXT", "models": [{"model": "text-risk", "pool": VENDOR}]}]


async def run(report: Report) -> None:
    """Play both pauses on one bench."""
    async with open_bench(_VENDORS, _CONTROLS, _RULES) as bench:
        report.timeline, report.updates = bench.witness.timeline, bench.witness.updates
        a, b = bench.worker("A"), bench.worker("B")
        await _paused_before_the_call(bench, a, b, report)
        await _paused_while_the_model_works(bench, a, b, report)
        report.calls = await bench.calls(VENDOR)
        report.check(
            "I3: the vendor was asked, executed and charged once for each key",
            [(row["requests"], row["executions"], row["charges"]) for row in report.calls],
            [(1, 1, 1), (1, 1, 1)],
        )
        report.check("I2: both lost settles of A were counted", a.core.claimer.fenced, 2)
    report.recovery = [
        "Nothing by hand: the lease of a dispatcher that stopped runs out after 30 s, and the "
        "timer of any other dispatcher takes its tasks over.",
        "Start a dispatcher if none runs: sluice serve dispatcher",
        "See what became of it: sluice show CASE   (attempt rises by one at the takeover)",
        "A result that came too late is kept: sluice show TASK lists it as late_attempt. "
        "It needs no action.",
    ]


async def _paused_before_the_call(bench: Bench, a: Worker, b: Worker, report: Report) -> None:
    case = (await bench.submit("case 1", "post-1")).case_id
    report.snapshots += await bench.snapshot("case 1 before", case)
    a.link.before.clear()
    await a.claim()
    bench.witness.tell("A", "paused: it holds the lease, and its call has not left")
    bench.pass_time(_PAUSE_SECONDS, "A's lease runs out, A knows nothing of it")
    report.snapshots += await bench.snapshot("case 1, A's lease ran out", case)
    await b.core.timer_once()
    await b.settle_next()
    await bench.aggregate()
    settled = await bench.task(case)
    bench.witness.tell("A", "resumes")
    a.link.before.set()
    await a.settle()
    after = await bench.task(case)
    report.snapshots += await bench.snapshot("case 1 after", case)

    _check_rows(bench, report, "case 1.1")
    report.check(
        "case 1: the vendor proxy refuses A's Execute of the old attempt",
        [(attempt, str(call.outcome)) for attempt, call in a.link.answers],
        [(1, str(Outcome.STALE_ATTEMPT))],
    )
    await _check_untouched(bench, report, "case 1", settled, after)
    await _check_evidence(bench, report, case, ("UNMAPPED", "STALE_ATTEMPT"), 0)


async def _paused_while_the_model_works(bench: Bench, a: Worker, b: Worker, report: Report) -> None:
    await bench.vendor.put({VENDOR: {"latency_ms": _SLOW_SECONDS * 1_000}})
    case = (await bench.submit("case 2", "post-2")).case_id
    report.snapshots += await bench.snapshot("case 2 before", case)
    a.link.after.clear()
    await a.claim()
    await bench.clock.until_asleep(_SLOW_SECONDS)
    bench.witness.tell(VENDOR, f"executes A's call; it will take {_SLOW_SECONDS:g} s")
    bench.witness.tell("A", "paused: its call is on the wire, and it renews no lease")
    bench.pass_time(_PAUSE_SECONDS, "A's lease runs out while the model works")
    report.snapshots += await bench.snapshot("case 2, A's lease ran out", case)
    b.link.asked.clear()
    await b.core.timer_once()
    await b.link.asked.wait()
    bench.pass_time(_SLOW_SECONDS - _PAUSE_SECONDS, "the model answers, and B has joined its call")
    await b.settle_next()
    await bench.aggregate()
    settled = await bench.task(case)
    bench.witness.tell("A", "resumes, with the model's answer in its hand")
    a.link.after.set()
    await a.settle()
    after = await bench.task(case)
    report.snapshots += await bench.snapshot("case 2 after", case)

    _check_rows(bench, report, "case 2.1")
    await _check_untouched(bench, report, "case 2", settled, after)
    await _check_evidence(bench, report, case, ("SUCCEEDED", "COMPLETED"), _PRICE)


def _check_rows(bench: Bench, report: Report, row: str) -> None:
    """Row counts of the four writes that the fence judges."""

    def rows(what: str, who: str) -> list[int]:
        return [u.rows for u in bench.witness.updates_of(what, who) if u.row == row]

    report.check(f"{row}: claim by A", rows("claim", "A"), [1])
    report.check(f"{row}: takeover by B", rows("takeover", "B"), [1])
    report.check(f"{row}: settle by B", rows("settle", "B"), [1])
    report.check(f"{row}: settle by A, whose fence is lost", rows("settle", "A"), [0])


async def _check_evidence(
    bench: Bench, report: Report, case: str, expected: tuple[str, str], cost: int
) -> None:
    """`expected`: state and vendor status of what A brought; `cost`: what its own send cost."""
    kept = await bench.receipts(case)
    name = bench.witness.called(case)
    report.observations.append(Rows(f"{name}: results kept as evidence", kept))
    columns = ("source", "attempt", "state", "vendor_status", "cost_micros", "disposition")
    report.check(
        f"{name}: what A brought is kept with its cost, and moves nothing",
        [tuple(row[column] for column in columns) for row in kept],
        [("late_attempt", 1, *expected, cost, "IGNORED_STALE")],
    )


async def _check_untouched(
    bench: Bench, report: Report, name: str, settled: Task, after: Task
) -> None:
    report.check(f"{name}: A's settle left the row of B as it was", after == settled, True)
    report.check(f"{name}: B's attempt stands", (str(after.state), after.attempt), ("SUCCEEDED", 2))
    report.check(
        f"{name}: one decision, one verdict event",
        (
            await bench.decisions(after.parent_id),
            bench.events("sluice.verdicts", after.parent_id),
        ),
        (["APPROVED"], 1),
    )
