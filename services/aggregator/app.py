"""The aggregator as a process part: core, servicer, server, started and stopped in order.

Receives settings and what processes share. Hands on a bound address.
"""

from __future__ import annotations

from kernel.environment import Environment
from kernel.runtime.declared import store_policies
from kernel.runtime.lifecycle import Loops
from kernel.runtime.rpc import Authenticator, RpcServer
from kernel.runtime.settings import Settings
from kernel.runtime.wakeups import Wakeups
from kernel.store.transaction import Store
from mesh.v1 import aggregator_pb2
from mesh.v1.aggregator_pb2_grpc import add_AggregatorServiceServicer_to_server
from services.aggregator.core import AggregatorCore
from services.aggregator.servicer import AggregatorServicer


class AggregatorApp:
    """One aggregator; `address` is the bound host:port."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        store: Store,
        wakeups: Wakeups,
        authenticator: Authenticator,
    ) -> None:
        self._drain_seconds = settings.drain_seconds
        self._store = store
        self._declared = settings.declared_policies()
        self.core = AggregatorCore(
            store,
            environment,
            wakeups,
            poll_seconds=settings.poll_seconds,
            receipt_due_seconds={
                name: vendor.receipt_due_seconds for name, vendor in settings.vendors.items()
            },
        )
        self.loops = Loops("aggregator", environment)
        servicer = AggregatorServicer(self.core)
        self._server = RpcServer(
            [aggregator_pb2.DESCRIPTOR.services_by_name["AggregatorService"].full_name],
            lambda server: add_AggregatorServiceServicer_to_server(servicer, server),
            settings.aggregator_addr,
            authenticator,
            environment,
        )
        self.address = self._server.address

    async def start(self) -> None:
        """Store the policies that settings declare, serve, then begin to decide.

        Raises SettingsError when a policy version is stored with another body, and StoreAway.
        """
        await store_policies(self._store, self._declared)
        await self._server.start()
        self.loops.on_health = self._server.set_serving
        self.loops.start("decide", self.core.run_round)

    async def stop(self) -> None:
        """Say NOT_SERVING, decide no more, end the watches, let open calls end."""
        await self._server.begin_shutdown()
        await self.loops.stop()
        self.core.stop_watching()
        await self._server.stop(self._drain_seconds)
