"""The aggregator without its wire: receipts in, verdicts out, and what reviewers may do.

Receives receipts, and markers and deadlines from the store. Hands on decisions, each written
once. All time, randomness and stores come in through the constructor; no transaction is held
across an await. Source: DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import structlog
from sqlalchemy.exc import IntegrityError

from kernel.decision import Policy
from kernel.environment import Environment
from kernel.errors import FieldViolation, InvalidArgument, LostRace, StoreAway
from kernel.lifecycle import CaseState
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store import policies as stored_policies
from kernel.store import receipts as stored_receipts
from kernel.store import snapshots
from kernel.store.policies import StoredPolicy
from kernel.store.receipts import NewReceipt
from kernel.store.transaction import CommitInDoubtError, Store
from services.aggregator import case as cases
from services.aggregator import policies, receipts, reviews, snapshot, verdicts
from services.aggregator.case import CaseView, Tenants
from services.aggregator.reviews import Review
from services.aggregator.snapshot import PolicyKey
from services.aggregator.verdicts import Ruling
from services.aggregator.watch import Changes

_log = structlog.get_logger("sluice.aggregator")

MARKERS_AT_ONCE = 1_000
"""Markers, and due parents, that one look takes at most."""

PARENTS_AT_ONCE = 100
"""Parents written in one transaction, so that it holds its locks for milliseconds."""

RECEIPTS_AT_ONCE = 200
"""Receipts taken in one transaction."""

VERSIONS_TRIED = 5
"""How often a policy's next number is drawn again when somebody else took it."""


