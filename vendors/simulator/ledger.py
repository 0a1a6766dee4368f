"""Receives what a vendor does; hands on its books: the ledger and the statement.

The books are the judge of what really happened, so they count deeds and never intentions.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import orjson

from vendors.simulator.calls import Call, Job

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STATEMENT_HEADER = ("external_id", "idempotency_key", "executed_at", "units", "cost_micros")


def rfc3339(micros: int) -> str:
    """Microseconds since the epoch as an RFC 3339 time in UTC."""
    return (EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class KeyPage:
    """The page of one idempotency key. An execution counts when it begins, a charge when paid."""

    executions: int = 0
    charges: int = 0
    cost_micros: int = 0
    external_ids: list[str] = field(default_factory=list)
    requests: int = 0
    receipts_sent: int = 0
    digests: set[bytes] = field(default_factory=set)

    def shown(self) -> dict[str, object]:
        """The page as the ledger shows it."""
        return {
            "executions": self.executions,
            "charges": self.charges,
            "cost_micros": self.cost_micros,
            "external_ids": self.external_ids,
            "requests": self.requests,
            "receipts_sent": self.receipts_sent,
            "bodies": len(self.digests),
        }


@dataclass(slots=True)
class Ledger:
    """One vendor's books. In flight are the calls being executed, never status queries."""

    pages: defaultdict[str, KeyPage] = field(default_factory=lambda: defaultdict(KeyPage))
    charged: list[Job] = field(default_factory=list)
    requests: int = 0
    queries: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    calls_above_limit: int = 0

    def request(self, call: Call) -> None:
        """Book that a call came in, whatever becomes of it."""
        self.requests += 1
        page = self.pages[call.key]
        page.requests += 1
        page.digests.add(call.digest)

    def enter(self, limit: int | None) -> bool:
        """Book one more call in flight, or, above the limit, one call too many: False."""
        if limit is not None and self.in_flight >= limit:
            self.calls_above_limit += 1
            return False
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return True

    def leave(self) -> None:
        """Book that a call in flight has ended."""
        self.in_flight -= 1

    def execution(self, job: Job) -> None:
        """Book an execution that begins."""
        page = self.pages[job.key]
        page.executions += 1
        page.external_ids.append(job.external_id)

    def charge(self, job: Job) -> None:
        """Book an execution's price, once it has succeeded."""
        page = self.pages[job.key]
        page.charges += 1
        page.cost_micros += job.price_micros
        self.charged.append(job)

    def receipt(self, key: str) -> None:
        """Book a receipt sent; its retries and forgeries are not booked."""
        self.pages[key].receipts_sent += 1

    def shown(self) -> dict[str, object]:
        """The whole ledger."""
        return {
            "keys": {key: page.shown() for key, page in self.pages.items()},
            "requests": self.requests,
            "queries": self.queries,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "calls_above_limit": self.calls_above_limit,
        }

    def statement(self) -> str:
        """The bill as CSV: one line a charge, units as a JSON object."""
        bill = io.StringIO()
        lines = csv.writer(bill, lineterminator="\n")
        lines.writerow(STATEMENT_HEADER)
        for job in self.charged:
            units = orjson.dumps(job.usage, option=orjson.OPT_SORT_KEYS).decode()
            lines.writerow(
                (
                    job.external_id,
                    job.key,
                    rfc3339(job.ended_micros),
                    units,
                    job.price_micros,
                )
            )
        return bill.getvalue()
