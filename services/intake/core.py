"""Accept once, durably, before the caller hears "accepted"; cancel truthfully.

Receives contents and case ids. Hands on a case with its tasks, stored in one transaction
with the outbox rows that will wake the dispatcher. All time, randomness, stores and
neighbours come in through the constructor. Source: DESIGN sections 1, 3, 5 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog
from sqlalchemy.exc import IntegrityError

from kernel.decision import Requirement
from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.errors import FieldViolation, InvalidArgument, RequestMismatch, StoreAway
from kernel.idempotency import Hasher, first_difference
from kernel.identity import is_parent_id, task_id
from kernel.limits import RequestLimits
from kernel.runtime.settings import PlanningSettings
from kernel.runtime.vault import Vault
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store.transaction import CommitInDoubtError, Store
from kernel.vendor import PoolProfile
from services.intake import acceptance, admission, planning
from services.intake.acceptance import Draft, Known
from services.intake.admission import Content
from services.intake.cancellation import Cancelled, cancel_case
from services.intake.sameness import fingerprint, logical_key

_log = structlog.get_logger("sluice.intake")

PAYLOAD_RETENTION_SECONDS = 86_400.0
"""How long payloads outlive their deadline: late queries and reviews still find them."""

COMMITS_TRIED = 3
"""How often a submit whose commit is in doubt, and was read back as absent, is repeated."""


class Disposition(StrEnum):
    """Whether a submit made something new."""

    CREATED = "CREATED"
    EXISTS = "EXISTS"


@dataclass(frozen=True, slots=True)
class SubmittedTask:
    """One planned task, as the caller is told."""

    task_id: str
    model_id: str
    model_version: str
    requirement: Requirement
    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submit; `accepted_at` in microseconds, by the database's clock."""

    case_id: str
    disposition: Disposition
    accepted_at: int
    tasks: tuple[SubmittedTask, ...]