class AggregatorCore:
    """Decides cases. `poll_seconds`: the most that a lost wake-up costs."""

    def __init__(
        self,
        store: Store,
        environment: Environment,
        wakeups: Wakeups,
        *,
        poll_seconds: float = 0.2,
        receipt_due_seconds: Mapping[str, float] | None = None,
    ) -> None:
        """`receipt_due_seconds`: by vendor, how long its final receipt may take."""
        self._store = store
        self._environment = environment
        self._wakeups = wakeups
        self._poll_seconds = poll_seconds
        self._receipt_due = dict(receipt_due_seconds or {})
        self._topics = frozenset({CHANGED})
        self._changes = Changes()
        # Policy versions never change, so they may be remembered.
        self._policies: dict[PolicyKey, Policy] = {}
        # When a large set's new results were last looked at; forgetting it costs one read.
        self._looked_at: dict[str, int] = {}

    async def run_round(self) -> None:
        """Wait for a wake-up or the poll, then decide until nothing is left."""
        await self._wakeups.wait(self._topics, self._poll_seconds)
        while await self.round():
            pass

    async def round(self) -> int:
        """One sweep over all markers and due parents; returns how much was done.

        A ruling whose write lost keeps its markers and is not counted: another one was
        faster, or the deadline came between; it is read again in the next round.
        """
        done = 0
        after: int | None = 0
        while after is not None:
            found = await self._store.read(
                snapshot.look, after, MARKERS_AT_ONCE, self._policies, self._looked_at
            )
            self._remember(found)
            rulings = verdicts.rule(found)
            for at in range(0, len(rulings), PARENTS_AT_ONCE):
                done += await self._write(rulings[at : at + PARENTS_AT_ONCE])
            after = found.last_marker
        if done:
            self._changes.tell()
        return done

    async def apply_receipts(self, batch: Sequence[NewReceipt]) -> list[str]:
        """Store receipts and apply them to tasks that nobody holds; one disposition each.

        Idempotent by receipt id, so a commit in doubt is simply repeated by the sender.
        Raises InvalidArgument and StoreAway.
        """
        receipts.check(batch)
        told: list[str] = []
        for at in range(0, len(batch), RECEIPTS_AT_ONCE):
            part = batch[at : at + RECEIPTS_AT_ONCE]
            told += await self._store.write(stored_receipts.take, part, self._receipt_due)
        counts = receipts.counted(told)
        _log.info("receipts_taken", **counts)
        if told:
            await self._wake(batch[0].parent_id)
        return told

    async def get_case(self, case_id: str, tenants: Tenants = None) -> CaseView:
        """One case, of these tenants; raises InvalidArgument and NotFound."""
        return await self._store.read(cases.read, case_id, tenants)

    async def watch_case(self, case_id: str, tenants: Tenants = None) -> AsyncIterator[CaseView]:
        """The case now, and again at each change, until nobody is awaited any more.

        A case in review is still watched: a reviewer will close it. Changes that follow each
        other closely may be seen as one. Raises StoreAway when this process stops.
        """
        shown = None
        while True:
            change = self._changes.next()
            if self._changes.closed:
                raise StoreAway(
                    "The aggregator is stopping; watch this case again.", reason="STOPPING"
                )
            if shown is None or await self._store.read(snapshots.mark, case_id) != shown:
                view = await self.get_case(case_id, tenants)
                shown = view.mark
                yield view
                if view.final:
                    return
            await self._changes.wait(change, self._poll_seconds)

    async def resolve_review(
        self,
        case_id: str,
        decision: CaseState | None,
        expected_version: int,
        reviewer: str,
        note: str = "",
        *,
        actor: str = "",
        tenants: Tenants = None,
    ) -> CaseView:
        """A reviewer's decision on a case in review; `actor` is who is recorded for the reviewer.

        Raises InvalidArgument, NotFound, LostRace (metadata `version`) and
        NotAllowedInState (metadata `state`).
        """
        review = Review(case_id, decision, expected_version, reviewer, note, actor or reviewer)
        review.check()
        try:
            await self._store.write(reviews.resolve, review, tenants)
        except CommitInDoubtError:
            view = await self.get_case(case_id, tenants)
            if not _is_of(view, review):
                raise
        self._changes.tell()
        return await self.get_case(case_id, tenants)

    async def redecide(
        self, case_id: str, policy_version: int, *, tenants: Tenants = None
    ) -> tuple[CaseView, bool]:
        """Decide again from stored scores; the case, and whether its outcome changed.

        Raises InvalidArgument, NotFound and NotAllowedInState (metadata `state`).
        """
        bad = []
        if policy_version < 1:
            bad.append(FieldViolation("policy_version", "a stored version, from 1"))
        try:
            cases.check_id(case_id)
        except InvalidArgument as error:
            bad.extend(error.violations)
        if bad:
            raise InvalidArgument(*bad)
        try:
            changed = await self._store.write(reviews.redecide, case_id, policy_version, tenants)
        except CommitInDoubtError:
            # Harmless when it is in: the same decision is not appended twice.
            changed = await self._store.write(reviews.redecide, case_id, policy_version, tenants)
        self._changes.tell()
        return await self.get_case(case_id, tenants), changed

    async def put_policy(self, policy_id: str, body: Policy, author: str) -> StoredPolicy:
        """Store a new version of a policy; `body`'s own id and version are not used.

        Raises InvalidArgument, and LostRace when others took every number that was tried.
        """
        wanted = Policy(policy_id, 0, body.rules, body.on_deadline, body.on_required_failed)
        policies.check(wanted, author)
        for _ in range(VERSIONS_TRIED):
            try:
                return await self._store.write(policies.put, wanted, author)
            except IntegrityError:
                continue
            except CommitInDoubtError:
                newest = await self._store.read(stored_policies.newest, policy_id)
                if newest is None or newest.author != author:
                    raise
                if not policies.same_body(newest.policy, wanted):
                    raise
                return newest
        raise LostRace("Others stored versions of this policy meanwhile; try again.")

    async def list_policies(self, policy_id: str = "") -> list[StoredPolicy]:
        """All versions of one policy, or of all; an unknown policy has none."""
        return await self._store.read(stored_policies.listed, policy_id)

    def stop_watching(self) -> None:
        """End every watch, so that the server can drain."""
        self._changes.close()

    def _remember(self, found: snapshot.Look) -> None:
        self._policies.update(found.policies)
        for case in found.cases:
            if case.waits or len(case.children or ()) > snapshot.ALWAYS_READ:
                self._looked_at[case.parent_id] = found.now
            else:
                self._looked_at.pop(case.parent_id, None)

    async def _write(self, rulings: Sequence[Ruling]) -> int:
        written = await self._store.write(verdicts.write, rulings)
        for parent_id in written.decided:
            self._looked_at.pop(parent_id, None)
        if written.decided or written.lost or written.late:
            _log.info(
                "cases_decided",
                decided=len(written.decided),
                lost=len(written.lost),
                late_results=written.late,
            )
        return written.progress

    async def _wake(self, parent_id: str) -> None:
        """Wake the aggregators; the marker is the fact, so losing this costs latency only."""
        try:
            await self._wakeups.publish(CHANGED, parent_id, "")
        except Exception as error:
            _log.warning("wakeup_lost", topic=CHANGED, error=type(error).__name__)


def _is_of(view: CaseView, review: Review) -> bool:
    """Whether the decision that stands is this very review's."""
    last = view.decisions[-1] if view.decisions else None
    return (
        last is not None
        and view.version == review.expected_version + 1
        and last.decided_by == review.reviewer
        and last.outcome is review.outcome
    )
