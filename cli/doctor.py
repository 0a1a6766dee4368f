"""`sluice doctor`: what is configured, reachable, and wrong, in plain words.

Receives the settings. Hands on one line a check, and exit status 1 when something is wrong.
It only looks: it makes no folder, no key and no database.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy.exc import SQLAlchemyError

from cli import processes
from cli.console import ConfigOption, DataOption, JsonOption, out, run, settings_of
from cli.workspace import DEFAULT_DATA, Workspace, look_at_workspace
from kernel.environment import Environment
from kernel.errors import StoreAway
from kernel.runtime.rpc import open_channel
from kernel.runtime.settings import Settings
from kernel.runtime.vault import VaultKeys
from kernel.store import durability, migrations
from kernel.store.transaction import Store, Tx

_MOST_SKEW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `advice` says what to do where it is wrong."""

    name: str
    fine: bool
    found: str
    advice: str = ""


def doctor(
    data: DataOption = DEFAULT_DATA, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What is configured, reachable and wrong."""
    workspace, settings = settings_of(data, config, look_at_workspace)

    async def work() -> list[Check]:
        return [check async for check in checks(workspace, settings, Environment())]

    found = run(work())
    for check in found:
        if as_json:
            out.print_json(data={name: getattr(check, name) for name in check.__slots__})
            continue
        mark = "ok   " if check.fine else "WRONG"
        out.print(f"{mark} {check.name}: {check.found}", markup=False)
        if not check.fine and check.advice:
            out.print(f"      {check.advice}", markup=False)
    if not all(check.fine for check in found):
        raise typer.Exit(1)


async def checks(
    workspace: Workspace, settings: Settings, environment: Environment
) -> AsyncIterator[Check]:
    """Every check, in the order in which a start would fail."""
    yield _folder(workspace, settings)
    if workspace.keys:
        yield _keys(workspace.folder)
    if settings.vault_keys and settings.hash_key:
        VaultKeys.parse(settings.vault_keys)
        settings.hash_key_bytes()
        yield Check("keys", True, "vault keys and hash key can be used")
    clocks: dict[str, int] = {}
    for name, url in processes.databases(settings).items():
        store = Store(url, environment.clock)
        try:
            yield await _database(name, store, clocks)
            if store.url.get_backend_name() != "sqlite":
                yield await _durability(name, store)
        finally:
            await store.close()
    if len(clocks) > 1:
        skew = (max(clocks.values()) - min(clocks.values())) / 1e6
        yield Check(
            "clock skew between databases",
            skew <= _MOST_SKEW_SECONDS,
            f"{skew:.3f} s",
            "Leases and receipts compare these clocks: run NTP on the database servers.",
        )
    for name, reference, without in _references(settings):
        there = workspace.secret(reference) is not None
        yield Check(name, there, "found" if there else f"{reference} holds nothing", without)
    for name, vendor in settings.vendors.items():
        yield await _vendor(name, vendor.endpoint)
    for name in ("intake", "dispatcher", "vendor_proxy", "aggregator"):
        yield await _service(name, getattr(settings, f"{name}_addr"))


def _folder(workspace: Workspace, settings: Settings) -> Check:
    """Keys that are set elsewhere need no folder."""
    if workspace.keys:
        return Check("data folder", True, f"{workspace.folder}")
    return Check(
        "data folder",
        bool(settings.vault_keys and settings.hash_key),
        f"there is no data folder here: {workspace.folder}",
        "sluice up makes one. Is it elsewhere? Name it with --data.",
    )


def _references(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """(name, reference, what happens without it) of every secret that is declared."""
    for name, vendor in settings.vendors.items():
        if vendor.credential:
            yield f"credential of {name}", vendor.credential, "Without it no call is sent to it."
        if vendor.receipt_secret:
            yield (
                f"receipt secret of {name}",
                vendor.receipt_secret,
                "Without it every receipt of this vendor is refused.",
            )
    for name, caller in settings.callers.items():
        yield f"token of caller {name}", caller.token, "Without it no service starts."
    if settings.service_token:
        yield (
            "service token",
            settings.service_token,
            "Without it the services refuse each other.",
        )


def _keys(folder: Path) -> Check:
    mode = os.stat(folder / "keys.json").st_mode & 0o077
    return Check(
        "keys.json",
        mode == 0,
        "readable by its owner alone" if mode == 0 else "readable by others",
        f"chmod 600 {folder / 'keys.json'}",
    )


async def _database(name: str, store: Store, clocks: dict[str, int]) -> Check:
    shown = store.url.render_as_string(hide_password=True)
    if _is_missing_file(store):  # connecting would make it
        return Check(f"{name} database", False, f"{shown} is not there", "sluice db upgrade")
    try:
        migrations.check(store.engine, name)
        clocks[name] = await store.read(Tx.now)
    except migrations.SchemaOutdatedError as error:
        return Check(f"{name} database", False, f"{shown}: {error}", "sluice db upgrade")
    except (SQLAlchemyError, StoreAway):
        return Check(f"{name} database", False, f"{shown} cannot be reached", "Start it.")
    return Check(f"{name} database", True, f"{shown}, schema {migrations.newest(name)}")


def _is_missing_file(store: Store) -> bool:
    file = store.url.database if store.url.get_backend_name() == "sqlite" else None
    return file is not None and not Path(file).exists()


async def _durability(name: str, store: Store) -> Check:
    """Whether a MySQL-like server flushes at each commit."""
    value = await store.read(durability.flush_at_commit)
    return Check(
        f"{name} database flushes on commit",
        value == durability.FLUSHES,
        f"innodb_flush_log_at_trx_commit = {value}",
        "Set it to 1: otherwise an accepted intent can be lost with the server.",
    )


async def _vendor(name: str, endpoint: str) -> Check:
    try:
        timeout = aiohttp.ClientTimeout(total=3)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(endpoint):
            return Check(f"vendor {name}", True, f"{endpoint} answers")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Check(
            f"vendor {name}",
            False,
            f"{endpoint} does not answer ({type(error).__name__})",
            "Its tasks wait until it does. The scripted vendors start with: sluice vendor-sim",
        )


async def _service(name: str, address: str) -> Check:
    async with open_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=3
            )
        except grpc.aio.AioRpcError:
            return Check(
                f"service {name}", False, f"{address} does not answer", "Start it: sluice up"
            )
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return Check(
        f"service {name}",
        serving,
        f"{address} is {'serving' if serving else 'not serving'}",
        "Its log names the loop that fails.",
    )
