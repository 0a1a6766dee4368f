"""Receives settings as people write them; checks that what is wrong stops the start by name."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.limits import IncarnationBounds, LeaseBounds
from kernel.runtime.settings import Settings, SettingsError, load, secret

WHOLE: dict[str, Any] = {
    "vendors": {
        "acme": {
            "endpoint": "http://127.0.0.1:7200/v/acme/",
            "dedupe": True,
            "receipts": True,
            "receipt_secret": "env:ACME_SECRET",
            "status_map": {" Delivered ": "SUCCEEDED"},
        }
    },
    "pools": {"acme-text": {"vendor": "acme", "concurrency": 4}},
    "policies": {"default": {"rules": [{"category": "*", "reject_at": 0.8}]}},
    "planning": {
        "rules": [{"kind": "TEXT", "models": [{"model": "text", "pool": "acme-text"}]}],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """`WHOLE` with one setting replaced; None removes it."""
    settings: dict[str, Any] = yaml.safe_load(yaml.safe_dump(WHOLE))
    *steps, last = path.split("/")
    at: Any = settings
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return settings


def written(folder: Path, settings: object) -> Path:
    path = folder / "sluice.yaml"
    path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    return path


def refused(folder: Path, settings: object) -> str:
    with pytest.raises(SettingsError) as error:
        load(written(folder, settings), {})
    return str(error.value)


def test_a_whole_file_is_read_as_the_rules_need_it(tmp_path: Path) -> None:
    settings = load(written(tmp_path, WHOLE), {})
    vendor = settings.vendor_profiles()["acme"]
    assert (vendor.endpoint, vendor.able.dedupe) == ("http://127.0.0.1:7200/v/acme", True)
    assert vendor.status_map == {"delivered": "SUCCEEDED"}
    assert settings.pool_profiles()["acme-text"].concurrency == 4
    (rule,) = settings.planning.rules
    assert rule.models[0].on_unknown.rule() == OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 1, 1_000_000)
    assert settings.policies["default"].policy("default").version == 1


def test_the_defaults_are_a_mesh_on_loopback() -> None:
    settings = load(None, {})
    assert settings.intake_addr == "127.0.0.1:7101"
    assert settings.lease_bounds() == LeaseBounds()
    assert settings.incarnation_bounds() == IncarnationBounds()


def test_the_environment_stands_over_the_file_and_a_given_value_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, {"intake_addr": "127.0.0.1:1", "poll_seconds": 1.0})
    environment = {"SLUICE_INTAKE_ADDR": "127.0.0.1:2", "SLUICE_POLL_SECONDS": "0.5", "HOME": "/"}
    settings = load(path, environment)
    assert (settings.intake_addr, settings.poll_seconds) == ("127.0.0.1:2", 0.5)
    assert load(path, environment, intake_addr="127.0.0.1:3").intake_addr == "127.0.0.1:3"


@pytest.mark.parametrize(
    "name", ["SLUICE_DATABSE_URL", "SLUICE_", "SLUICE_VENDORS", "SLUICE_LEASES", "SLUICE_POOLS"]
)
def test_an_unknown_name_in_the_environment_stops_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: no such setting"):
        load(None, {name: "x"})


def test_the_name_of_the_file_itself_is_no_setting_in_it() -> None:
    assert load(None, {"SLUICE_CONFIG": "sluice.yaml"}) == Settings()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("databse_url", "databse_url"),
        ("vendors/acme/dedup", "vendors.acme.dedup"),
        ("pools/acme-text/limit", "pools.acme-text.limit"),
        ("leases/lease", "leases.lease"),
        ("planning/rules/0/models/0/modell", "planning.rules.0.models.0.modell"),
        ("policies/default/rules/0/reject", "policies.default.rules.0.reject"),
    ],
)
def test_an_unknown_key_in_the_file_is_named_with_its_place(
    tmp_path: Path, path: str, named: str
) -> None:
    told = refused(tmp_path, changed(path, "x"))
    assert f"{named}: Extra inputs are not permitted" in told


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("pools/acme-text/vendor", "acmee", "pools.acme-text.vendor: no vendor is named 'acmee'"),
        ("pools/acme-text/concurrency", 0, "pools.acme-text.concurrency"),
        ("planning/rules/0/models/0/pool", "none", "text names no pool: 'none'"),
        (
            "planning/rules/0/models/0/requirement",
            "OPTIONAL",
            "the TEXT rule has no REQUIRED model",
        ),
        ("planning/rules/0/models", [], "planning.rules.0.models"),
        ("planning/policy", "strict", "planning.policy: no policy is named 'strict'"),
        ("bus", "kafka://127.0.0.1:9092", "bus: 'kafka://127.0.0.1:9092' is not known"),
        ("vendors/acme/receipt_secret", None, "vendors.acme: receipts need a receipt_secret"),
        (
            "vendors/acme/max_execution_seconds",
            5.0,
            "vendor acme: max_execution_seconds (5.0) must be at least client_timeout_seconds",
        ),
        ("vendors/acme/status_map", {"x": "DONE"}, "vendors.acme.status_map.x"),
        ("vendors/acme/adapter", "smtp", "vendors.acme.adapter"),
        (
            "leases/lease_seconds",
            20.0,
            "3 * renew_interval_seconds + store_timeout_seconds (20.0) must be below lease_seconds",
        ),
        (
            "incarnation/write_seconds",
            9.0,
            "store_timeout_seconds + write_seconds (15.0) must be below lease_seconds (10.0)",
        ),
        ("poll_seconds", 0, "poll_seconds"),
        ("policies/default/rules/0/reject_at", 1.5, "policies.default.rules[0].reject_at"),
        ("policies/default/on_deadline", "APPROVED", "policies.default.on_deadline"),
        ("callers/app/roles", ["admin"], "callers.app.roles.0"),
    ],
)
def test_a_contradiction_stops_the_start_with_its_name_and_reason(
    tmp_path: Path, path: str, value: object, named: str
) -> None:
    settings = changed(path, value)
    if path.startswith("callers"):
        settings["callers"]["app"]["token"] = "env:APP"
    assert named in refused(tmp_path, settings)


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "just words", "a: [1\n", "a: 1\na: !!python/name:os\n"]
)
def test_a_file_that_holds_no_settings_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "sluice.yaml") in refused(tmp_path, text)


def test_an_empty_file_is_the_defaults_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert load(written(tmp_path, ""), {}) == Settings()
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.yaml", {})


def test_malformed_numbers_are_named_and_not_guessed() -> None:
    with pytest.raises(SettingsError, match="poll_seconds: Input should be a valid number"):
        load(None, {"SLUICE_POLL_SECONDS": "often"})


# ---- secrets ----------------------------------------------------------------------------


def test_i8_a_secret_is_found_by_its_reference_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" s3cret\n")
    assert secret("env:TOKEN", {"TOKEN": "s3cret"}) == "s3cret"
    assert secret(f"file:{path}", {}) == "s3cret"
    for nothing in ("s3cret", "", "env:", "env:OTHER", f"file:{path}.none", "vault:TOKEN"):
        assert secret(nothing, {"TOKEN": "s3cret"}) is None
    path.write_text("\n")
    assert secret(f"file:{path}", {}) is None
    assert secret("env:TOKEN", {"TOKEN": ""}) is None


def test_i8_what_is_refused_is_named_without_its_value(tmp_path: Path) -> None:
    told = refused(tmp_path, {"vault_keys": {"k1": "VERY-SECRET"}, "hash_key": ["VERY-SECRET"]})
    assert "vault_keys" in told
    assert "VERY-SECRET" not in told


@pytest.mark.parametrize("key", ["", "not base64!", base64.b64encode(b"x" * 15).decode(), "AAAA\n"])
def test_a_hash_key_that_is_missing_or_short_stops_the_start(key: str) -> None:
    with pytest.raises(SettingsError, match="SLUICE_HASH_KEY must be base64") as refused_key:
        load(None, {}, hash_key=key).hash_key_bytes()
    assert not key or key not in str(refused_key.value)


def test_a_hash_key_is_its_bytes() -> None:
    key = base64.b64encode(b"x" * 16).decode()
    assert load(None, {}, hash_key=key).hash_key_bytes() == b"x" * 16
