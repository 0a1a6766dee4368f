"""Receives vendors as a test wants them; hands on settings and what the simulator is told."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.runtime.settings import Settings

SECRET = "whsec_" + base64.b64encode(b"mesh-test-receipts-secret").decode()
SECRETS = {"keys:receipts": SECRET}
DATABASES = {"mesh": "mesh.db", "proxy": "proxy.db", "vault": "vault.db"}
# Shorter than in production, with every asserted relation kept.
TIMES: dict[str, Any] = {
    "poll_seconds": 0.05,
    "drain_seconds": 2.0,
    "leases": {
        "lease_seconds": 2.0,
        "renew_interval_seconds": 0.4,
        "store_timeout_seconds": 0.5,
        "execute_timeout_seconds": 20.0,
    },
    "incarnation": {
        "lease_seconds": 2.0,
        "renew_interval_seconds": 0.4,
        "store_timeout_seconds": 0.5,
        "write_seconds": 0.5,
    },
}


@dataclass
class Vendor:
    """One vendor: what we are told it can do, and what it does."""

    able: dict[str, Any] = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)
    timeout: float = 0.5
    execution: float = 1.0
    concurrency: int = 8
    more: dict[str, Any] = field(default_factory=dict)

    def declared(self, name: str, endpoint: str) -> dict[str, Any]:
        """Its section of the settings."""
        lag = self.able.get("consistency_lag_seconds", 0.0)
        return {
            "endpoint": f"{endpoint}/v/{name}",
            "client_timeout_seconds": self.timeout,
            "max_execution_seconds": self.execution,
            "price_micros": 100,
            "receipt_due_seconds": 1.0,
            "receipt_grace_seconds": 0.3,
            **({"receipt_secret": "keys:receipts"} if self.able.get("receipts") else {}),
            "status_map": {"processing": "ACCEPTED", "succeeded": "SUCCEEDED", "failed": "FAILED"},
            # Whether it answers at once or later is the vendor's own affair, and not declared.
            **{name: can for name, can in self.able.items() if name != "asynchronous"},
            "consistency_lag_seconds": lag,
            **self.more,
        }

    def played(self) -> dict[str, Any]:
        """Its part in the simulator."""
        alike = ("dedupe", "query_by_key", "query_by_id", "receipts", "cancel")
        can = {name: self.able[name] for name in alike if name in self.able}
        if self.able.get("asynchronous"):
            can["async"] = True
        lag = self.able.get("consistency_lag_seconds", 0.0)
        if lag:
            can["consistency_lag_ms"] = lag * 1000 / 2
        return {
            "capabilities": can,
            "price_micros": 100,
            "receipt_secret": SECRET,
            **self.control,
        }


KEYED = {"query_by_key": True, "authoritative": True, "consistency_lag_seconds": 0.1}
BY_ID = {"query_by_id": True}
DEDUPES = {"dedupe": True}
NEITHER: dict[str, Any] = {}


def script(do: str, *, nth: int | None = None, **more: Any) -> dict[str, Any]:
    """A vendor that does something to its n-th call, or to every call."""
    when = {"nth": nth} if nth else {"every": 1}
    return {"script": [{"when": when, "do": do, **more}]}


def model(pool: str, **more: Any) -> dict[str, Any]:
    """A model judged by the vendor of the same name as its pool."""
    return {"model": f"model-{pool}", "pool": pool, **more}


def settings_for(
    folder: Path,
    endpoint: str,
    vendors: Mapping[str, Vendor],
    planning: Mapping[str, list[dict[str, Any]]] | None = None,
    **given: Any,
) -> Settings:
    """Settings of a mesh whose pools are named like their vendors."""
    rules = planning or {"TEXT": [model(next(iter(vendors)))]}
    values: dict[str, Any] = {
        "database_url": f"sqlite:///{folder / DATABASES['mesh']}",
        "proxy_database_url": f"sqlite:///{folder / DATABASES['proxy']}",
        "vault_url": f"sqlite:///{folder / DATABASES['vault']}",
        "vault_keys": "k1:" + base64.b64encode(b"v" * 32).decode(),
        "hash_key": base64.b64encode(b"h" * 32).decode(),
        "intake_addr": "127.0.0.1:0",
        "dispatcher_addr": "127.0.0.1:0",
        "vendor_proxy_addr": "127.0.0.1:0",
        "vendor_proxy_http_addr": "127.0.0.1:0",
        "aggregator_addr": "127.0.0.1:0",
        **TIMES,
        "vendors": {name: each.declared(name, endpoint) for name, each in vendors.items()},
        "pools": {
            name: {"vendor": name, "concurrency": each.concurrency}
            for name, each in vendors.items()
        },
        "planning": {
            "deadline_seconds": 60.0,
            "rules": [{"kind": kind, "models": models} for kind, models in rules.items()],
        },
        "policies": {"default": {"rules": [{"category": "*", "reject_at": 0.9, "review_at": 0.6}]}},
    }
    return Settings.model_validate({**values, **given})
