"""Puts services together into a process: all four, or one.

Receives settings. Hands on running services, stopped in the order in which the work flows:
intake first, so that nothing new comes, the vendor proxy and aggregator last.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from sqlalchemy.engine import make_url

from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.runtime.rpc import Authenticator, Caller, is_loopback
from kernel.runtime.settings import Settings, SettingsError
from kernel.runtime.vault import Vault, VaultKeys
from kernel.runtime.wakeups import InProcessWakeups
from kernel.store import migrations
from kernel.store.transaction import Store
from services.aggregator.app import AggregatorApp
from services.dispatcher.app import DispatcherApp
from services.intake.app import IntakeApp
from services.vendor_proxy.app import VendorProxyApp

SERVICES = ("intake", "dispatcher", "vendor-proxy", "aggregator")
Secrets = Callable[[str], str | None]


@dataclass(slots=True)
class Running:
    """Bound addresses of the services in this process, host:port; empty where not run here."""

    intake: str = ""
    dispatcher: str = ""
    vendor_proxy: str = ""
    receipts: str = ""
    aggregator: str = ""


def authenticator(settings: Settings, secrets: Secrets) -> Authenticator:
    """Callers by token; raises SettingsError when a declared token is not there."""
    callers: dict[str, Caller] = {}
    for name, declared in settings.callers.items():
        token = secrets(declared.token)
        if not token:
            raise SettingsError(f"callers.{name}.token: {declared.token} holds no token")
        tenants = None if declared.tenants is None else frozenset(declared.tenants)
        callers[token] = Caller(name, tenants, frozenset(declared.roles))
    return Authenticator(callers)


def upgrade(settings: Settings, environment: Environment) -> list[str]:
    """Bring the three databases to the newest schema; a line on each."""
    lines = []
    for name, url in databases(settings).items():
        store = Store(url, environment.clock)
        before, after = migrations.upgrade(store.engine, name)
        lines.append(f"{name}: {before or 'empty'} -> {after}")
        store.engine.dispose()
    return lines


def databases(settings: Settings) -> dict[str, str]:
    """URLs by the name of their schema."""
    return {
        "mesh": settings.database_url,
        "proxy": settings.proxy_database_url,
        "vault": settings.vault_url,
    }


@asynccontextmanager
async def run(
    settings: Settings,
    secrets: Secrets,
    environment: Environment,
    names: tuple[str, ...] = SERVICES,
) -> AsyncIterator[Running]:
    """The named services, started in order; everything is stopped and closed at the end."""
    running = Running()
    authenticates = authenticator(settings, secrets)
    wakeups = InProcessWakeups()
    async with AsyncExitStack() as stack:
        stores: dict[str, Store] = {}

        def store(url: str) -> Store:
            if url not in stores:
                stores[url] = Store(url, environment.clock)
                stack.push_async_callback(stores[url].close)
            return stores[url]

        token = secrets(settings.service_token) or "" if settings.service_token else ""
        vault = Vault(store(settings.vault_url), VaultKeys.parse(settings.vault_keys), environment)
        if "vendor-proxy" in names:
            stack.enter_context(_only_one_proxy(settings.proxy_database_url))
        if {"intake", "vendor-proxy"} & set(names):
            await vault.prove(Hasher(settings.hash_key_bytes()))
        if "aggregator" in names:
            aggregator = AggregatorApp(
                settings, environment, store(settings.database_url), wakeups, authenticates
            )
            running.aggregator = aggregator.address
            settings = settings.model_copy(update={"aggregator_addr": aggregator.address})
            stack.push_async_callback(aggregator.stop)
            await aggregator.start()
        if "vendor-proxy" in names:
            proxy = VendorProxyApp(
                settings,
                environment,
                store(settings.proxy_database_url),
                vault,
                authenticates,
                secrets,
                token,
            )
            running.vendor_proxy = proxy.address
            settings = settings.model_copy(update={"vendor_proxy_addr": proxy.address})
            stack.push_async_callback(proxy.stop)
            await proxy.start()
            running.receipts = proxy.receipts_address
        if "dispatcher" in names:
            dispatcher = DispatcherApp(
                settings, environment, store(settings.database_url), wakeups, authenticates, token
            )
            running.dispatcher = dispatcher.address
            stack.push_async_callback(dispatcher.stop)
            await dispatcher.start()
        if "intake" in names:
            intake = IntakeApp(
                settings, environment, store(settings.database_url), vault, wakeups, authenticates
            )
            running.intake = intake.address
            stack.push_async_callback(intake.stop)
            await intake.start()
        yield running


@contextmanager
def _only_one_proxy(url: str) -> Iterator[None]:
    """Hold a lock beside an embedded ledger: two proxies would each give out the whole limit."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        yield
        return
    with open(f"{parsed.database}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsError(
                f"Another vendor proxy runs on {parsed.database}, and two would each give out the "
                "whole limit of a vendor. Stop it, or name another --data folder."
            ) from error
        yield


async def until_signalled() -> None:
    """Wait for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def check_addresses(settings: Settings) -> None:
    """Raises SettingsError where a service would listen to strangers without callers."""
    for field in ("intake_addr", "dispatcher_addr", "vendor_proxy_addr", "aggregator_addr"):
        address = getattr(settings, field)
        if not settings.callers and not is_loopback(address):
            raise SettingsError(
                f"{field}: {address} is not loopback and no caller is declared; "
                "declare callers with tokens, or listen on 127.0.0.1"
            )
