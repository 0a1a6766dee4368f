"""Settings: environment `SLUICE_...` over one YAML file, checked before anything starts.

Receives the environment and a file. Hands on `Settings`, frozen. An unknown or contradictory
setting stops the start with its name and the reason.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.decision import Policy, Requirement, Rule, policy_violations
from kernel.idempotency import Capabilities
from kernel.lifecycle import CaseState
from kernel.limits import BrokenRelationError, IncarnationBounds, LeaseBounds
from kernel.vendor import PoolProfile, VendorProfile

PREFIX = "SLUICE_"
# Read by the command itself: where the file is, and where a caller's token is.
_NOT_SETTINGS = frozenset({"config", "token_file"})
# What a setting is that nobody gives: the rules say it, once.
_ABLE, _VENDOR = Capabilities(), VendorProfile("", "sluice", "")
_LEASES, _INCARNATION = LeaseBounds(), IncarnationBounds()


class SettingsError(ValueError):
    """A setting is unknown, malformed or contradicts another; the message names it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError("must be host:port, the port from 0 to 65535")
    return text


Address = Annotated[str, AfterValidator(_address)]


class VendorSettings(_Section):
    """One vendor account; see `kernel.vendor.VendorProfile` for the meaning of each field."""

    adapter: Literal["sluice", "openai-moderations"] = "sluice"
    endpoint: str = Field(pattern=r"^https?://[^\s/]+")
    dedupe: bool = _ABLE.dedupe
    query_by_key: bool = _ABLE.query_by_key
    query_by_id: bool = _ABLE.query_by_id
    authoritative: bool = _ABLE.authoritative
    consistency_lag_seconds: float = Field(_ABLE.consistency_lag_seconds, ge=0)
    key_window_seconds: float = Field(_ABLE.key_window_seconds, gt=0)
    receipts: bool = _ABLE.receipts
    cancel: bool = _ABLE.cancel
    credential: str = ""
    receipt_secret: str = ""
    client_timeout_seconds: float = Field(_VENDOR.client_timeout_seconds, gt=0)
    max_execution_seconds: float = Field(_VENDOR.max_execution_seconds, gt=0)
    receipt_due_seconds: float = Field(_VENDOR.receipt_due_seconds, gt=0)
    receipt_grace_seconds: float = Field(_VENDOR.receipt_grace_seconds, ge=0)
    query_timeout_seconds: float = Field(_VENDOR.query_timeout_seconds, gt=0)
    query_concurrency: int = Field(_VENDOR.query_concurrency, ge=1)
    counts: Literal["requests", "jobs"] = "requests"
    throttle_503: bool = _VENDOR.throttle_503
    price_micros: int = Field(_VENDOR.price_micros, ge=0)
    status_map: dict[str, Literal["ACCEPTED", "SUCCEEDED", "FAILED"]] = {}
    status_map_version: int = _VENDOR.status_map_version
    status_map_reviewer: str = _VENDOR.status_map_reviewer
    retryable_codes: tuple[str, ...] = tuple(sorted(_VENDOR.retryable_codes))

    def profile(self, name: str) -> VendorProfile:
        """The vendor as the rules see it."""
        return VendorProfile(
            name=name,
            adapter=self.adapter,
            endpoint=self.endpoint.rstrip("/"),
            # Every ability is a setting of the same name.
            able=Capabilities(**{each.name: getattr(self, each.name) for each in fields(_ABLE)}),
            credential_ref=self.credential,
            receipt_secret_ref=self.receipt_secret,
            client_timeout_seconds=self.client_timeout_seconds,
            max_execution_seconds=self.max_execution_seconds,
            receipt_due_seconds=self.receipt_due_seconds,
            receipt_grace_seconds=self.receipt_grace_seconds,
            query_timeout_seconds=self.query_timeout_seconds,
            query_concurrency=self.query_concurrency,
            counts=self.counts,
            throttle_503=self.throttle_503,
            price_micros=self.price_micros,
            status_map={k.strip().lower(): v for k, v in self.status_map.items()},
            status_map_version=self.status_map_version,
            status_map_reviewer=self.status_map_reviewer,
            retryable_codes=frozenset(self.retryable_codes),
        )


class PoolSettings(_Section):
    """One pool; `concurrency` in calls at once."""

    vendor: str
    concurrency: int = Field(ge=1)


