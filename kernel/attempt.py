"""One attempt at a vendor: what is asked, what can come back, and the move that follows.

Receives the typed outcome of a call, a fence or a query, with the task's facts. Hands on a
`Settlement`: the next state, its wake-up and its evidence. Pure; the only place that turns
outcomes into moves. Source: DESIGN sections 2, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kernel.environment import micros
from kernel.lifecycle import State
from kernel.retry import Backoff


class Outcome(StrEnum):
    """The closed set of answers to an Execute."""

    COMPLETED = "COMPLETED"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    THROTTLED = "THROTTLED"
    NOT_SENT = "NOT_SENT"
    UNKNOWN = "UNKNOWN"
    IN_PROGRESS = "IN_PROGRESS"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    REQUEST_MISMATCH = "REQUEST_MISMATCH"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"


class FenceAnswer(StrEnum):
    """What FenceCall found, after closing the attempts."""

    NEVER_BEGUN = "NEVER_BEGUN"
    IN_PROGRESS = "IN_PROGRESS"
    SETTLED = "SETTLED"
    UNKNOWN = "UNKNOWN"


class QueryAnswer(StrEnum):
    """What a vendor said of a call."""

    SETTLED = "SETTLED"
    RUNNING = "RUNNING"
    NOT_FOUND = "NOT_FOUND"
    TOO_EARLY = "TOO_EARLY"
    CANNOT_TELL = "CANNOT_TELL"


class Resend(StrEnum):
    """What an Execute with a higher attempt would do on an UNKNOWN row."""

    SAFE = "SAFE"
    MARKED = "MARKED"
    REFUSED = "REFUSED"


class OnUnknownMode(StrEnum):
    """The caller's wish where the vendor can neither de-duplicate nor be queried."""

    AT_MOST_ONCE = "AT_MOST_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


@dataclass(frozen=True, slots=True)
class OnUnknown:
    """AT_LEAST_ONCE resends, marked, within `max_duplicates` and `max_cost_micros` (0: none)."""

    mode: OnUnknownMode = OnUnknownMode.AT_MOST_ONCE
    max_duplicates: int = 0
    max_cost_micros: int = 0


