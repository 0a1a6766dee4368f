"""Receives a database; hands tests a store that goes away, or loses a commit's answer, at will."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kernel.environment import Clock
from kernel.errors import StoreAway
from kernel.store.transaction import CommitInDoubtError, Store


class FlakyStore(Store):
    """`away`: every call fails. `lose_answer_of`: the next write of that name commits in doubt."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock)
        self.away = False
        self.lose_answer_of = ""
        self.failed, self.lost = asyncio.Event(), asyncio.Event()

    async def write(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = function.__name__
        if self.away:
            self.failed.set()
            raise StoreAway("away")
        result = await super().write(function, *args, **kwargs)
        if self.lose_answer_of == name:
            self.lose_answer_of = ""
            self.lost.set()
            raise CommitInDoubtError("lost")
        return result

    async def read(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.away:
            self.failed.set()
            raise StoreAway("away")
        return await super().read(function, *args, **kwargs)