class OnUnknownSettings(_Section):
    """What to do where the vendor can neither de-duplicate nor be queried."""

    mode: OnUnknownMode = OnUnknownMode.AT_LEAST_ONCE
    max_duplicates: int = Field(1, ge=0)
    max_cost_micros: int = Field(1_000_000, ge=0)  # one unit of the currency; 0 bounds nothing

    def rule(self) -> OnUnknown:
        """As the rules see it."""
        return OnUnknown(self.mode, self.max_duplicates, self.max_cost_micros)


class ModelSettings(_Section):
    """One model that judges a kind of part."""

    model: str
    version: str = "1"
    pool: str
    requirement: Requirement = Requirement.REQUIRED
    max_sends: int = Field(4, ge=1)
    on_unknown: OnUnknownSettings = OnUnknownSettings()


class PlanningRule(_Section):
    """Which models judge parts of `kind`; the first rule whose tenants and labels match."""

    kind: Literal["TEXT", "IMAGE", "VIDEO"]
    tenants: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    models: tuple[ModelSettings, ...] = Field(min_length=1)


class PlanningSettings(_Section):
    """How a content fans out."""

    rules: tuple[PlanningRule, ...] = ()
    policy: str = "default"
    deadline_seconds: float = Field(300.0, gt=0)
    frames_per_second: float = Field(1.0, gt=0)  # of a video given by uri and duration


class RuleSettings(_Section):
    """Thresholds of one category."""

    category: str
    reject_at: float | None = None
    review_at: float | None = None


class PolicySettings(_Section):
    """One policy version, stored at the start if it is new."""

    version: int = Field(1, ge=1)
    rules: tuple[RuleSettings, ...]
    on_deadline: Literal["IN_REVIEW", "FAILED"] = "IN_REVIEW"
    on_required_failed: Literal["IN_REVIEW", "FAILED"] = "IN_REVIEW"

    def policy(self, policy_id: str) -> Policy:
        """As the rules see it."""
        return Policy(
            policy_id,
            self.version,
            tuple(Rule(r.category, r.reject_at, r.review_at) for r in self.rules),
            CaseState(self.on_deadline),
            CaseState(self.on_required_failed),
        )


class CallerSettings(_Section):
    """One caller; `token` is a reference such as env:NAME, never the token."""

    token: str = Field(min_length=1)
    tenants: tuple[str, ...] | None = None
    roles: tuple[Literal["submit", "read", "operate", "review", "gateway"], ...] = (
        "submit",
        "read",
    )


class LeaseSettings(_Section):
    """A dispatcher's leases; see `kernel.limits.LeaseBounds`."""

    lease_seconds: float = Field(_LEASES.lease_seconds, gt=0)
    renew_interval_seconds: float = Field(_LEASES.renew_interval_seconds, gt=0)
    store_timeout_seconds: float = Field(_LEASES.store_timeout_seconds, gt=0)
    execute_timeout_seconds: float = Field(_LEASES.execute_timeout_seconds, gt=0)


class IncarnationSettings(_Section):
    """A proxy's right to send; see `kernel.limits.IncarnationBounds`."""

    lease_seconds: float = Field(_INCARNATION.lease_seconds, gt=0)
    renew_interval_seconds: float = Field(_INCARNATION.renew_interval_seconds, gt=0)
    store_timeout_seconds: float = Field(_INCARNATION.store_timeout_seconds, gt=0)
    write_seconds: float = Field(_INCARNATION.write_seconds, gt=0)


