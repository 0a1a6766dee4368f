"""Asking vendors what became of a call, and asking them to stop one.

Receives a ledger row that is in doubt or still open. Hands on the vendor's answer, kept in
the ledger: a terminal answer settles the row, and "not found" proves something only with
authority and after the vendor's consistency lag. Source: DESIGN sections 6 and 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel.attempt import CallOutcome, Outcome, QueryAnswer, QueryOutcome
from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.idempotency import CallState
from kernel.retry import Backoff
from kernel.store import call_evidence
from kernel.store.calls import StoredCall
from kernel.store.transaction import Store, Tx
from kernel.vendor import VendorProfile
from services.vendor_proxy import evidence, ledger
from services.vendor_proxy.adapters import Adapter, CancelAnswer, VendorAnswer, VendorState
from services.vendor_proxy.ledger import LedgerRules
from services.vendor_proxy.permits import Permits

_QUERY_BACKOFF = Backoff(base_seconds=1.0, cap_seconds=1.0, floor=0.5)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What one answer means. `not_found_asked_at` in microseconds, 0 unless it is a proof."""

    answer: QueryAnswer
    reason: str = ""
    retry_after_seconds: float = 0.0
    not_found_asked_at: int = 0


class Queries:
    """Status queries, with a limit of their own for each vendor."""

    def __init__(
        self,
        store: Store,
        environment: Environment,
        rules: LedgerRules,
        adapters: Mapping[str, Adapter],
        permits: Permits,
    ) -> None:
        self._store = store
        self._environment = environment
        self._rules = rules
        self._adapters = adapters
        self._permits = permits
        self._turns = {
            name: asyncio.Semaphore(profile.query_concurrency)
            for name, profile in rules.vendors.items()
        }

    async def status(self, row: StoredCall) -> QueryOutcome:
        """The answer about one row; asks the vendor where the row is open and it can tell."""
        settled = row.outcome
        match row.ledger.state:
            case CallState.FENCED:
                return QueryOutcome(QueryAnswer.NOT_FOUND, reason="NEVER_BEGUN")
            case CallState.PREPARED:
                return QueryOutcome(QueryAnswer.RUNNING, reason="IN_PROGRESS")
            case CallState.SETTLED if settled and settled.outcome is not Outcome.ACCEPTED:
                return QueryOutcome(QueryAnswer.SETTLED, ledger.shown(row))
        profile = self._rules.vendors[row.key.vendor]
        if not profile.able.can_query(row.ledger.external_id):
            return await self._nobody_can_tell(row, profile)
        async with self._turns[profile.name]:
            # The asking's time must be earlier than the vendor's look: read it before.
            asked_at = await self._store.read(Tx.now)
            by_key = profile.able.query_by_key
            answer = await self._adapters[profile.name].query(
                row.reference if by_key else "", row.ledger.external_id
            )
        return await self._keep(row, profile, answer, asked_at)

    async def cancel(self, row: StoredCall) -> CancelAnswer:
        """Ask the vendor to stop the row's call; its yes settles the row."""
        profile = self._rules.vendors[row.key.vendor]
        settled = row.outcome
        if row.ledger.state is CallState.FENCED:
            return CancelAnswer.CANCELLED
        if row.ledger.state is CallState.SETTLED and (
            settled is None or settled.outcome is not Outcome.ACCEPTED
        ):
            return CancelAnswer.TOO_LATE
        if not profile.able.cancel or not row.ledger.external_id:
            return CancelAnswer.CANNOT_TELL
        async with self._turns[profile.name]:
            answer = await self._adapters[profile.name].cancel(row.ledger.external_id)
        if answer is not CancelAnswer.CANCELLED:
            return answer
        cancelled = CallOutcome(Outcome.REJECTED, "CANCELLED", external_id=row.ledger.external_id)
        stands = (await self._settle(row, profile, cancelled)).call
        if stands is None:
            # An earlier send is in doubt: the vendor stopped one of several.
            return CancelAnswer.CANNOT_TELL
        return answer if stands.reason == cancelled.reason else CancelAnswer.TOO_LATE

    async def _keep(
        self, row: StoredCall, profile: VendorProfile, answer: VendorAnswer, asked_at: int
    ) -> QueryOutcome:
        if answer.state is VendorState.ENDED and answer.outcome is not None:
            return await self._settle(row, profile, answer.outcome)
        heard = self._heard(row, profile, answer, asked_at)
        if heard.answer is QueryAnswer.CANNOT_TELL:
            return await self._nobody_can_tell(row, profile, heard.reason)

        def keep(tx: Tx) -> StoredCall:
            call_evidence.keep_query(
                tx, row, heard.answer, heard.not_found_asked_at, answer.external_id
            )
            return ledger.row_of(tx, row.key, self._rules)

        now_there = await self._store.write(keep)
        if now_there.send_number != row.send_number:
            return QueryOutcome(QueryAnswer.RUNNING, reason="NEWER_SEND")
        if now_there.ledger.state is CallState.SETTLED and heard.answer is not QueryAnswer.RUNNING:
            # A receipt settled it while the vendor was asked.
            return await self.status(now_there)
        if heard.not_found_asked_at:
            self._permits.free(row.key)
        return await self._told(now_there, profile, heard)

    def _heard(
        self, row: StoredCall, profile: VendorProfile, answer: VendorAnswer, asked_at: int
    ) -> _Heard:
        able = profile.able
        match answer.state:
            case VendorState.RUNNING:
                return _Heard(QueryAnswer.RUNNING)
            case VendorState.NOT_FOUND if row.ledger.external_id:
                return _Heard(QueryAnswer.CANNOT_TELL, "VENDOR_CONTRADICTS_ITSELF")
            case VendorState.NOT_FOUND if able.query_by_key and able.authoritative:
                lag = int(able.consistency_lag_seconds * MICROS_PER_SECOND)
                visible_at = row.ledger.last_byte_at + lag
                if asked_at > visible_at:
                    return _Heard(QueryAnswer.NOT_FOUND, not_found_asked_at=asked_at)
                wait = (visible_at - asked_at + 1) / MICROS_PER_SECOND
                return _Heard(QueryAnswer.TOO_EARLY, "CONSISTENCY_LAG", wait)
            case VendorState.NOT_FOUND:
                return _Heard(QueryAnswer.CANNOT_TELL, "NOT_FOUND_PROVES_NOTHING")
            case VendorState.UNSUPPORTED:
                return _Heard(QueryAnswer.CANNOT_TELL, "QUERY_REFUSED")
            case _:
                draw = self._environment.random.random()
                wait = _QUERY_BACKOFF.seconds(0, draw, answer.retry_after_seconds)
                return _Heard(QueryAnswer.TOO_EARLY, "QUERY_FAILED", wait)

    async def _nobody_can_tell(
        self, row: StoredCall, profile: VendorProfile, reason: str = "CANNOT_BE_QUERIED"
    ) -> QueryOutcome:
        """CANNOT_TELL, once a receipt had its time to tell."""
        heard = _Heard(QueryAnswer.CANNOT_TELL, reason)

        def keep(tx: Tx) -> tuple[int, StoredCall]:
            call_evidence.keep_query(tx, row, heard.answer, 0, "")
            return tx.now(), ledger.row_of(tx, row.key, self._rules)

        now, now_there = await self._store.write(keep)
        if now_there.send_number != row.send_number:
            return QueryOutcome(QueryAnswer.RUNNING, reason="NEWER_SEND")
        settled = now_there.outcome
        if now_there.ledger.state is CallState.SETTLED and (
            settled is not None and settled.outcome is not Outcome.ACCEPTED
        ):
            return QueryOutcome(QueryAnswer.SETTLED, ledger.shown(now_there))
        if profile.able.receipts:
            grace = int(profile.receipt_grace_seconds * MICROS_PER_SECOND)
            due_at = now_there.ledger.last_byte_at + grace
            if now < due_at:
                wait = (due_at - now) / MICROS_PER_SECOND
                heard = _Heard(QueryAnswer.TOO_EARLY, "RECEIPT_MAY_COME", wait)
        return await self._told(now_there, profile, heard)

    async def _settle(
        self, row: StoredCall, profile: VendorProfile, outcome: CallOutcome
    ) -> QueryOutcome:
        def settle(tx: Tx) -> StoredCall:
            found = ledger.row_of(tx, row.key, self._rules)
            call_evidence.keep_query(tx, found, QueryAnswer.SETTLED, 0, outcome.external_id)
            evidence.add(tx, found, outcome, profile)
            return ledger.row_of(tx, row.key, self._rules)

        now_there = await self._store.write(settle)
        if now_there.ledger.state is CallState.SETTLED:
            if ledger.one_execution(now_there, profile):
                self._permits.free(row.key)
            return QueryOutcome(QueryAnswer.SETTLED, ledger.shown(now_there))
        if now_there.ledger.state is CallState.PREPARED:
            return QueryOutcome(QueryAnswer.RUNNING, reason="NEWER_SEND")
        # One of several executions failed: of the others this says nothing.
        heard = _Heard(QueryAnswer.CANNOT_TELL, "ONE_OF_SEVERAL_SENDS_FAILED")
        return await self._told(now_there, profile, heard)

    async def _told(self, row: StoredCall, profile: VendorProfile, heard: _Heard) -> QueryOutcome:
        now = await self._store.read(Tx.now)
        call = None
        if heard.answer is QueryAnswer.RUNNING and row.ledger.external_id:
            call = replace(
                ledger.in_doubt(row),
                outcome=Outcome.ACCEPTED,
                reason="RUNNING",
                receipt_due_seconds=profile.receipt_due_seconds,
            )
        return QueryOutcome(
            heard.answer,
            call,
            heard.retry_after_seconds,
            ledger.verdict(row, profile, now),
            heard.reason,
        )
