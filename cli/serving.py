"""Commands that run until they are stopped: up, serve, vendor-sim, models.

Receives addresses and a data folder. Hands on running servers; SIGTERM and SIGINT end them
in order.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli import processes, vendor_process
from cli.console import (
    ConfigOption,
    DataOption,
    fail,
    log_to_stderr,
    out,
    run,
    settings_of,
)
from cli.workspace import DEFAULT_DATA, open_workspace
from kernel.environment import Environment
from kernel.store import migrations
from kernel.store.transaction import Store


def up(data: DataOption = DEFAULT_DATA, config: ConfigOption = None) -> None:
    """All four services in one process, on SQLite; nothing else to install."""
    log_to_stderr()
    workspace, settings = settings_of(data, config)
    environment = Environment()

    async def work() -> None:
        processes.check_addresses(settings)
        for line in processes.upgrade(settings, environment):
            out.print(f"schema {line}", markup=False)
        async with processes.run(settings, workspace.secret, environment) as running:
            out.print(
                f"ready: intake {running.intake}, dispatcher {running.dispatcher}, vendor proxy "
                f"{running.vendor_proxy} (receipts {running.receipts}), aggregator "
                f"{running.aggregator}; data in {data}",
                markup=False,
            )
            await processes.until_signalled()
            out.print("stopping: no new work, open calls get their time")

    run(work())


def serve(
    service: Annotated[str, typer.Argument(help=" | ".join(processes.SERVICES))],
    data: DataOption = DEFAULT_DATA,
    config: ConfigOption = None,
) -> None:
    """One service in one process; run `sluice db upgrade` first."""
    if service not in processes.SERVICES:
        raise typer.BadParameter(f"one of {', '.join(processes.SERVICES)}")
    log_to_stderr()
    workspace, settings = settings_of(data, config)
    environment = Environment()

    async def work() -> None:
        processes.check_addresses(settings)
        for name, url in processes.databases(settings).items():
            store = Store(url, environment.clock)
            migrations.check(store.engine, name)
            store.engine.dispose()
        async with processes.run(
            settings, workspace.secret, environment, names=(service,)
        ) as running:
            address = getattr(running, service.replace("-", "_"))
            out.print(f"ready: {service} {address}", markup=False)
            await processes.until_signalled()

    run(work())


def vendor_sim(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 7200,
    data: DataOption = DEFAULT_DATA,
    faults: Annotated[bool, typer.Option(help="Misbehave as in the demo.")] = False,
    bare: Annotated[bool, typer.Option(help="Play no vendor until told over HTTP.")] = False,
) -> None:
    """The scripted vendors: a real HTTP server with a ledger of what really happened."""
    log_to_stderr()

    async def work() -> None:
        environment = Environment()
        secret = "" if bare else open_workspace(data).keys["receipts"]
        bodies = {} if bare else vendor_process.controls(secret, faults=faults)
        simulator = await vendor_process.start(port, bodies, environment)
        played = ", ".join(bodies) or "none yet (PUT /_control/{vendor})"
        print(f"http://127.0.0.1:{simulator.port} plays {played}", flush=True)  # noqa: T201
        try:
            await processes.until_signalled()
        finally:
            await simulator.stop()

    run(work())


def models(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 7210,
) -> None:
    """Real local models for text and images, behind /v1/moderations."""
    log_to_stderr()
    from vendors.models.errors import ModelsMissingError
    from vendors.models.server import serve as serve_models

    async def work() -> None:
        try:
            server = await serve_models(port, Environment())
        except ModelsMissingError as missing:
            fail(str(missing))
        out.print(f"http://127.0.0.1:{server.port}/v1/moderations", markup=False)
        try:
            await processes.until_signalled()
        finally:
            await server.stop()

    run(work())


def upgrade(data: DataOption = DEFAULT_DATA, config: ConfigOption = None) -> None:
    """Bring all databases to the newest schema."""
    _, settings = settings_of(data, config)

    async def work() -> list[str]:
        return processes.upgrade(settings, Environment())

    for line in run(work()):
        out.print(line, markup=False)
