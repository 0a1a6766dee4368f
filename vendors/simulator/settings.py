"""Receives a control body; hands on a vendor's settings, or the fields that are wrong."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from standardwebhooks import Webhook

from vendors.simulator.chance import Latency
from vendors.simulator.script import Entry, Millis, Strict

Scores = dict[str, Annotated[float, Field(ge=0, le=1)]]

LOW_SCORES: Scores = {"violence": 0.01, "sexual": 0.01, "hate": 0.01}


class Capabilities(Strict):
    """What the vendor can do; a capability that is not named is off."""

    dedupe: bool = False
    query_by_key: bool = False
    query_by_id: bool = False
    consistency_lag_ms: Millis = 0
    receipts: bool = False
    asynchronous: bool = Field(default=False, alias="async")
    cancel: bool = False
    key_window_ms: Millis | None = None
    """How long a key is remembered after its execution began; None is for ever."""


class Settings(Strict):
    """One vendor. Money in micros of the account's currency; `concurrency` None is no limit."""

    capabilities: Capabilities = Capabilities()
    latency_ms: Latency = 0
    concurrency: Annotated[int, Field(ge=1)] | None = None
    counts: Literal["requests", "jobs"] | None = None
    """What an asynchronous vendor counts as in flight; None is jobs."""
    seed: int | None = None
    script: tuple[Entry, ...] = ()
    price_micros: Annotated[int, Field(ge=0)] = 1_000
    results: dict[str, Scores] = Field(default_factory=dict)
    """By a substring of the input's text, else by model, else `default`."""
    receipt_secret: str | None = None

    @field_validator("latency_ms")
    @classmethod
    def _possible_latency(cls, latency: Latency) -> Latency:
        if isinstance(latency, tuple):
            if not 0 < latency[0] <= latency[1]:
                raise ValueError("a pair must be 0 < p50 <= p99")
        elif latency < 0:
            raise ValueError("must not be negative")
        return latency

    @field_validator("receipt_secret")
    @classmethod
    def _usable_secret(cls, secret: str | None) -> str | None:
        if secret is not None:
            check_secret(secret)
        return secret

    def changed_by(self, given: Self) -> Self:
        """These settings with each top-level field that was given replaced whole."""
        return self.model_copy(
            update={name: getattr(given, name) for name in given.model_fields_set}
        )


class ManualReceipt(Strict):
    """A receipt sent by hand. An `event_id` of null leaves the field out of the body."""

    key: str
    status: str | None
    event_id: str | None = None
    occurred_at: str | None = None
    result: dict[str, object] | None = None
    secret: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _usable_secret(self) -> Self:
        if self.secret is not None:
            check_secret(self.secret)
        return self


def check_secret(secret: str) -> None:
    """Raise ValueError unless `secret` is a Standard Webhooks secret, without repeating it."""
    try:
        Webhook(secret)
    except Exception:
        raise ValueError("must be whsec_ and base64") from None


def wrong_fields(error: ValidationError) -> list[tuple[str, str]]:
    """Each wrong field's dotted name and what is wrong with it; never its value."""
    return [
        (".".join(str(part) for part in each["loc"]) or "body", each["msg"])
        for each in error.errors(include_input=False, include_context=False, include_url=False)
    ]
