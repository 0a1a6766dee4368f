"""Renders docs/lifecycle.md from the one move table in kernel/lifecycle.py.

Receives nothing. Hands on the page on standard output; a test holds the page to it.
"""

from __future__ import annotations

import sys

from kernel.lifecycle import CASE_MOVES, CLOSED, MOVES, State

_HEAD = """# The lifecycle of tasks and cases

Made by `make docs` from `kernel/lifecycle.py`; do not edit. What each state means stands there.
A closed task has no `wake_at`; every other one has its next event there, so that one index scan
finds all work that is due.
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD, "```mermaid", "stateDiagram-v2", "  [*] --> PLANNED", "  [*] --> READY"]
    movers: dict[tuple[State, State], list[str]] = {}
    for move in MOVES:
        known = movers.setdefault((move.source, move.target), [])
        if move.mover.lower() not in known:
            known.append(move.mover.lower())
    lines += [f"  {a} --> {b}: {', '.join(by)}" for (a, b), by in movers.items()]
    lines += [f"  {state} --> [*]" for state in State if state in CLOSED]
    lines += ["```", "", "| from | to | by | only when `maybe_executed` is |", "|---|---|---|---|"]
    for move in MOVES:
        flag = {None: "either", True: "true", False: "false"}[move.maybe_executed]
        lines.append(f"| {move.source} | {move.target} | {move.mover.lower()} | {flag} |")
    lines += ["", "## Cases", "", "| from | to | by |", "|---|---|---|"]
    lines += [f"| {a} | {b} | {by.lower()} |" for a, b, by in sorted(CASE_MOVES)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