class Settings(_Section):
    """Everything that a process of Sluice is told at its start."""

    database_url: str = ""
    proxy_database_url: str = ""
    vault_url: str = ""
    vault_keys: str = ""
    hash_key: str = ""
    bus: str = "inproc"
    intake_addr: Address = "127.0.0.1:7101"
    dispatcher_addr: Address = "127.0.0.1:7102"
    vendor_proxy_addr: Address = "127.0.0.1:7103"
    vendor_proxy_http_addr: Address = "127.0.0.1:7113"
    aggregator_addr: Address = "127.0.0.1:7104"
    service_token: str = ""
    receipt_base_url: str = ""
    poll_seconds: float = Field(0.2, gt=0)
    drain_seconds: float = Field(10.0, gt=0)
    leases: LeaseSettings = LeaseSettings()
    incarnation: IncarnationSettings = IncarnationSettings()
    vendors: dict[str, VendorSettings] = {}
    pools: dict[str, PoolSettings] = {}
    planning: PlanningSettings = PlanningSettings()
    policies: dict[str, PolicySettings] = {}
    callers: dict[str, CallerSettings] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        for name, pool in self.pools.items():
            if pool.vendor not in self.vendors:
                raise ValueError(f"pools.{name}.vendor: no vendor is named {pool.vendor!r}")
        for rule in self.planning.rules:
            if not any(m.requirement is Requirement.REQUIRED for m in rule.models):
                raise ValueError(f"planning: the {rule.kind} rule has no REQUIRED model")
            for model in rule.models:
                if model.pool not in self.pools:
                    raise ValueError(f"planning: {model.model} names no pool: {model.pool!r}")
        if self.planning.rules and self.planning.policy not in self.policies:
            raise ValueError(f"planning.policy: no policy is named {self.planning.policy!r}")
        if self.bus != "inproc":
            raise ValueError(f"bus: {self.bus!r} is not known; use inproc")
        for policy in self.declared_policies():
            for bad in policy_violations(policy):
                raise ValueError(f"policies.{policy.policy_id}.{bad.field}: {bad.description}")
        leases = self.lease_bounds()
        leases.assert_relations()
        for name, vendor in self.vendors.items():
            vendor.profile(name)
            leases.assert_outlasts(name, client_timeout_seconds=vendor.client_timeout_seconds)
            if vendor.receipts and not vendor.receipt_secret:
                raise ValueError(f"vendors.{name}: receipts need a receipt_secret reference")
        self.incarnation_bounds().assert_relations()
        return self

    def declared_policies(self) -> list[Policy]:
        """The policy versions that this file declares."""
        return [policy.policy(name) for name, policy in self.policies.items()]

    def vendor_profiles(self) -> dict[str, VendorProfile]:
        """Vendors by name."""
        return {name: vendor.profile(name) for name, vendor in self.vendors.items()}

    def pool_profiles(self) -> dict[str, PoolProfile]:
        """Pools by name."""
        return {
            name: PoolProfile(name, pool.vendor, pool.concurrency)
            for name, pool in self.pools.items()
        }

    def lease_bounds(self) -> LeaseBounds:
        """The dispatcher's leases."""
        return LeaseBounds(**self.leases.model_dump())

    def incarnation_bounds(self) -> IncarnationBounds:
        """The proxy's leases."""
        return IncarnationBounds(**self.incarnation.model_dump())

    def hash_key_bytes(self) -> bytes:
        """The digest key; raises SettingsError when it is missing or short."""
        try:
            key = base64.b64decode(self.hash_key, validate=True)
        except binascii.Error:
            key = b""
        if len(key) < 16:
            raise SettingsError(
                "SLUICE_HASH_KEY must be base64 of at least 16 random bytes; digests made with it "
                "make tasks unique, so keep it as long as the database"
            )
        return key


def load(path: Path | None, environment: Mapping[str, str], **given: Any) -> Settings:
    """Settings from a YAML file, then `SLUICE_...`, then `given`; the last one wins.

    Raises SettingsError with the name and the reason.
    """
    values = _read_yaml(path) if path is not None else {}
    scalars = {
        name for name, field in Settings.model_fields.items() if field.annotation in (str, float)
    }
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in _NOT_SETTINGS:
            continue
        if name not in scalars:
            raise SettingsError(f"{variable}: no such setting; unset it, or correct its name")
        values[name] = text
    values.update(given)
    try:
        return Settings.model_validate(values)
    except BrokenRelationError as error:
        raise SettingsError(str(error)) from error
    except ValidationError as error:
        raise SettingsError(_readable(error)) from None


def secret(reference: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The secret behind "env:NAME" or "file:PATH"; None when it is not there."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        return (os.environ if environment is None else environment).get(name) or None
    if kind == "file":
        try:
            return Path(name).read_text().strip() or None
        except OSError:
            return None
    return None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        # The place and the problem, never the line: it can hold a key.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise SettingsError(f"{path}: is not YAML ({where}{problem or 'unreadable'})") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path}: must hold a mapping of settings")
    return loaded


def _readable(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        where = ".".join(str(step) for step in problem["loc"]) or "settings"
        lines.append(f"{where}: {problem['msg']}")
    return "; ".join(lines)
