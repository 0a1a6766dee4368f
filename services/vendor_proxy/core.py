"""The vendor proxy's core: what callers can ask of the shared gateway.

Receives Executes, queries, fences, cancels, receipts and limits, each with its authenticated
caller. Hands on typed outcomes. All time, randomness, stores and neighbours are injected.
Source: DESIGN section 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from kernel.attempt import (
    CallOutcome,
    CallRequest,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    QueryOutcome,
)
from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.errors import FieldViolation, InvalidArgument, NotFound
from kernel.idempotency import CallState, Hasher, first_difference
from kernel.limits import IncarnationBounds
from kernel.receipt import ReceiptState
from kernel.runtime.lifecycle import Loops
from kernel.store import call_evidence, calls, pool_limits
from kernel.store.calls import CallKey, StoredCall
from kernel.store.transaction import Store, Tx
from kernel.vendor import PoolProfile, VendorProfile
from services.vendor_proxy import checks, evidence, ledger, receipts
from services.vendor_proxy.adapters import Adapter, CancelAnswer
from services.vendor_proxy.adapters.replies import Secrets
from services.vendor_proxy.evidence import Kept
from services.vendor_proxy.forwarder import Forwarder, ReceiptSink
from services.vendor_proxy.incarnation import Incarnation
from services.vendor_proxy.ledger import Asked, LedgerRules
from services.vendor_proxy.permits import Permits
from services.vendor_proxy.queries import Queries
from services.vendor_proxy.receipts import ReceiptCounts
from services.vendor_proxy.sending import Sender, Vault

_log = structlog.get_logger("sluice.vendor_proxy")


@dataclass(frozen=True, slots=True)
class Limit:
    """One pool's limit and use. Times in microseconds since the epoch, 0 where none."""

    pool: str
    vendor: str
    concurrency: int
    in_flight: int
    quarantined: int
    closed_until: int


@dataclass(slots=True)
class _Flight:
    """A call under way in this process; equal requests join it."""

    asked: Asked
    task: asyncio.Task[CallOutcome]

    def refusal(self, asked: Asked) -> CallOutcome | None:
        """Why another request with this key may not join."""
        field = first_difference(self.asked.fingerprint, asked.fingerprint)
        if field is not None:
            return CallOutcome(Outcome.REQUEST_MISMATCH, "REQUEST_MISMATCH", field=field)
        if asked.request.attempt < self.asked.request.attempt:
            return CallOutcome(Outcome.STALE_ATTEMPT, "STALE_ATTEMPT")
        return None


