"""Receives bounds that contradict each other; checks that each broken relation is named."""

from __future__ import annotations

import pytest

from kernel.limits import (
    BrokenRelationError,
    IncarnationBounds,
    LeaseBounds,
    assert_vendor_times,
)
from kernel.vendor import VendorProfile


def test_the_defaults_keep_their_relations() -> None:
    LeaseBounds().assert_relations()
    IncarnationBounds().assert_relations()


def test_a_lease_that_three_renewals_do_not_fit_into_is_refused_by_name() -> None:
    with pytest.raises(BrokenRelationError) as broken:
        LeaseBounds(lease_seconds=20.0).assert_relations()
    assert str(broken.value) == (
        "3 * renew_interval_seconds + store_timeout_seconds (20.0) "
        "must be below lease_seconds (20.0)"
    )
    LeaseBounds(lease_seconds=20.001).assert_relations()


def test_an_incarnation_that_cannot_keep_its_lease_is_refused_by_name() -> None:
    with pytest.raises(BrokenRelationError) as broken:
        IncarnationBounds(lease_seconds=8.0).assert_relations()
    assert str(broken.value) == (
        "2 * renew_interval_seconds + store_timeout_seconds + write_seconds (8.0) "
        "must be below lease_seconds (8.0)"
    )
    IncarnationBounds(lease_seconds=8.001).assert_relations()


def test_a_vendor_that_is_said_to_stop_before_we_do_is_refused_by_name() -> None:
    with pytest.raises(BrokenRelationError) as broken:
        assert_vendor_times("acme", client_timeout_seconds=10.0, max_execution_seconds=9.0)
    for part in ("vendor acme", "max_execution_seconds (9.0)", "client_timeout_seconds (10.0)"):
        assert part in str(broken.value)
    assert_vendor_times("acme", client_timeout_seconds=10.0, max_execution_seconds=10.0)


def test_a_vendor_profile_cannot_be_made_against_the_relation() -> None:
    with pytest.raises(BrokenRelationError):
        VendorProfile("acme", "sluice", "http://x", max_execution_seconds=1.0)
