"""Receives settings; checks that they accept no more than the rules that they feed."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.idempotency import Capabilities
from kernel.runtime.settings import Settings, SettingsError, load
from kernel.vendor import VendorProfile


def refused(**given: Any) -> str:
    with pytest.raises(SettingsError) as error:
        load(None, {}, **given)
    return str(error.value)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ({"rules": []}, "policies.strict.rules: 1 to 1000 rules"),
        (
            {"rules": [{"category": "a"}, {"category": "a"}]},
            "policies.strict.rules[1].category: stands in an earlier rule already",
        ),
        (
            {"rules": [{"category": "a", "reject_at": 0.4, "review_at": 0.5}]},
            "policies.strict.rules[0].review_at: at most reject_at",
        ),
        (
            {"rules": [{"category": "a", "reject_at": float("nan")}]},
            "policies.strict.rules[0].reject_at: a number from 0 to 1",
        ),
    ],
)
def test_i5_a_declared_policy_that_would_never_be_stored_stops_the_start(
    policy: dict[str, Any], named: str
) -> None:
    assert named in refused(policies={"strict": policy})


def vendor(**more: Any) -> dict[str, Any]:
    return {"acme": {"endpoint": "http://127.0.0.1:1", "max_execution_seconds": 90.0, **more}}


def test_an_execute_outlasts_the_wait_for_every_vendor() -> None:
    told = refused(vendors=vendor(client_timeout_seconds=60.0))
    assert (
        "vendor acme: leases.execute_timeout_seconds (60.0) must be above its "
        "client_timeout_seconds (60.0)" in told
    )
    load(None, {}, vendors=vendor(client_timeout_seconds=59.0))
    longer = {"execute_timeout_seconds": 61.0}
    load(None, {}, vendors=vendor(client_timeout_seconds=60.0), leases=longer)


def test_a_vendor_that_says_nothing_has_the_defaults_of_the_rules() -> None:
    declared = Settings.model_validate({"vendors": {"acme": {"endpoint": "http://127.0.0.1:1"}}})
    plain = VendorProfile("acme", "sluice", "http://127.0.0.1:1", Capabilities())
    assert declared.vendor_profiles() == {"acme": plain}
