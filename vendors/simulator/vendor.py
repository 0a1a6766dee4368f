"""Receives calls, queries and cancels; hands on answers, as one vendor would behave.

It knows nothing of HTTP: what the script does to the connection is left to the server.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import NamedTuple

from kernel.environment import Environment
from vendors.simulator.calls import (
    Answer,
    Call,
    Job,
    State,
    accepted,
    finished,
    refusal,
    scores_for,
    throttled,
)
from vendors.simulator.chance import Chance
from vendors.simulator.courier import Courier, Receipt
from vendors.simulator.ledger import Ledger, rfc3339
from vendors.simulator.receipts import Manner, Teller
from vendors.simulator.script import Choice, Do, Script
from vendors.simulator.settings import ManualReceipt, Settings

GARBAGE = '{"external_id": "'


class Turn(NamedTuple):
    """A call that came in, and what the script does to it."""

    call: Call
    choice: Choice

    @property
    def action(self) -> Do | None:
        """The call action, if any."""
        return self.choice.action.do if self.choice.action else None


class Standing(NamedTuple):
    """The job that answers a call: begun by it, or by an earlier call with its key."""

    job: Job
    replayed: bool


class Vendor:
    """One vendor: its settings, its jobs and its books."""

    def __init__(self, environment: Environment, courier: Courier) -> None:
        self.ledger = Ledger()
        self.settings = Settings()
        self.secret = courier.new_secret()
        self._environment = environment
        self._courier = courier
        self._chance = Chance(environment, None)
        self._script = Script((), self._chance)
        self._jobs: dict[str, Job] = {}
        self._jobs_by_key: defaultdict[str, list[Job]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()

    def change(self, given: Settings) -> None:
        """Take over the fields that were given; a new script or seed starts its counts anew."""
        self.settings = self.settings.changed_by(given)
        self.secret = given.receipt_secret or self.secret
        if {"seed", "script"} & given.model_fields_set:
            self._chance = Chance(self._environment, self.settings.seed)
            self._script = Script(self.settings.script, self._chance)

    def meet(self, call: Call) -> Turn:
        """Book a call that came in and ask the script about it. Nothing is executed yet."""
        self.ledger.request(call)
        return Turn(call, self._script.choose(call.key, call.body.model))

    def begin(self, turn: Turn) -> Standing | Answer:
        """Begin the call's execution, join an earlier one, or refuse.

        Without an await: two calls with one key can never both find it unused.
        """
        call, (entry, _) = turn
        match turn.action:
            case Do.THROTTLE if entry:
                return throttled(entry.retry_after, "too many calls")
            case Do.REFUSE:
                return refusal(400, "invalid_input", "the input is refused")
            case Do.ERROR_BEFORE:
                return refusal(500, "internal", "the call was not executed")
        remembered = self._remembered(call.key)
        if remembered is not None:
            if remembered.digest != call.digest:
                return refusal(422, "key_mismatch", "the key was used with another body")
            return Standing(remembered, replayed=True)
        if not self.ledger.enter(self.settings.concurrency):
            return throttled(1, "too many calls in flight")
        return Standing(self._execute(turn), replayed=False)

    async def send_by_hand(self, wish: ManualReceipt) -> Answer:
        """Send one receipt now, once, and show the receiver's status code."""
        job = self.newest(wish.key)
        url = wish.url or (job.receipt_url if job else None)
        if url is None:
            return refusal(400, "invalid_receipt", "url: the key's call gave none")
        receipt = Receipt(
            reference=job.reference if job else wish.key,
            status=wish.status,
            occurred_at=wish.occurred_at or rfc3339(self._environment.clock.now_micros()),
            event_id=wish.event_id,
            external_id=job.external_id if job else None,
            result=wish.result,
        )
        if "event_id" not in wish.model_fields_set:
            receipt = replace(receipt, event_id=self._environment.new_id())
        if job is not None and wish.secret is None:
            self.ledger.receipt(wish.key)
        status = await self._courier.send_once(url, receipt, wish.secret or self.secret)
        if status is None:
            return refusal(502, "receiver_unreachable", "the receiver gave no answer")
        return Answer(200, {"status": status, "event_id": receipt.event_id})

    async def answer(self, turn: Turn, begun: Standing | Answer) -> Answer:
        """The call's answer, once there is one, as the script disguises it."""
        if isinstance(begun, Answer):
            return begun
        job = begun.job
        if not job.asynchronous:
            await job.ended.wait()
        match turn.action:
            case Do.ERROR_AFTER:
                return refusal(500, "internal", "something went wrong")
            case Do.GARBAGE:
                return Answer(200, GARBAGE)
        answer = accepted(job) if job.asynchronous else finished(job)
        if begun.replayed:
            answer.headers["Idempotent-Replayed"] = "true"
        return answer

    def by_key(self, key: str) -> Answer:
        """What a query by idempotency key shows: the newest execution that is visible."""
        self.ledger.queries += 1
        if not self.settings.capabilities.query_by_key:
            return unsupported()
        return self._shown(reversed(self._jobs_by_key.get(key, [])))

    def by_id(self, external_id: str) -> Answer:
        """What a query by the vendor's own id shows."""
        self.ledger.queries += 1
        if not self.settings.capabilities.query_by_id:
            return unsupported()
        job = self._jobs.get(external_id)
        return self._shown([job] if job else [])

    def cancel(self, external_id: str) -> Answer:
        """Cancel a running job: 200; 409 with its state where it has ended otherwise."""
        if not self.settings.capabilities.cancel:
            return unsupported()
        job = self._jobs.get(external_id)
        if job is None:
            return not_found()
        if job.state is State.RUNNING:
            self._end(job, State.CANCELLED)
        return Answer(200 if job.state is State.CANCELLED else 409, job.shown())

    def newest(self, key: str) -> Job | None:
        """The newest execution of a key, visible or not."""
        jobs = self._jobs_by_key.get(key)
        return jobs[-1] if jobs else None

    async def close(self) -> None:
        """Cancel everything that still runs, receipts too, and wait for its end."""
        for job in self._jobs.values():
            if job.state is State.RUNNING:
                self._end(job, State.CANCELLED)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remembered(self, key: str) -> Job | None:
        can = self.settings.capabilities
        job = self.newest(key) if can.dedupe else None
        if job is None or can.key_window_ms is None:
            return job
        age_micros = self._environment.clock.now_micros() - job.begun_micros
        return job if age_micros <= can.key_window_ms * 1_000 else None

    def _execute(self, turn: Turn) -> Job:
        call = turn.call
        asynchronous = self.settings.capabilities.asynchronous
        job = Job(
            external_id=self._environment.new_id(),
            key=call.key,
            reference=call.reference,
            digest=call.digest,
            receipt_url=call.body.receipt_url,
            usage={"requests": 1, **call.body.units},
            scores=scores_for(call.body, self.settings.results),
            price_micros=self.settings.price_micros,
            asynchronous=asynchronous,
            begun_micros=self._environment.clock.now_micros(),
            occupies=not (asynchronous and self.settings.counts == "requests"),
            will_fail=turn.action is Do.FAIL,
        )
        self._jobs[job.external_id] = job
        self._jobs_by_key[call.key].append(job)
        self.ledger.execution(job)
        if not job.occupies:  # the request ends here; the job goes on
            self.ledger.leave()
        if job.receipt_url is not None and self.settings.capabilities.receipts:
            manner = Manner.of(turn.choice.receipts)
            self._spawn(self._teller(job.key, job.receipt_url).tell(job, manner))
        seconds = self._chance.latency_seconds(self.settings.latency_ms)
        if seconds or asynchronous:
            self._spawn(self._work(job, seconds))
        else:
            self._end(job, State.FAILED if job.will_fail else State.SUCCEEDED)
        return job

    async def _work(self, job: Job, seconds: float) -> None:
        """Execute in a task of its own: a client that leaves does not end it."""
        await self._environment.clock.sleep(seconds)
        if job.state is State.RUNNING:
            self._end(job, State.FAILED if job.will_fail else State.SUCCEEDED)

    def _end(self, job: Job, state: State) -> None:
        job.state = state
        job.ended_micros = self._environment.clock.now_micros()
        if job.occupies:
            self.ledger.leave()
        if state is State.SUCCEEDED:
            self.ledger.charge(job)
        job.ended.set()

    def _teller(self, key: str, url: str) -> Teller:
        async def send(receipt: Receipt) -> None:
            self.ledger.receipt(key)
            await self._courier.send(url, receipt, self.secret)

        async def forge(receipt: Receipt) -> None:
            await self._courier.send_once(url, receipt, self._courier.new_secret())

        return Teller(self._environment, self._chance, send, forge)

    def _shown(self, jobs: Iterable[Job]) -> Answer:
        lag_micros = self.settings.capabilities.consistency_lag_ms * 1_000
        visible_until = self._environment.clock.now_micros() - lag_micros
        for job in jobs:
            if job.begun_micros <= visible_until:
                return Answer(200, job.shown())
        return not_found()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def unsupported() -> Answer:
    """The vendor has no such capability."""
    return refusal(405, "unsupported", "this vendor cannot do that")


def not_found() -> Answer:
    """The vendor knows no such call, or does not show it yet."""
    return refusal(404, "not_found", "no such call")
