"""Order of service: which class goes first.

Receives nothing. Hands on the priority classes, the first to be served first. Shares reserved
by class and fairness between tenants join with the credits; until then a class is served when
those before it are empty. Source: DESIGN section 6.
"""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """The class of a task, in the order in which classes are served."""

    CRITICAL = "CRITICAL"
    NORMAL = "NORMAL"
    BULK = "BULK"