class ProxyCore:
    """The gateway of one replica. `start` it before use."""

    def __init__(
        self,
        *,
        store: Store,
        environment: Environment,
        vault: Vault,
        hasher: Hasher,
        vendors: Mapping[str, VendorProfile],
        pools: Mapping[str, PoolProfile],
        adapters: Mapping[str, Adapter],
        secrets: Secrets,
        sink: ReceiptSink,
        bounds: IncarnationBounds,
    ) -> None:
        bounds.assert_relations()
        self._store = store
        self._environment = environment
        self._vault = vault
        self._hasher = hasher
        self._vendors = vendors
        self._pools = pools
        self._adapters = adapters
        self._secrets = secrets
        self._bounds = bounds
        self._rules = LedgerRules(vendors, bounds.write_seconds)
        self._longest = {name: each.max_execution_seconds for name, each in vendors.items()}
        self._permits = Permits(
            {name: pool.concurrency for name, pool in pools.items()},
            environment.clock.suspended_seconds,
        )
        self._incarnation = Incarnation(store, environment, bounds)
        self._forwarder = Forwarder(store, environment, sink)
        self._sender = Sender(
            store=store,
            environment=environment,
            vault=vault,
            rules=self._rules,
            adapters=adapters,
            permits=self._permits,
            incarnation=self._incarnation,
            wake_forwarder=self._forwarder.wake,
        )
        self._queries = Queries(store, environment, self._rules, adapters, self._permits)
        self._flights: dict[CallKey, _Flight] = {}
        self._stopping = False
        self.loops = Loops("vendor_proxy", environment)
        self.receipt_counts = ReceiptCounts()

    async def start(self) -> None:
        """Take a lease, count what earlier lives left at the vendors, and start the loops."""
        await self._incarnation.begin()
        await self._take_over_dead()
        now, held = await self._store.read(
            calls.occupied, self._bounds.write_seconds, self._longest
        )
        for each in held:
            seconds = (each.until - now) / MICROS_PER_SECOND
            self._permits.occupy(each.pool, each.key, each.permits, seconds)
        await self._read_limits()
        self.loops.start("incarnation", self._tend)
        self.loops.start("receipts", self._forwarder.one_round)

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Begin nothing new, let what is under way settle within the grace, give up the lease."""
        self._stopping = True
        tasks = [flight.task for flight in self._flights.values()]
        if tasks:
            waits: list[asyncio.Task[object]] = [
                asyncio.create_task(asyncio.wait(tasks)),
                asyncio.create_task(self._environment.clock.sleep(grace_seconds)),
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await self.loops.stop()
        if self._flights:
            _log.warning("stopped_with_open_calls", calls=len(self._flights))
            await self._cut()
        else:
            await self._incarnation.end()

    async def drop(self) -> None:
        """End at once, as a crash would: nothing is settled and no lease is given up."""
        self._stopping = True
        await self.loops.stop()
        await self._cut()

    async def execute(self, caller: str, request: CallRequest) -> CallOutcome:
        """Have one call made, join it, or answer from the ledger.

        Raises InvalidArgument with every bad field; StoreAway when nothing was begun because
        the ledger cannot be reached. A caller that leaves ends nothing.
        """
        checks.check_request(request, self._vendors, self._pools)
        key = CallKey(caller, request.vendor, request.idempotency_key)
        asked = Asked(key, request, ledger.fingerprint(self._hasher, request))
        while (flight := self._flights.get(key)) is not None:
            refusal = flight.refusal(asked)
            if refusal is not None:
                return refusal
            outcome = await asyncio.shield(flight.task)
            higher = request.attempt > flight.asked.request.attempt
            if not (higher and outcome.replayed):
                return replace(outcome, replayed=True)
            # Nothing was sent by the one that we joined, and our attempt may do more than its.
        return await asyncio.shield(self._take_off(asked).task)

    async def get_call(self, caller: str, idempotency_key: str, vendor: str) -> StoredCall:
        """What the ledger holds; asks nobody. Raises NotFound."""
        return await self._find(CallKey(caller, vendor, idempotency_key))

    async def query_status(self, caller: str, idempotency_key: str, vendor: str) -> QueryOutcome:
        """Ask the vendor what became of a call, and keep the answer. Raises NotFound."""
        key = CallKey(caller, vendor, idempotency_key)
        if key in self._flights:
            return QueryOutcome(QueryAnswer.RUNNING, reason="IN_PROGRESS")
        return await self._queries.status(await self._find(key))

    async def fence(
        self, caller: str, idempotency_key: str, vendor: str, attempt: int
    ) -> tuple[FenceAnswer, CallOutcome | None]:
        """Close all attempts up to and including `attempt` to new sends.

        Raises NotFound for an unknown vendor, InvalidArgument with every bad field.
        """
        checks.check_vendor(vendor, self._vendors)
        checks.check_fence(idempotency_key, attempt)
        key = CallKey(caller, vendor, idempotency_key)

        def close(tx: Tx) -> StoredCall:
            call_evidence.fence(tx, key, attempt)
            return ledger.row_of(tx, key, self._rules)

        row = await self._store.write(close)
        match row.ledger.state:
            case CallState.FENCED:
                return FenceAnswer.NEVER_BEGUN, None
            case CallState.PREPARED:
                return FenceAnswer.IN_PROGRESS, None
            case CallState.SETTLED:
                return FenceAnswer.SETTLED, ledger.shown(row)
            case CallState.UNKNOWN:
                return FenceAnswer.UNKNOWN, None

    async def cancel_call(self, caller: str, idempotency_key: str, vendor: str) -> CancelAnswer:
        """Ask the vendor to stop a call, where it can. Raises NotFound."""
        return await self._queries.cancel(
            await self._find(CallKey(caller, vendor, idempotency_key))
        )

    async def ingest_receipt(
        self, vendor_account: str, headers: Mapping[str, str], body: bytes
    ) -> bool:
        """Verify and store a receipt; False when the same fact was stored before.

        Raises NotFound for an unknown account, Unauthenticated for a bad signature or time,
        StoreAway when it could not be stored.
        """
        checks.check_vendor(vendor_account, self._vendors)
        profile = self._vendors[vendor_account]
        secret = self._secrets(profile.receipt_secret_ref) if profile.receipt_secret_ref else None
        counts = self.receipt_counts
        try:
            receipts.verify(secret, headers, body, self._environment.clock.now_micros())
        except Exception:
            counts.rejected += 1
            raise
        parsed = self._adapters[vendor_account].parse_receipt(body)
        receipt = receipts.build(profile, parsed, body, self._vault.seal(body), self._hasher)
        kept: Kept = await self._store.write(evidence.keep_receipt, receipt, self._rules)
        if not kept.stored:
            counts.repeated += 1
            return False
        counts.stored += 1
        if receipt.state is ReceiptState.UNMAPPED:
            counts.unknown_status += 1
            _log.warning("receipt_status_unmapped", vendor=vendor_account)
        if kept.key is not None and kept.stopped:
            self._permits.free(kept.key)
        self._forwarder.wake()
        return True

    def list_limits(self) -> list[Limit]:
        """Every pool's limit and use, as this replica counts it."""
        return [self._limit(pool) for pool in self._permits.pools()]

    async def set_limit(self, pool: str, concurrency: int) -> tuple[Limit, int]:
        """Change a limit; returns it and when it is sure to hold (microseconds).

        Raises NotFound, InvalidArgument.
        """
        if pool not in self._pools:
            raise NotFound(f"There is no pool {pool!r}; see ListLimits.", field="pool")
        if concurrency < 0:
            raise InvalidArgument(FieldViolation("concurrency", "must be at least 0"))
        await self._store.write(pool_limits.set_concurrency, pool, concurrency)
        seconds = self._permits.set_limit(pool, concurrency)
        in_force_at = self._incarnation.now() + int(seconds * MICROS_PER_SECOND)
        return self._limit(pool), in_force_at

    def _take_off(self, asked: Asked) -> _Flight:
        refused = "SHUTTING_DOWN" if self._stopping else ""
        task = asyncio.create_task(self._sender.conduct(asked, refused))
        flight = self._flights[asked.key] = _Flight(asked, task)

        def landed(done: asyncio.Task[CallOutcome]) -> None:
            self._flights.pop(asked.key, None)
            if not done.cancelled():
                done.exception()  # its callers may all have left: it is not lost, it was told

        task.add_done_callback(landed)
        return flight

    async def _find(self, key: CallKey) -> StoredCall:
        checks.check_vendor(key.vendor, self._vendors)
        found = await self._store.read(calls.look_up, key, self._bounds.write_seconds)
        if found is None:
            raise NotFound("The ledger has no call with this key for you at this vendor.")
        return found

    async def _tend(self) -> None:
        """One round: renew the lease, take over what the dead left, read the limits."""
        await self._environment.clock.sleep(self._bounds.renew_interval_seconds)
        await self._incarnation.renew()
        await self._take_over_dead()
        await self._read_limits()

    async def _take_over_dead(self) -> None:
        in_doubt = await self._store.write(
            call_evidence.take_over_dead, self._bounds.write_seconds, self._longest
        )
        if in_doubt:
            _log.warning("calls_of_the_dead_in_doubt", calls=in_doubt)

    async def _read_limits(self) -> None:
        now, stored = await self._store.read(_limits_now)
        for each in stored:
            if each.pool not in self._pools:
                continue
            if each.concurrency is not None:
                self._permits.set_limit(each.pool, each.concurrency)
            if each.closed_until > now:
                self._permits.close(each.pool, (each.closed_until - now) / MICROS_PER_SECOND)

    def _limit(self, pool: str) -> Limit:
        use = self._permits.use(pool)
        closed = int(use.closed_seconds * MICROS_PER_SECOND)
        return Limit(
            pool,
            self._pools[pool].vendor,
            use.limit,
            use.in_flight,
            use.quarantined,
            self._incarnation.now() + closed if closed else 0,
        )

    async def _cut(self) -> None:
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _limits_now(tx: Tx) -> tuple[int, list[pool_limits.StoredLimit]]:
    return tx.now(), pool_limits.all_limits(tx)
