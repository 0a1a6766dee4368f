"""What every lab hands in, for people and as one JSON document.

Receives what a lab saw: timeline, snapshots, row counts, calls at the vendor, the way to
recover, and its assertions. Hands on text or a document, and whether everything held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cli.labs.witness import Event, Update

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rows:
    """A titled table; every row has the same columns."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion; `found` is what was seen."""

    name: str
    passed: bool
    found: str


@dataclass(slots=True)
class Report:
    """One run of a lab. `calls` are the vendor's own books, by request key."""

    lab: str
    summary: str
    timeline: list[Event] = field(default_factory=list)
    snapshots: list[Rows] = field(default_factory=list)
    observations: list[Rows] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    recovery: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there were assertions and all of them held."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def check(self, name: str, found: object, expected: object) -> None:
        """Assert that `found` is `expected`."""
        passed = found == expected
        said = _shown(found) if passed else f"{_shown(found)}, expected {_shown(expected)}"
        self.checks.append(Check(name, passed, said))

    def document(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "lab": self.lab,
            "summary": self.summary,
            "passed": self.passed,
            "timeline": [asdict(each) for each in self.timeline],
            "snapshots": [_rows(each) for each in self.snapshots],
            "observations": [_rows(each) for each in self.observations],
            "conditional_updates": [asdict(each) for each in self.updates],
            "external_calls": [dict(each) for each in self.calls],
            "recovery": self.recovery,
            "assertions": [asdict(each) for each in self.checks],
        }

    def print(self, console: Console) -> None:
        """Everything, for people."""
        console.print(f"lab {self.lab}: {self.summary}", markup=False)
        _heading(console, "Timeline (seconds by the lab's clock)")
        for each in self.timeline:
            console.print(f"{each.at_seconds:8.3f}  {each.who:<14} {each.what}", markup=False)
        _heading(console, "Database snapshots")
        for table in self.snapshots:
            console.print(_table(table))
        for table in self.observations:
            _heading(console, table.title)
            console.print(_table(Rows("", table.rows)))
        _heading(console, "Conditional updates and the rows they matched")
        console.print(_table(Rows("", [asdict(each) for each in self.updates])))
        _heading(console, "External request keys, by the vendor's own ledger")
        console.print(_table(Rows("", self.calls)))
        _heading(console, "To recover")
        for number, step in enumerate(self.recovery, start=1):
            console.print(f"{number}. {step}", markup=False)
        _heading(console, "Assertions")
        for check in self.checks:
            mark = "PASS" if check.passed else "FAIL"
            console.print(f"{mark}  {check.name}: {check.found}", markup=False)
        held = sum(check.passed for check in self.checks)
        verdict = "PASS" if self.passed else "FAIL"
        console.print(
            f"\n{verdict}: {held} of {len(self.checks)} assertions of lab {self.lab} hold",
            markup=False,
        )


def _heading(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", markup=False)


def _table(shown: Rows) -> Table:
    columns = list(shown.rows[0]) if shown.rows else []
    table = Table(
        *(_header(name) for name in columns),
        title=shown.title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in shown.rows:
        table.add_row(*(_shown(row[name]) for name in columns))
    return table


def _header(name: str) -> str:
    """A column's name on two lines, which keeps tables narrow."""
    return name.replace("_", "\n", 1).replace("_", " ")


def _rows(shown: Rows) -> dict[str, Any]:
    return {"title": shown.title, "rows": [dict(row) for row in shown.rows]}


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_shown(each) for each in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
