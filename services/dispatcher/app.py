"""The dispatcher as a process part: core, servicer, server, started and stopped in order.

Receives settings and what processes share. Hands on a bound address.
"""

from __future__ import annotations

import grpc

from kernel.environment import Environment
from kernel.runtime.rpc import Authenticator, RpcServer, open_channel
from kernel.runtime.settings import Settings
from kernel.runtime.wakeups import Wakeups
from kernel.store.transaction import Store
from mesh.v1 import dispatcher_pb2
from mesh.v1.dispatcher_pb2_grpc import add_DispatcherServiceServicer_to_server
from services.dispatcher.core import DispatcherCore
from services.dispatcher.link import ProxyLink
from services.dispatcher.servicer import DispatcherServicer


class DispatcherApp:
    """One dispatcher; `address` is the bound host:port."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        store: Store,
        wakeups: Wakeups,
        authenticator: Authenticator,
        service_token: str = "",
    ) -> None:
        self._drain_seconds = settings.drain_seconds
        bounds = settings.lease_bounds()
        self._channel: grpc.aio.Channel = open_channel(settings.vendor_proxy_addr, service_token)
        self.core = DispatcherCore(
            store,
            ProxyLink(self._channel, bounds.execute_timeout_seconds),
            settings.pool_profiles(),
            environment,
            wakeups,
            bounds,
            poll_seconds=settings.poll_seconds,
        )
        prices = {name: vendor.price_micros for name, vendor in settings.vendors.items()}
        servicer = DispatcherServicer(self.core, prices)
        self._server = RpcServer(
            [dispatcher_pb2.DESCRIPTOR.services_by_name["DispatcherService"].full_name],
            lambda server: add_DispatcherServiceServicer_to_server(servicer, server),
            settings.dispatcher_addr,
            authenticator,
            environment,
        )
        self.address = self._server.address

    async def start(self) -> None:
        """Serve, then begin to claim."""
        await self._server.start()
        self.core.loops.on_health = self._server.set_serving
        self.core.start()

    async def stop(self) -> None:
        """Say NOT_SERVING, claim no more, let open calls settle, end."""
        await self._server.begin_shutdown()
        await self.core.stop(self._drain_seconds)
        await self._server.stop(1.0)
        await self._channel.close(None)
