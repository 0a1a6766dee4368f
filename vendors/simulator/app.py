"""Receives a port and an environment; hands on the running simulator, and stops it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from kernel.environment import Environment
from vendors.simulator.courier import Courier
from vendors.simulator.server import Server

BACKLOG = 1_024
RECEIVER_TIMEOUT_SECONDS = 10
STOP_GRACE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RunningSimulator:
    """A simulator that listens on `port` until it is stopped."""

    port: int
    _exits: AsyncExitStack

    async def stop(self) -> None:
        """Close the port, cut hanging calls and cancel all jobs and receipts."""
        await self._exits.aclose()


async def serve(port: int, environment: Environment, host: str = "127.0.0.1") -> RunningSimulator:
    """Listen on `host:port`; port 0 takes a free one. Raises OSError where it is taken."""
    async with AsyncExitStack() as exits:
        timeout = aiohttp.ClientTimeout(total=RECEIVER_TIMEOUT_SECONDS)
        session = await exits.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        server = Server(environment, Courier(environment, session))
        runner = web.AppRunner(
            server.application(),
            access_log=None,
            handler_cancellation=True,  # a call that hangs ends when its client leaves
            shutdown_timeout=STOP_GRACE_SECONDS,
        )
        await runner.setup()
        exits.push_async_callback(server.close)  # after the clean-up: no call can come any more
        exits.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        opened = exits.pop_all()
    return RunningSimulator(runner.addresses[0][1], opened)
