"""What happened in a lab, in order: what was done, what was answered, what the database wrote.

Receives a lab's own words, and every conditional update as the database driver ran it. Hands
on a timeline and the row count of each update: the number that the driver reported, not what
a program says of itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import event

from cli.labs.clock import LabClock
from kernel.lifecycle import State
from kernel.store.transaction import Store

DATABASE = "database"

_CONDITIONAL = re.compile(r"update (tasks|parents)\b")
# A batch is one JSON parameter; the statement names its columns.
_BATCH_COLUMN = re.compile(r"'\$\[(\d+)\]'\) as (\w+)")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the timeline; `at_seconds` since the lab began, by the lab's clock."""

    at_seconds: float
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Update:
    """One conditional update: `fence` is what it demanded of the row, `rows` those that matched."""

    what: str
    who: str
    row: str
    fence: str
    asked: int
    rows: int

    def text(self) -> str:
        """The update as a line."""
        by = f" by {self.who}" if self.who else ""
        return f"{self.what} of {self.row}{by} where {self.fence}: {self.rows} of {self.asked} rows"


class Witness:
    """Keeps the timeline; ids are shown by the names that the lab gave them."""

    def __init__(self, clock: LabClock) -> None:
        self.timeline: list[Event] = []
        self.updates: list[Update] = []
        self._clock = clock
        self._names: dict[str, str] = {}

    def name(self, identifier: str, name: str) -> None:
        """Show `identifier` as `name` from now on."""
        self._names[identifier] = name

    def called(self, identifier: str) -> str:
        """What an id is called here: its name, or itself."""
        return self._names.get(identifier, identifier)

    def task(self, parent_id: str, n: int) -> str:
        """What a task is called here."""
        return f"{self.called(parent_id)}.{n}"

    def tell(self, who: str, what: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append(Event(self._clock.suspended_seconds(), who, what))

    def watch(self, store: Store) -> None:
        """See every conditional update of tasks and parents that this store runs."""
        event.listen(store.engine, "after_cursor_execute", self._executed)

    def updates_of(self, what: str, who: str = "") -> list[Update]:
        """The updates of this kind, and by this holder where one is named."""
        return [u for u in self.updates if u.what.startswith(what) and who in ("", u.who)]

    def _executed(
        self,
        connection: Any,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        if not _CONDITIONAL.match(statement):
            return
        given = dict(context.compiled_parameters[0])
        if "batch" in given:
            columns = [name for _, name in sorted(_columns(statement))]
            rows = [
                dict(zip(columns, row, strict=True)) for row in orjson.loads(given.pop("batch"))
            ]
        else:
            rows = [given]
        seen = self._seen(statement, rows, int(cursor.rowcount))
        if seen is not None:
            self.updates.append(seen)
            self.tell(DATABASE, seen.text())

    def _seen(self, statement: str, rows: list[dict[str, Any]], matched: int) -> Update | None:
        first = rows[0]
        if statement.startswith("update parents"):
            if "from_state" not in first:
                return None
            return Update(
                f"decide {first['from_state']} -> {first['state']}",
                "aggregator",
                self.called(first["id"]),
                f"version={first['version']}" + (", deadline ahead" * (not first["any_time"])),
                len(rows),
                matched,
            )
        what, who = _task_update(first)
        if not what:
            return None
        named = [self.task(row["parent_id"], row["n"]) for row in rows]
        return Update(
            what,
            self.called(who),
            named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}",
            self._fence(first),
            len(rows),
            matched,
        )

    def _fence(self, row: dict[str, Any]) -> str:
        demanded = {
            "state": row.get("fence_state", State.IN_FLIGHT if "fence_owner" in row else None),
            "attempt": row.get("fence_attempt"),
            "owner": self.called(row["fence_owner"]) if row.get("fence_owner") else None,
            "wake_at": "as it was read" if "seen_wake" in row else None,
        }
        return ", ".join(f"{name}={value}" for name, value in demanded.items() if value is not None)


def _columns(statement: str) -> list[tuple[int, str]]:
    return [(int(at), name) for at, name in _BATCH_COLUMN.findall(statement)]


def _task_update(row: dict[str, Any]) -> tuple[str, str]:
    """(what, who) of an update of tasks, by what its rows hold; empty for one that is none."""
    if "to_state" in row:
        source, target = row["fence_state"], row["to_state"]
        if (source, target) == (State.READY, State.IN_FLIGHT):
            return "claim", row["new_owner"]
        if (source, target) == (State.IN_FLIGHT, State.IN_FLIGHT):
            return "takeover", row["new_owner"]
        if source == State.IN_FLIGHT:
            return f"settle -> {target}", row["fence_owner"]
        return f"move {source} -> {target}", ""
    if "seen_wake" in row:
        return "reserve", ""
    if "new_wake" in row:
        return f"linger ({row['new_reason']})", ""
    return "", ""
