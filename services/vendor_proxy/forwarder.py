"""Hands stored receipts on to the mesh, until it has acknowledged them.

Receives the receipts of calls that a task waits for. Hands them to a `ReceiptSink`, with
back-off; the sink is idempotent by receipt id, so that a repeat is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from kernel.environment import Environment
from kernel.retry import Backoff
from kernel.store import raw_receipts
from kernel.store.raw_receipts import StoredReceipt
from kernel.store.transaction import Store

_log = structlog.get_logger("sluice.vendor_proxy")
_BATCH = 100
_IDLE_SECONDS = 5.0
_BACKOFF = Backoff(base_seconds=0.2, cap_seconds=30.0, floor=0.5)


class ReceiptSink(Protocol):
    """Where receipts of the mesh's tasks go."""

    async def apply(self, receipts: Sequence[StoredReceipt]) -> Sequence[str]:
        """Apply receipts; one disposition each. Raises when nothing was acknowledged."""


class Forwarder:
    """One round hands on what is due, or waits until something is."""

    def __init__(self, store: Store, environment: Environment, sink: ReceiptSink) -> None:
        self._store = store
        self._environment = environment
        self._sink = sink
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something may be due now."""
        self._woken.set()

    async def one_round(self) -> None:
        """Hand on one batch; one that the sink does not acknowledge is put off."""
        self._woken.clear()
        receipts = await self._store.read(raw_receipts.due, _BATCH)
        if not receipts:
            await self._idle()
            return
        ids = [each.receipt_id for each in receipts]
        try:
            dispositions = await self._sink.apply(receipts)
        except Exception as error:
            # An aggregator that is away is expected and makes this service no less healthy.
            _log.warning("receipts_put_off", error=type(error).__name__, receipts=len(ids))
            tries = max(each.forward_tries for each in receipts)
            wait = _BACKOFF.seconds(tries, self._environment.random.random())
            await self._store.write(raw_receipts.postpone, ids, wait)
            return
        await self._store.write(raw_receipts.told, list(zip(ids, dispositions, strict=True)))

    async def _idle(self) -> None:
        wait = await self._store.read(raw_receipts.seconds_to_next)
        seconds = _IDLE_SECONDS if wait is None else min(wait, _IDLE_SECONDS)
        woken = asyncio.create_task(self._woken.wait())
        timer = asyncio.create_task(self._environment.clock.sleep(seconds))
        try:
            await asyncio.wait({woken, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            timer.cancel()
            await asyncio.gather(woken, timer, return_exceptions=True)
