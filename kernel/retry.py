"""How long to wait before the next try.

Receives the number of tries so far, a random draw and a vendor's Retry-After. Hands on
seconds. Exponential back-off with full jitter (M. Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog, 2015); a Retry-After within bounds comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from kernel.environment import MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Backoff:
    """`base_seconds` doubles with each try up to `cap_seconds`; the wait is drawn below that.

    `floor` is the share of the wait that is never drawn away: 0 is full jitter.
    `retry_after_cap_seconds` bounds what a vendor may ask for.
    """

    base_seconds: float = 0.2
    cap_seconds: float = 30.0
    floor: float = 0.0
    retry_after_cap_seconds: float = 60.0

    def seconds(self, tries: int, draw: float, retry_after: float | None = None) -> float:
        """The wait after `tries` tries; `draw` in [0, 1).

        A vendor's `retry_after` (seconds) is the least wait, and the jitter comes on top,
        so that those who were refused together do not return together.
        """
        ceiling = min(self.base_seconds * 2.0 ** min(tries, 32), self.cap_seconds)
        jittered = ceiling * (self.floor + (1.0 - self.floor) * draw)
        if retry_after is None:
            return jittered
        return min(max(retry_after, 0.0), self.retry_after_cap_seconds) + jittered


def parse_retry_after(header: str | None, now: int, cap_seconds: float = 60.0) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110 section 10.2.3), None if unusable.

    `now` in microseconds since the epoch. Seconds or an HTTP date; a past date is 0; above
    `cap_seconds` it is the cap; a malformed or negative value is no value.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), cap_seconds)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    wait = (when - datetime.fromtimestamp(now / MICROS_PER_SECOND, UTC)).total_seconds()
    return min(max(wait, 0.0), cap_seconds)
