"""The intake as a process part: core, relay and vault sweep behind one gRPC server.

Receives settings and opened stores, which stay their owner's to close. Hands on a bound
address.
"""

from __future__ import annotations

from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.runtime.declared import store_policies
from kernel.runtime.lifecycle import Loops
from kernel.runtime.rpc import Authenticator, RpcServer
from kernel.runtime.settings import Settings
from kernel.runtime.vault import Vault
from kernel.runtime.wakeups import Wakeups
from kernel.store.transaction import Store
from mesh.v1 import intake_pb2_grpc
from services.intake.core import IntakeCore
from services.intake.relay import Relay
from services.intake.servicer import SERVICE_NAME, IntakeServicer

SWEEP_SECONDS = 60.0
"""How often expired payloads are deleted."""


class IntakeApp:
    """One intake; `address` is the bound host:port."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        store: Store,
        vault: Vault,
        wakeups: Wakeups,
        authenticator: Authenticator,
    ) -> None:
        self._drain_seconds = settings.drain_seconds
        self._declared = settings.declared_policies()
        self._environment = environment
        self._store = store
        self._vault = vault
        owner = f"intake-{environment.new_id()}"
        self._relay = Relay(store, wakeups, environment, owner, settings.poll_seconds)
        self.core = IntakeCore(
            store,
            vault,
            Hasher(settings.hash_key_bytes()),
            settings.planning,
            settings.pool_profiles(),
            environment,
            wakeups,
            self._relay.nudge,
        )
        self.loops = Loops("intake", environment)
        servicer = IntakeServicer(self.core)
        self._server = RpcServer(
            [SERVICE_NAME],
            lambda server: intake_pb2_grpc.add_IntakeServiceServicer_to_server(servicer, server),
            settings.intake_addr,
            authenticator,
            environment,
        )
        self.address = self._server.address

    async def start(self) -> None:
        """Store the policies that settings declare, then serve.

        Raises SettingsError when a policy version is stored with another body, and StoreAway.
        """
        await store_policies(self._store, self._declared)
        await self._server.start()
        self.loops.on_health = self._server.set_serving
        self.loops.start("relay", self._relay.one_round)
        self.loops.start("vault-expiry", self._sweep)

    async def stop(self) -> None:
        """Say NOT_SERVING, accept no more and let calls under way end, then stop the loops.

        The loops last: what is accepted until the end is still told.
        """
        await self._server.begin_shutdown()
        await self._server.stop(self._drain_seconds)
        await self.loops.stop()

    async def _sweep(self) -> None:
        await self._vault.expire()
        await self._environment.clock.sleep(SWEEP_SECONDS)