class IntakeCore:
    """The intake without its wire. `nudge` tells the relay that the outbox has rows."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        hasher: Hasher,
        rules: PlanningSettings,
        pools: Mapping[str, PoolProfile],
        environment: Environment,
        wakeups: Wakeups,
        nudge: Callable[[], None] = lambda: None,
        limits: RequestLimits | None = None,
    ) -> None:
        self._store = store
        self._vault = vault
        self._hasher = hasher
        self._rules = rules
        self._pools = pools
        self._environment = environment
        self._wakeups = wakeups
        self._nudge = nudge
        self._limits = limits or RequestLimits()

    async def submit(self, content: Content) -> Submitted:
        """Accept a content, or find it accepted before.

        Raises InvalidArgument with every bad field; RequestMismatch, its metadata naming
        `field`, when the key was used with another body; StoreAway.
        """
        malformed = admission.violations(content, self._limits)
        if malformed:
            raise InvalidArgument(*malformed, *self._unfit(content, self._now()))
        key = logical_key(content)
        prints = fingerprint(content, self._hasher)
        known, now = await self._store.read(acceptance.look_up, content.tenant_id, key)
        if known is not None:
            return _exists(known, prints)
        # Only now: a submit sent again is answered, however late it comes.
        unfit = self._unfit(content, now)
        if unfit:
            raise InvalidArgument(*unfit)
        planned = planning.plan(content, self._rules, self._pools, self._hasher)
        draft = Draft(
            self._environment.new_id(),
            self._environment.new_span_id(),
            content,
            key,
            prints,
            planned,
            await self._seal(planned, acceptance.deadline_of(content, self._rules, now)),
        )
        return await self._accept(draft)

    async def cancel(self, case_id: str, allow: Callable[[str], bool]) -> Cancelled:
        """Record the wish to cancel a case of a tenant that `allow` accepts.

        Raises InvalidArgument for what is no id, NotFound, NotAllowedInState once the case has
        a verdict. Repeating it answers the same.
        """
        if not is_parent_id(case_id):
            raise InvalidArgument(
                FieldViolation("case_id", "must be 32 lower-case hexadecimal digits")
            )
        try:
            cancelled = await self._store.write(cancel_case, case_id, allow)
        except CommitInDoubtError:
            # Harmless when it is in: what was moved is no longer waiting.
            cancelled = await self._store.write(cancel_case, case_id, allow)
        await self._tell_changed(case_id)
        return cancelled

    def _unfit(self, content: Content, now: int) -> list[FieldViolation]:
        """What only the time and the planning rules can say."""
        return [
            *admission.deadline_violations(content, self._limits, now),
            *planning.uncovered(content, self._rules),
        ]

    def _now(self) -> int:
        return self._environment.clock.now_micros()

    async def _seal(self, planned: list[planning.PlannedTask], deadline: int) -> dict[str, str]:
        """Put the distinct payloads in the vault; those of a submit that fails expire there."""
        payloads = {task.input.digest: task.input.payload for task in planned}
        retention = int(PAYLOAD_RETENTION_SECONDS * MICROS_PER_SECOND)
        refs = await self._vault.put(list(payloads.values()), deadline + retention)
        return dict(zip(payloads, refs, strict=True))

    async def _accept(self, draft: Draft) -> Submitted:
        """Store the draft, whatever becomes of the answer to the commit."""
        in_doubt = False
        for _ in range(COMMITS_TRIED):
            try:
                accepted_at = await self._store.write(acceptance.accept, draft, self._rules)
            except CommitInDoubtError:
                in_doubt = True
            except IntegrityError:
                # Taken: by an equal submit that was faster, or by our own commit in doubt.
                known = await self._read_back(draft, in_doubt=in_doubt)
                if known is None:
                    raise
                return self._settle(draft, known)
            else:
                self._nudge()
                return Submitted(
                    draft.case_id,
                    Disposition.CREATED,
                    accepted_at,
                    tuple(_planned_answer(draft.case_id, task) for task in draft.planned),
                )
            known = await self._read_back(draft, in_doubt=True)
            if known is not None:
                return self._settle(draft, known)
        raise _in_doubt()

    async def _read_back(self, draft: Draft, *, in_doubt: bool) -> Known | None:
        try:
            known, _ = await self._store.read(
                acceptance.look_up, draft.content.tenant_id, draft.key
            )
        except StoreAway as error:
            if in_doubt:
                raise _in_doubt() from error
            raise
        return known

    def _settle(self, draft: Draft, known: Known) -> Submitted:
        if known.case.id != draft.case_id:
            return _exists(known, draft.fingerprint)
        self._nudge()
        return _answer(known, Disposition.CREATED)

    async def _tell_changed(self, case_id: str) -> None:
        """Wake the aggregator; its marker is the fact, so losing this costs latency only."""
        try:
            await self._wakeups.publish(CHANGED, case_id, "")
        except Exception as error:
            _log.warning("wakeup_lost", topic=CHANGED, error=type(error).__name__)


def _exists(known: Known, prints: Mapping[str, str]) -> Submitted:
    difference = first_difference(known.case.fingerprint, prints)
    if difference is not None:
        raise RequestMismatch(
            f"This content, version and round were submitted before with another {difference}; "
            "nothing was changed. Send a new content_version or review_round.",
            field=difference,
            case_id=known.case.id,
        )
    return _answer(known, Disposition.EXISTS)


def _answer(known: Known, disposition: Disposition) -> Submitted:
    told = tuple(
        SubmittedTask(
            task.task_id, task.model_id, task.model_version, task.requirement, task.positions
        )
        for task in known.children
    )
    return Submitted(known.case.id, disposition, known.case.created_at, told)


def _planned_answer(case_id: str, task: planning.PlannedTask) -> SubmittedTask:
    model = task.model
    return SubmittedTask(
        task_id(case_id, task.n), model.model, model.version, model.requirement, task.positions
    )


def _in_doubt() -> StoreAway:
    return StoreAway(
        "The database went away during the commit; whether this was accepted is not known. "
        "Send the same request again: it is accepted once.",
        reason="COMMIT_IN_DOUBT",
    )
