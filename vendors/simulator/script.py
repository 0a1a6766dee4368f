"""Receives one call's key and model; hands on what the script does to it and to its receipts.

Rules only: no clock, no network. The one state is how often each entry has fired.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vendors.simulator.chance import Chance

Count = Annotated[int, Field(ge=1)]
Millis = Annotated[float, Field(ge=0)]


class Do(StrEnum):
    """What an entry does, to a call or to its receipts."""

    HIDE_RESPONSE = "hide_response"
    DROP_BEFORE = "drop_before"
    THROTTLE = "throttle"
    REFUSE = "refuse"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    FAIL = "fail"
    GARBAGE = "garbage"
    SLOW = "slow"
    HANG = "hang"
    DUPLICATE_RECEIPT = "duplicate_receipt"
    REORDER_RECEIPTS = "reorder_receipts"
    LATE_RECEIPT = "late_receipt"
    FORGED_RECEIPT = "forged_receipt"
    NO_RECEIPT = "no_receipt"


RECEIPT_ACTIONS = frozenset(
    {
        Do.DUPLICATE_RECEIPT,
        Do.REORDER_RECEIPTS,
        Do.LATE_RECEIPT,
        Do.FORGED_RECEIPT,
        Do.NO_RECEIPT,
    }
)


class Strict(BaseModel):
    """Input that refuses unknown fields and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class When(Strict):
    """Which calls an entry meets: exactly one of the first four, narrowed by `model`.

    `nth` and `every` count the vendor's calls from 1 since its script was put; with a
    `model` they count that model's calls.
    """

    nth: Count | None = None
    every: Count | None = None
    key: str | None = None
    p: Annotated[float, Field(ge=0, le=1)] | None = None
    model: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(each is not None for each in (self.nth, self.every, self.key, self.p)) != 1:
            raise ValueError("exactly one of nth, every, key and p is needed")
        return self

    def meets(self, number: int, key: str, chance: Chance) -> bool:
        """Whether the call with this number and key is met; a `p` draws each time it is asked."""
        if self.nth is not None:
            return number == self.nth
        if self.every is not None:
            return number % self.every == 0
        if self.p is not None:
            return chance.happens(self.p)
        return key == self.key


class Entry(Strict):
    """One line of a script. `times` and `once_per_key` bound how often it fires."""

    when: When
    do: Do
    times: Count | None = None
    once_per_key: bool = False
    slow_ms: Millis = 1_000
    late_ms: Millis = 2_000
    retry_after: Annotated[int, Field(ge=0)] = 1
    """Seconds."""


class Choice(NamedTuple):
    """What the script does to one call, and to the receipts that the call leads to."""

    action: Entry | None
    receipts: tuple[Entry, ...]


class Script:
    """A vendor's script while it runs."""

    def __init__(self, entries: tuple[Entry, ...], chance: Chance) -> None:
        self._entries = entries
        self._chance = chance
        self._calls = 0
        self._calls_by_model: Counter[str] = Counter()
        self._fired = [0] * len(entries)
        self._fired_keys: list[set[str]] = [set() for _ in entries]

    def choose(self, key: str, model: str) -> Choice:
        """Count one call and say what happens to it.

        The first call action that meets it wins; every receipt action that meets it applies.
        Every `p` of the call's model draws, also behind a winner, so that the draws of later
        calls do not depend on who won.
        """
        self._calls += 1
        self._calls_by_model[model] += 1
        action: Entry | None = None
        receipts: list[Entry] = []
        for index, entry in enumerate(self._entries):
            if not self._meets(entry, key, model) or self._is_spent(index, key):
                continue
            if entry.do in RECEIPT_ACTIONS:
                receipts.append(entry)
            elif action is None:
                action = entry
            else:
                continue
            self._fired[index] += 1
            if entry.once_per_key:
                self._fired_keys[index].add(key)
        return Choice(action, tuple(receipts))

    def _meets(self, entry: Entry, key: str, model: str) -> bool:
        when = entry.when
        if when.model is None:
            return when.meets(self._calls, key, self._chance)
        if when.model != model:
            return False
        return when.meets(self._calls_by_model[model], key, self._chance)

    def _is_spent(self, index: int, key: str) -> bool:
        times = self._entries[index].times
        return (times is not None and self._fired[index] >= times) or key in self._fired_keys[index]