NO_PERMIT = "NO_PERMIT"
RATE_LIMITED = "RATE_LIMITED"
BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
RESULT_LOST = "RESULT_LOST"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """An Execute. Times in microseconds since the epoch; `units` in the vendor's own units.

    `granted_sends`: sends that an operator granted beyond the rules, over all attempts.
    """

    tenant_id: str
    idempotency_key: str
    vendor: str
    pool: str
    attempt: int
    deadline: int
    max_sends: int
    kind: str
    model_id: str = ""
    model_version: str = ""
    task_id: str = ""
    payload_ref: str = ""
    payload: bytes = b""
    units: Mapping[str, int] = field(default_factory=dict)
    on_unknown: OnUnknown = OnUnknown()
    granted_sends: int = 0


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The answer to an Execute. `scores` is the model's result; costs in millionths.

    `settles_key`: by the ledger no send of this key is in doubt any more.
    """

    outcome: Outcome
    reason: str = ""
    retryable: bool = False
    scores: Mapping[str, float] | None = None
    external_id: str = ""
    retry_after_seconds: float | None = None
    replayed: bool = False
    sends: int = 0
    possible_duplicates: int = 0
    cost_micros: int = 0
    field: str = ""
    receipt_due_seconds: float = 0.0
    settles_key: bool = False

    @property
    def open_again(self) -> bool:
        """Whether a higher attempt may send: this send did nothing, or may be repeated."""
        refused = self.outcome is Outcome.REJECTED and self.retryable
        return refused or self.outcome in (Outcome.NOT_SENT, Outcome.THROTTLED)

    @property
    def possible_duplicate(self) -> bool:
        """Whether at least one send may have been executed beside another."""
        return self.possible_duplicates > 0


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """The answer to a QueryStatus."""

    answer: QueryAnswer
    call: CallOutcome | None = None
    retry_after_seconds: float = 0.0
    resend: Resend = Resend.REFUSED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the rules need to know of a task when something came back.

    `deadline` in microseconds since the epoch. `wanted` is False once the parent is
    cancelled. `tries` counts retries that failed in a row, or rounds of asking.
    """

    attempt: int
    sends: int
    max_sends: int
    deadline: int
    maybe_executed: bool
    wanted: bool = True
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where a task goes next. `wake_at` None closes the row."""

    state: State
    reason: str
    wake_at: int | None
    maybe_executed: bool
    scores: Mapping[str, float] | None = None
    external_id: str = ""
    needs_operator: bool = False


@dataclass(frozen=True, slots=True)
class WaitRules:
    """The waits that follow an outcome.

    `draw` in [0, 1) is this decision's random draw; `receipt_due_seconds` is used where the
    proxy named none.
    """

    backoff: Backoff
    query_backoff: Backoff
    draw: float
    receipt_due_seconds: float = 60.0
    operator_reminder_seconds: float = 3600.0


def after_call(call: CallOutcome, task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
    """The move that an Execute's outcome demands; `now` in microseconds.

    A refusal that proves only that *this* send did nothing does not clear
    `maybe_executed`: an earlier send may still have executed. Where the ledger says that
    nothing of the key is in doubt any more, it does.
    """
    if call.settles_key:
        task = replace(task, maybe_executed=False)
    sends = max(call.sends, task.sends)
    match call.outcome:
        case Outcome.COMPLETED if call.scores is None:
            return Settlement(State.FAILED, RESULT_LOST, None, False, None, call.external_id)
        case Outcome.COMPLETED:
            return Settlement(
                State.SUCCEEDED, call.reason, None, False, call.scores, call.external_id
            )
        case Outcome.ACCEPTED:
            due = now + micros(call.receipt_due_seconds or waits.receipt_due_seconds)
            return Settlement(State.ACCEPTED, call.reason, due, True, external_id=call.external_id)
        case Outcome.NOT_SENT if call.reason == NO_PERMIT:
            return Settlement(State.READY, NO_PERMIT, task.deadline, task.maybe_executed)
        case Outcome.NOT_SENT | Outcome.THROTTLED:
            return _retry(call, task, sends, now, waits)
        case Outcome.REJECTED if call.retryable:
            return _retry(call, task, sends, now, waits)
        case Outcome.REJECTED | Outcome.REQUEST_MISMATCH | Outcome.BUDGET_EXHAUSTED:
            return _fail(call.reason or call.outcome.value, task, now, waits)
        case Outcome.IN_PROGRESS:
            return _still_unknown(call.outcome.value, task, now, waits)
        case Outcome.UNKNOWN | Outcome.STALE_ATTEMPT:
            return Settlement(
                State.UNKNOWN,
                call.reason or call.outcome.value,
                now,
                True,
                external_id=call.external_id,
            )


def after_settled(call: CallOutcome, task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
    """The move that a settled row of the ledger demands of a task that nobody holds.

    As `after_call`, but what was proved not executed and nobody wants any more is closed
    instead of tried again.
    """
    unwanted = not task.wanted or now >= task.deadline
    if call.settles_key and call.open_again and unwanted:
        return after_fence_never_begun(task, now, waits)
    return after_call(call, task, now, waits)


def after_fence_never_begun(task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
    """The ledger proved that no attempt so far reached the wire."""
    if not task.wanted:
        return Settlement(State.CANCELLED, "CANCELLED_BEFORE_SEND", None, False)
    if now >= task.deadline:
        return Settlement(State.EXPIRED, "DEADLINE_PASSED", None, False)
    wake_at = min(now + micros(waits.backoff.seconds(task.tries, waits.draw)), task.deadline)
    return Settlement(State.RETRY_WAIT, "NEVER_BEGUN", wake_at, False)


def after_query(query: QueryOutcome, task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
    """The move that a status query demands of an UNKNOWN or overdue ACCEPTED task."""
    match query.answer:
        case QueryAnswer.SETTLED if query.call is not None:
            return after_settled(query.call, task, now, waits)
        case QueryAnswer.RUNNING if query.call is not None and query.call.external_id:
            asked_later = _still_unknown("RUNNING", task, now, waits, query.retry_after_seconds)
            return replace(
                asked_later,
                state=State.ACCEPTED,
                external_id=query.call.external_id,
                needs_operator=False,
            )
        case QueryAnswer.NOT_FOUND:
            if task.wanted and now < task.deadline and task.sends >= task.max_sends:
                return Settlement(State.FAILED, BUDGET_EXHAUSTED, None, False)
            return after_fence_never_begun(task, now, waits)
        case QueryAnswer.CANNOT_TELL:
            may_send = task.wanted and now < task.deadline and task.sends < task.max_sends
            if may_send and query.resend is not Resend.REFUSED:
                wake_at = min(
                    now + micros(waits.backoff.seconds(task.tries, waits.draw)), task.deadline
                )
                return Settlement(State.RETRY_WAIT, f"RESEND_{query.resend}", wake_at, True)
            return _for_operator(query.reason or "CANNOT_TELL", now, waits)
        case _:
            reason = query.answer.value
            return _still_unknown(reason, task, now, waits, query.retry_after_seconds)


def _retry(
    call: CallOutcome, task: TaskFacts, sends: int, now: int, waits: WaitRules
) -> Settlement:
    reason = call.reason or call.outcome.value
    if sends >= task.max_sends:
        spent = RATE_LIMITED if call.outcome is Outcome.THROTTLED else BUDGET_EXHAUSTED
        return _fail(spent, task, now, waits)
    wait = waits.backoff.seconds(task.tries, waits.draw, call.retry_after_seconds)
    return Settlement(
        State.RETRY_WAIT, reason, min(now + micros(wait), task.deadline), task.maybe_executed
    )


def _fail(reason: str, task: TaskFacts, now: int, waits: WaitRules) -> Settlement:
    if task.maybe_executed:
        return _for_operator(reason, now, waits)
    return Settlement(State.FAILED, reason, None, False)


def _still_unknown(
    reason: str, task: TaskFacts, now: int, waits: WaitRules, at_least_seconds: float = 0.0
) -> Settlement:
    """Asked again later; past its deadline a person is told too, and asking goes on."""
    wait = max(at_least_seconds, waits.query_backoff.seconds(task.tries, waits.draw))
    late = now >= task.deadline
    return Settlement(State.UNKNOWN, reason, now + micros(wait), True, needs_operator=late)


def _for_operator(reason: str, now: int, waits: WaitRules) -> Settlement:
    reminder = now + micros(waits.operator_reminder_seconds)
    return Settlement(State.UNKNOWN, reason, reminder, True, needs_operator=True)
