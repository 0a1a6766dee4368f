"""The intake as a running service: core, relay and vault sweep behind one gRPC server.

Receives settings and opened stores, which stay their owner's to close. Hands on an address
that serves. It starts as a whole or not at all, and stops in order: health first, then the
calls under way, then the loops.
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from kernel.decision import Policy
from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.runtime.lifecycle import Loops
from kernel.runtime.rpc import Authenticator, RpcServer
from kernel.runtime.settings import Settings, SettingsError
from kernel.runtime.vault import Vault
from kernel.runtime.wakeups import Wakeups
from kernel.store import policies
from kernel.store.transaction import Store, Tx
from mesh.v1 import intake_pb2_grpc
from services.intake.core import IntakeCore
from services.intake.relay import Relay
from services.intake.servicer import SERVICE_NAME, IntakeServicer

SWEEP_SECONDS = 60.0
"""How often expired payloads are deleted."""

POLICY_AUTHOR = "settings"


class IntakeApp:
    """One replica of the intake."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        store: Store,
        vault: Vault,
        wakeups: Wakeups,
        authenticator: Authenticator,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._store = store
        self._vault = vault
        self._authenticator = authenticator
        owner = f"intake-{environment.new_id()}"
        self._relay = Relay(store, wakeups, environment, owner, settings.poll_seconds)
        self._loops = Loops("intake", environment)
        self._server: RpcServer | None = None
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

    @property
    def address(self) -> str:
        """The bound host:port, once started."""
        if self._server is None:
            raise RuntimeError("the intake is not started")
        return self._server.address

    async def start(self) -> None:
        """Store new policies, then serve.

        Raises SettingsError when a policy version is stored with another body, StoreAway, or
        RuntimeError when the address is taken.
        """
        for policy_id, declared in self._settings.policies.items():
            await self._keep_policy(declared.policy(policy_id))
        servicer = IntakeServicer(self.core)
        server = RpcServer(
            [SERVICE_NAME],
            lambda on: intake_pb2_grpc.add_IntakeServiceServicer_to_server(servicer, on),
            self._settings.intake_addr,
            self._authenticator,
            self._environment,
        )
        self._server = server
        await server.start()
        self._loops.on_health = server.set_serving
        self._loops.start("relay", self._relay.one_round)
        self._loops.start("vault-expiry", self._sweep)

    async def stop(self) -> None:
        """Say NOT_SERVING, let calls under way end within `drain_seconds`, stop the loops."""
        if self._server is not None:
            await self._server.stop(self._settings.drain_seconds)
        await self._loops.stop()

    async def _keep_policy(self, policy: Policy) -> None:
        try:
            stored = await self._store.write(_insert_if_new, policy)
        except IntegrityError:  # another replica, at the same time
            stored = await self._store.write(_insert_if_new, policy)
        if stored != policy:
            raise SettingsError(
                f"policies.{policy.policy_id}: version {policy.version} is stored with another "
                "body, and versions are never edited; raise its version"
            )

    async def _sweep(self) -> None:
        await self._vault.expire()
        await self._environment.clock.sleep(SWEEP_SECONDS)


def _insert_if_new(tx: Tx, policy: Policy) -> Policy:
    """The version as it is stored, after storing it where there was none."""
    stored = policies.get(tx, policy.policy_id, policy.version)
    if stored is not None:
        return stored.policy
    policies.insert(tx, policy, POLICY_AUTHOR)
    return policy
