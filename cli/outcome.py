"""The demo's outcome: the vendor's ledger beside the store, and the invariants on both.

Receives the store's counts and the simulator's ledgers. Hands on the figures that
CONTRACT.md names, and what is wrong with them, if anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from kernel.store import outcome
from kernel.store.transaction import Tx

FAULTS_STRIKE_FROM = 100
"""Contents: in so many calls the scripted faults strike for sure, in fewer they may not."""

_IN_REVIEW, _PENDING = "IN_REVIEW", "PENDING"


@dataclass(slots=True)
class DemoOutcome:
    """The figures of `.run/demo.json`; `duplicate_executions` are those nobody marked."""

    contents: int = 0
    tasks: int = 0
    decided: dict[str, int] = field(default_factory=dict)
    in_review: int = 0
    expired: int = 0
    unknown_met: int = 0
    unknown_settled: int = 0
    vendor_executions: int = 0
    duplicate_executions: int = 0
    marked_duplicates: int = 0
    over_limit: int = 0
    fenced_writes: int = 0
    lost: int = 0
    seconds: float = 0.0
    tasks_per_s: float = 0.0

    def broken(self) -> list[str]:
        """The invariants that do not hold; empty when all is well."""
        found = []
        if self.lost:
            found.append(f"{self.lost} accepted contents are lost or unfinished")
        if self.duplicate_executions:
            found.append(f"{self.duplicate_executions} executions were duplicates nobody marked")
        if self.over_limit:
            found.append(f"{self.over_limit} calls went over a vendor's limit")
        if self.unknown_settled != self.unknown_met:
            left = self.unknown_met - self.unknown_settled
            found.append(f"{left} UNKNOWN calls are not settled")
        return found

    @property
    def calm(self) -> bool:
        """Whether no fault struck that made a call UNKNOWN: then the run shows little."""
        return not self.unknown_met

    def document(self) -> dict[str, Any]:
        """As written to the file."""
        return asdict(self)

    def table(self) -> Table:
        """As printed."""
        table = Table(title="What became of it", show_header=False)
        for name, value in self.document().items():
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if name == "decided" else value
            table.add_row(name.replace("_", " "), str(shown))
        return table


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What the store says, of one snapshot."""

    counts: outcome.Outcome
    marks: dict[str, int]
    accepted: set[str]


def read_facts(tx: Tx) -> StoreFacts:
    """Everything the outcome needs from the mesh's database."""
    return StoreFacts(outcome.read(tx), outcome.marks(tx), outcome.accepted_ids(tx))


def assess(
    facts: StoreFacts,
    ledgers: Mapping[str, Mapping[str, Any]],
    acknowledged: set[str],
    seconds: float,
) -> DemoOutcome:
    """The figures; `acknowledged` are the case ids that callers were told."""
    counts = facts.counts
    executions = {
        key: int(entry["executions"])
        for ledger in ledgers.values()
        for key, entry in ledger["keys"].items()
    }
    unmarked = sum(max(0, times - 1 - facts.marks.get(key, 0)) for key, times in executions.items())
    verdicts = {
        state: n for state, n in counts.decided.items() if state not in (_PENDING, _IN_REVIEW)
    }
    vanished = len(acknowledged - facts.accepted)
    return DemoOutcome(
        contents=counts.contents,
        tasks=counts.tasks,
        decided=verdicts,
        in_review=counts.decided.get(_IN_REVIEW, 0),
        expired=counts.expired,
        unknown_met=counts.unknown_met,
        unknown_settled=counts.unknown_met - counts.unknown_left,
        vendor_executions=sum(executions.values()),
        duplicate_executions=unmarked,
        marked_duplicates=counts.marked_duplicates,
        over_limit=sum(int(ledger["calls_above_limit"]) for ledger in ledgers.values()),
        fenced_writes=counts.fenced_writes,
        lost=vanished + counts.decided.get(_PENDING, 0),
        seconds=round(seconds, 2),
        tasks_per_s=round(counts.tasks / seconds, 1) if seconds else 0.0,
    )
