"""Puts a lab's bench together: the real cores on SQLite files of its own, a real vendor over HTTP.

Receives vendors, what they are to do, and which models judge. Hands on a `Bench` with intake,
gateway and aggregator in one process under the lab's clock; everything is gone at the end.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cli import processes, vendor_process
from cli.labs.bench import Bench
from cli.labs.clock import LabClock
from cli.labs.link import LabSink, LabWakeups
from cli.labs.witness import Witness
from cli.vendor_process import VendorControl
from cli.workspace import Workspace, open_workspace, sqlite_url
from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.limits import IncarnationBounds
from kernel.runtime.declared import store_policies
from kernel.runtime.settings import Settings
from kernel.runtime.vault import Vault, VaultKeys
from kernel.store.transaction import Store
from services.aggregator.core import AggregatorCore
from services.intake.core import IntakeCore
from services.intake.relay import Relay
from services.vendor_proxy.app import ProxyParts

_SEED = 20261130
# The gateway is not what pauses in these labs: its right to send outlasts every jump of the clock.
_GATEWAY_BOUNDS = IncarnationBounds(lease_seconds=3600.0, renew_interval_seconds=900.0)


@asynccontextmanager
async def open_bench(
    vendors: Mapping[str, Mapping[str, Any]],
    controls: Mapping[str, Mapping[str, Any]],
    rules: Sequence[Mapping[str, Any]],
) -> AsyncIterator[Bench]:
    """A bench on temporary files. `vendors` as in settings, each with a pool of its name.

    `controls`: what the simulator is told of each. `rules`: planning rules as in settings.
    """
    clock = LabClock()
    environment = Environment(clock, random.Random(_SEED))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-lab-")))
        workspace = open_workspace(folder)
        secret = {"receipt_secret": workspace.keys["receipts"]}
        simulator = await vendor_process.start(
            0, {name: {**body, **secret} for name, body in controls.items()}, environment
        )
        stack.push_async_callback(simulator.stop)
        vendor = VendorControl(f"http://127.0.0.1:{simulator.port}")
        settings = _settings(workspace, vendor.endpoint, vendors, rules)
        await asyncio.to_thread(processes.upgrade, settings, environment)
        stores: list[Store] = []
        for url in processes.databases(settings).values():
            stores.append(Store(url, clock))
            stack.push_async_callback(stores[-1].close)
        mesh, proxy, sealed = stores
        witness = Witness(clock)
        witness.watch(mesh)
        wakeups = LabWakeups()
        vault = Vault(sealed, VaultKeys.parse(settings.vault_keys), environment)
        hasher = Hasher(settings.hash_key_bytes())
        pools = settings.pool_profiles()
        aggregator = AggregatorCore(mesh, environment, wakeups)
        await store_policies(mesh, settings.declared_policies())
        sink = LabSink(aggregator, witness)
        gateway = ProxyParts(
            store=proxy,
            environment=environment,
            vault=vault,
            hasher=hasher,
            vendors=settings.vendor_profiles(),
            pools=pools,
            secrets=workspace.secret,
            sink=sink,
            bounds=_GATEWAY_BOUNDS,
        )
        await gateway.start()
        stack.push_async_callback(gateway.drop)
        bench = Bench(
            clock=clock,
            environment=environment,
            settings=settings,
            witness=witness,
            wakeups=wakeups,
            mesh=mesh,
            intake=IntakeCore(mesh, vault, hasher, settings.planning, pools, environment, wakeups),
            aggregator=aggregator,
            gateway=gateway,
            sink=sink,
            relay=Relay(mesh, wakeups, environment, "lab", settings.poll_seconds),
            vendor=vendor,
        )
        stack.push_async_callback(bench.stop)
        yield bench


def _settings(
    workspace: Workspace,
    endpoint: str,
    vendors: Mapping[str, Mapping[str, Any]],
    rules: Sequence[Mapping[str, Any]],
) -> Settings:
    """Settings of the lab alone: neither a file nor the environment takes part."""
    return Settings.model_validate(
        {
            "database_url": sqlite_url(workspace.folder, "database"),
            "proxy_database_url": sqlite_url(workspace.folder, "proxy_database"),
            "vault_url": sqlite_url(workspace.folder, "vault"),
            "vault_keys": workspace.keys["vault_keys"],
            "hash_key": workspace.keys["hash_key"],
            "vendors": {
                name: {"endpoint": f"{endpoint}/v/{name}", **body} for name, body in vendors.items()
            },
            "pools": {name: {"vendor": name, "concurrency": 8} for name in vendors},
            "planning": {"rules": list(rules), "policy": "default"},
            "policies": {
                "default": {"rules": [{"category": "*", "reject_at": 0.9, "review_at": 0.6}]}
            },
        }
    )
