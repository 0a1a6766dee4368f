"""One call from its request to its settled outcome: permit, begin, check, wire, settle.

Receives an `Asked`. Hands on a typed outcome, once it is durable. Runs as a task of its own:
a caller that leaves ends nothing. Every branch ends in an outcome, the last resort being
UNKNOWN. Source: DESIGN section 7 (order of every send).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import structlog

from kernel.attempt import NO_PERMIT, CallOutcome, Outcome
from kernel.environment import Environment
from kernel.errors import StoreAway
from kernel.retry import Backoff
from kernel.runtime.vault import PayloadGoneError
from kernel.store import pool_limits
from kernel.store.transaction import CommitInDoubtError, Store, Tx
from kernel.vendor import VendorProfile
from services.vendor_proxy import evidence, ledger
from services.vendor_proxy.adapters import (
    Adapter,
    BadPayloadError,
    NotSentError,
    Transmission,
    VendorCall,
)
from services.vendor_proxy.evidence import Ended, Standing
from services.vendor_proxy.incarnation import Incarnation, Instant
from services.vendor_proxy.ledger import Asked, Begun, LedgerRules
from services.vendor_proxy.permits import Permit, Permits

T = TypeVar("T")

_log = structlog.get_logger("sluice.vendor_proxy")
_STORE_BACKOFF = Backoff(base_seconds=0.1, cap_seconds=5.0, floor=0.5)


class Vault(Protocol):
    """What the proxy asks of the payload store."""

    async def open(self, ref: str) -> bytes:
        """The plain bytes; raises PayloadGoneError."""

    def seal(self, plain: bytes) -> bytes:
        """Seal bytes that the proxy stores itself."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Everything that one send needs."""

    store: Store
    environment: Environment
    vault: Vault
    rules: LedgerRules
    adapters: Mapping[str, Adapter]
    permits: Permits
    incarnation: Incarnation
    wake_forwarder: Callable[[], None]

    async def conduct(self, asked: Asked, refused: str = "") -> CallOutcome:
        """The outcome of an Execute; `refused` names why nothing may be sent, if so.

        Raises StoreAway when nothing was begun because the ledger cannot be reached.
        """
        profile = self.rules.vendors[asked.key.vendor]
        pool = asked.request.pool
        permit = None
        if not refused and not self.incarnation.may_begin():
            refused = "PROXY_NOT_LEASED"
        if not refused:
            longest = profile.client_timeout_seconds + profile.max_execution_seconds
            permit = self.permits.take(pool, asked.key, longest)
        if permit is None:
            answer = await self.store.read(ledger.look, asked, self.rules)
            return answer or self._refusal(refused, pool)
        try:
            return await self._with_permit(asked, permit)
        finally:
            # Nothing to do where the send's end returned it or put it into quarantine.
            if not permit.quarantined:
                permit.release()

    def _refusal(self, refused: str, pool: str) -> CallOutcome:
        if refused:
            return CallOutcome(Outcome.NOT_SENT, refused, retryable=True)
        closed = self.permits.closed_seconds(pool)
        if closed > 0:
            return CallOutcome(
                Outcome.NOT_SENT, "POOL_CLOSED", retryable=True, retry_after_seconds=closed
            )
        return CallOutcome(Outcome.NOT_SENT, NO_PERMIT, retryable=True)

    async def _with_permit(self, asked: Asked, permit: Permit) -> CallOutcome:
        issued = self.environment.clock.suspended_seconds()
        incarnation = self.incarnation.id
        try:
            begun, matched = await self.store.write(self._begin, asked, incarnation)
        except CommitInDoubtError:
            return await self._undo(asked, incarnation)
        if matched:
            self.wake_forwarder()
        if isinstance(begun, CallOutcome):
            return begun
        ended = await self._send(begun, Instant(begun.now, issued))
        if ended.occupied_seconds is not None:
            self._quarantine(permit, ended.occupied_seconds)
        standing = await self._settled(ended)
        if standing.stopped:
            permit.release()
            self.permits.free(asked.key)
        elif ended.occupied_seconds is not None:
            # Counted from the settle on, as the ledger does.
            self._quarantine(permit, ended.occupied_seconds)
        return standing.outcome

    def _begin(self, tx: Tx, asked: Asked, incarnation: str) -> tuple[Begun | CallOutcome, bool]:
        """The send or the answer that needs none, and whether waiting receipts found their call."""
        begun = ledger.begin(tx, asked, incarnation, self.rules)
        if isinstance(begun, CallOutcome):
            return begun, False
        early = evidence.claim_early(tx, begun, self.rules)
        if early is None or not early.outcome.settles_key:
            return begun, early is not None
        nothing = CallOutcome(Outcome.NOT_SENT, "SETTLED_BY_RECEIPT")
        standing = evidence.settle(tx, Ended(begun, nothing, False, None), self.rules)
        return replace(standing.outcome, replayed=True), True

    async def _undo(self, asked: Asked, incarnation: str) -> CallOutcome:
        """The begin's commit lost its answer: read back, and give the send back if it is in."""

        def read_back(tx: Tx) -> Begun | None:
            return ledger.begun_by(tx, asked, incarnation, self.rules)

        begun = await self._until_stored(read_back)
        outcome = CallOutcome(Outcome.NOT_SENT, "STORE_AWAY", retryable=True)
        if begun is None:
            return outcome
        return (await self._settled(Ended(begun, outcome, False, None))).outcome

    async def _send(self, begun: Begun, instant: Instant) -> Ended:
        profile = self.rules.vendors[begun.asked.key.vendor]
        request = begun.asked.request

        def refusal() -> str | None:
            now = instant.at(self.environment.clock.suspended_seconds())
            if not self.incarnation.may_send(begun.incarnation, now):
                return "LEASE_ENDING"
            return "DEADLINE_PASSED" if now >= request.deadline else None

        transmission = Transmission(refusal)
        try:
            outcome = await self._on_the_wire(begun, transmission)
        except PayloadGoneError:
            outcome = CallOutcome(Outcome.REJECTED, "PAYLOAD_GONE")
        except BadPayloadError as bad:
            outcome = CallOutcome(Outcome.REJECTED, bad.reason)
        except NotSentError as none_left:
            outcome = CallOutcome(Outcome.NOT_SENT, none_left.reason, retryable=True)
        except Exception as error:
            # The type only: an exception's text can hold what must not be logged.
            _log.error("send_failed", vendor=profile.name, error=type(error).__name__)
            sent = transmission.close()
            outcome = CallOutcome(
                Outcome.UNKNOWN if sent else Outcome.NOT_SENT, "SEND_FAILED", retryable=not sent
            )
        on_wire = transmission.close()
        if on_wire and outcome.outcome is Outcome.NOT_SENT:
            outcome = CallOutcome(Outcome.UNKNOWN, outcome.reason)
        return Ended(begun, outcome, on_wire, _occupied_seconds(outcome, profile))

    async def _on_the_wire(self, begun: Begun, transmission: Transmission) -> CallOutcome:
        request = begun.asked.request
        adapter = self.adapters[request.vendor]
        payload = request.payload
        if request.payload_ref:
            payload = await self.vault.open(request.payload_ref)
        call = VendorCall(begun.reference, request.model_id, request.kind, request.units)
        return await adapter.send(adapter.prepare(call, payload), transmission)

    async def _settled(self, ended: Ended) -> Standing:
        """Settle, however long the store is away: the outcome is told when it is durable."""
        pool = ended.begun.asked.request.pool
        outcome = ended.outcome
        closes = outcome.outcome is Outcome.THROTTLED and outcome.retry_after_seconds

        def settle(tx: Tx) -> Standing:
            standing = evidence.settle(tx, ended, self.rules)
            if closes:
                pool_limits.close(tx, pool, closes)
            return standing

        if closes:
            self.permits.close(pool, closes)
        standing = await self._until_stored(settle)
        if standing.matched:
            self.wake_forwarder()
        return standing

    async def _until_stored(self, function: Callable[[Tx], T]) -> T:
        tries = 0
        while True:
            try:
                return await self.store.write(function)
            except StoreAway:
                _log.warning("ledger_away", tries=tries)
            wait = _STORE_BACKOFF.seconds(tries, self.environment.random.random())
            await self.environment.clock.sleep(wait)
            tries += 1

    def _quarantine(self, permit: Permit, seconds: float) -> None:
        permit.quarantine(self.environment.clock.suspended_seconds() + seconds)


def _occupied_seconds(outcome: CallOutcome, profile: VendorProfile) -> float | None:
    """How long the vendor may go on working after this outcome; None: it has stopped."""
    if outcome.outcome is Outcome.UNKNOWN:
        return profile.max_execution_seconds
    if outcome.outcome is Outcome.ACCEPTED and profile.counts == "jobs":
        return profile.max_execution_seconds
    return None
