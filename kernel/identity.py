"""How a task is named: `<parent>.<n>`.

Receives text from a caller. Hands on the key of a row, or None where it is no task id.
"""

from __future__ import annotations

import re

_TASK = re.compile(r"([0-9a-f]{32})\.([1-9][0-9]{0,8})")
_PARENT = re.compile(r"[0-9a-f]{32}")


def task_id(parent_id: str, n: int) -> str:
    """The name of child `n` (from 1) of a parent."""
    return f"{parent_id}.{n}"


def parse_task_id(text: str) -> tuple[str, int] | None:
    """(parent id, n), or None."""
    found = _TASK.fullmatch(text)
    return (found[1], int(found[2])) if found else None


def is_parent_id(text: str) -> bool:
    """Whether this has the form of a parent's id: 32 lower-case hex digits."""
    return _PARENT.fullmatch(text) is not None
