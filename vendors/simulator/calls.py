"""Receives a call's body; hands on the call, the job that executes it, and the answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from vendors.simulator.settings import LOW_SCORES, Scores

Units = dict[str, Annotated[int | float, Field(ge=0)]]


class State(StrEnum):
    """A job's state, as queries show it."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CallBody(BaseModel):
    """The fields of a call that the vendor reads; it ignores others, as vendors do."""

    model_config = ConfigDict(strict=True, extra="ignore")

    reference: str | None = None
    model: str = ""
    kind: Annotated[str, Field(min_length=1, max_length=64)] = "TEXT"
    input: Any = None
    units: Units = {}
    receipt_url: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it came in. `digest` is the same for bodies that differ in key order only."""

    key: str
    body: CallBody
    digest: bytes

    @property
    def reference(self) -> str:
        """The caller's own name for the call, repeated in its receipts."""
        return self.body.reference or self.key


def read_call(key: str, fields: dict[str, Any]) -> Call:
    """The call of one decoded JSON object; raises pydantic's ValidationError."""
    body = CallBody.model_validate(fields)
    canonical = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return Call(key, body, hashlib.blake2b(canonical, digest_size=16).digest())


@dataclass(slots=True)
class Job:
    """One execution of a call, kept without its input. Times in microseconds since the epoch."""

    external_id: str
    key: str
    reference: str
    digest: bytes
    receipt_url: str | None
    usage: dict[str, float]
    scores: Scores
    price_micros: int
    asynchronous: bool
    begun_micros: int
    occupies: bool
    will_fail: bool = False
    state: State = State.RUNNING
    ended_micros: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def shown(self) -> dict[str, object]:
        """The job as a query and a finished call's answer show it."""
        shown: dict[str, object] = {"external_id": self.external_id, "state": self.state}
        if self.state is State.SUCCEEDED:
            shown["result"] = {"scores": self.scores}
            shown["usage"] = self.usage
            shown["cost_micros"] = self.price_micros
        elif self.state is State.FAILED:
            shown["error"] = {"code": "failed", "message": "the execution failed"}
        return shown


@dataclass(slots=True)
class Answer:
    """One call's answer. A string body is sent as it is: it is not JSON."""

    status: int
    body: dict[str, object] | str
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, code: str, message: str) -> Answer:
    """An error answer in the vendor's form; `message` must not repeat the input."""
    return Answer(status, {"error": {"code": code, "message": message}})


def throttled(retry_after: int, message: str) -> Answer:
    """A 429 that asks to wait `retry_after` seconds."""
    answer = refusal(429, "throttled", message)
    answer.headers["Retry-After"] = str(retry_after)
    return answer


def accepted(job: Job) -> Answer:
    """What an asynchronous vendor answers at once."""
    return Answer(202, {"external_id": job.external_id, "state": "ACCEPTED"})


def finished(job: Job) -> Answer:
    """What a synchronous vendor answers when the job has ended."""
    if job.state is State.SUCCEEDED:
        return Answer(200, job.shown())
    if job.state is State.FAILED:
        return refusal(422, "failed", "the execution failed")
    return refusal(409, "cancelled", "the call was cancelled")


def scores_for(body: CallBody, results: dict[str, Scores]) -> Scores:
    """The scores of one input: by a substring of its text, else its model, else the default."""
    for needle, scores in results.items():
        if needle != "default" and any(needle in text for text in _texts(body.input)):
            return scores
    return results.get(body.model, results.get("default", LOW_SCORES))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
