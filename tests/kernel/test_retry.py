"""Receives tries, draws and Retry-After headers; checks the waits that follow."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.retry import Backoff, parse_retry_after

steady = settings(derandomize=True, max_examples=200, deadline=None)

NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("999999", 60.0),
        ("2abc", None),
        ("-3", None),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
        ("Wed, 31 Dec 2025 23:59:50 GMT", 0.0),
        ("Fri, 02 Jan 2026 00:00:00 GMT", 60.0),
        (None, None),
        ("", None),
        ("soon", None),
        (" 5 ", 5.0),
        ("1.5", None),
        ("\u0665", None),
        ("5, 10", None),
        ("9" * 400, 60.0),
        ("Thu, 99 Jan 2026 00:00:10 GMT", None),
        ("Thu, 01 Jan 99999 00:00:10 GMT", None),
        ("Thu, 01 Jan 2026 00:00:10", 10.0),
        ("Thu, 01 Jan 99999999999999999999 00:00:10 GMT", None),
        ("Thu, 01 Jan 2026 00:00:10 +" + "9" * 30, None),
        ("Fri, 31 Dec 9999 23:59:59 -2300", 60.0),
    ],
)
def test_case_4_11_a_retry_after_is_read_as_the_table_says(
    header: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(header, NEW_YEAR, cap_seconds=60.0) == seconds


odd_dates = st.builds(
    "Thu, {} Jan {} 00:00:{} {}".format,
    st.integers(-1, 10**20),
    st.integers(-1, 10**20),
    st.integers(-1, 10**20),
    st.sampled_from(["GMT", "+0000", "-2399", "+" + "9" * 20, ""]),
)


@steady
@given(st.text(max_size=40) | odd_dates)
def test_case_4_11_no_header_whatever_raises_or_exceeds_the_cap(header: str) -> None:
    wait = parse_retry_after(header, NEW_YEAR)
    assert wait is None or 0.0 <= wait <= 60.0


backoffs = st.builds(
    Backoff,
    base_seconds=st.floats(0.01, 10.0),
    cap_seconds=st.floats(0.01, 100.0),
    floor=st.sampled_from([0.0, 0.25, 1.0]),
)
draws = st.floats(0.0, 1.0, exclude_max=True)


@steady
@given(backoffs, st.integers(0, 10_000), draws)
def test_a_wait_lies_between_its_floor_and_its_ceiling(
    backoff: Backoff, tries: int, draw: float
) -> None:
    ceiling = min(backoff.base_seconds * 2.0 ** min(tries, 32), backoff.cap_seconds)
    wait = backoff.seconds(tries, draw)
    assert backoff.floor * ceiling * 0.999999 <= wait <= ceiling * 1.000001
    assert wait <= backoff.cap_seconds * 1.000001


@steady
@given(backoffs, st.integers(0, 100), draws, st.floats(-10.0, 1e9))
def test_case_4_11_nobody_returns_before_a_retry_after_and_nobody_waits_for_hours(
    backoff: Backoff, tries: int, draw: float, asked: float
) -> None:
    wait = backoff.seconds(tries, draw, asked)
    assert wait >= min(max(asked, 0.0), backoff.retry_after_cap_seconds)
    most = backoff.retry_after_cap_seconds + backoff.cap_seconds
    assert wait <= most * 1.000001


def test_the_ceiling_doubles_with_each_try_up_to_the_cap() -> None:
    backoff = Backoff(base_seconds=1.0, cap_seconds=6.0, floor=1.0)
    assert [backoff.seconds(tries, 0.0) for tries in range(5)] == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_those_refused_together_do_not_return_together() -> None:
    backoff = Backoff(base_seconds=1.0)
    waits = {backoff.seconds(3, draw / 10, 30.0) for draw in range(10)}
    assert len(waits) == 10
    assert min(waits) >= 30.0
