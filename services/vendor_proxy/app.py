"""The vendor proxy as a process part: core, servicer, servers, started and stopped in order.

Receives settings and what processes share. Hands on bound addresses.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.limits import IncarnationBounds
from kernel.runtime.rpc import Authenticator, RpcServer, open_channel
from kernel.runtime.settings import Settings
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile, VendorProfile
from mesh.v1 import vendor_proxy_pb2
from mesh.v1.vendor_proxy_pb2_grpc import add_VendorProxyServiceServicer_to_server
from services.vendor_proxy.adapters import Adapter
from services.vendor_proxy.adapters.http import Http
from services.vendor_proxy.adapters.openai_moderations import OpenAiModerationsAdapter
from services.vendor_proxy.adapters.replies import Secrets
from services.vendor_proxy.adapters.sluice import SluiceAdapter
from services.vendor_proxy.core import ProxyCore
from services.vendor_proxy.forwarder import ReceiptSink
from services.vendor_proxy.link import AggregatorLink
from services.vendor_proxy.receipt_door import ReceiptDoor
from services.vendor_proxy.sending import Vault
from services.vendor_proxy.servicer import VendorProxyServicer


class ProxyParts:
    """A core with its adapters and its door for receipts, from plain values.

    `receipt_base_url` is what vendors are told to send receipts to, without the path; empty
    means the door's own address.
    """

    def __init__(
        self,
        *,
        store: Store,
        environment: Environment,
        vault: Vault,
        hasher: Hasher,
        vendors: Mapping[str, VendorProfile],
        pools: Mapping[str, PoolProfile],
        secrets: Secrets,
        sink: ReceiptSink,
        bounds: IncarnationBounds,
        receipts_address: str = "127.0.0.1:0",
        receipt_base_url: str = "",
    ) -> None:
        self._door = ReceiptDoor(receipts_address)
        self.receipts_address = self._door.address
        base = (receipt_base_url or f"http://{self._door.address}").rstrip("/")
        self._https: list[Http] = []
        adapters = {}
        for name, profile in vendors.items():
            http = Http(environment, bounds.write_seconds)
            self._https.append(http)
            url = f"{base}/receipts/{name}"
            adapters[name] = _adapter(profile, http, environment, secrets, url)
        self.core = ProxyCore(
            store=store,
            environment=environment,
            vault=vault,
            hasher=hasher,
            vendors=vendors,
            pools=pools,
            adapters=adapters,
            secrets=secrets,
            sink=sink,
            bounds=bounds,
        )

    async def start(self) -> None:
        """Take the lease, then open the door."""
        await self.core.start()
        await self._door.start(self.core)

    async def stop(self, grace_seconds: float) -> None:
        """Let open calls settle, then close the door and every connection."""
        await self.core.stop(grace_seconds)
        await self._close()

    async def drop(self) -> None:
        """End as a crash would: nothing is settled."""
        await self.core.drop()
        await self._close()

    async def _close(self) -> None:
        await self._door.stop()
        for http in self._https:
            await http.close()


class VendorProxyApp:
    """One vendor proxy; `address` and `receipts_address` are the bound host:port."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        store: Store,
        vault: Vault,
        authenticator: Authenticator,
        secrets: Secrets,
        service_token: str = "",
    ) -> None:
        self._drain_seconds = settings.drain_seconds
        self._channel = open_channel(settings.aggregator_addr, service_token)
        self._parts = ProxyParts(
            store=store,
            environment=environment,
            vault=vault,
            hasher=Hasher(settings.hash_key_bytes()),
            vendors=settings.vendor_profiles(),
            pools=settings.pool_profiles(),
            secrets=secrets,
            sink=AggregatorLink(self._channel),
            bounds=settings.incarnation_bounds(),
            receipts_address=settings.vendor_proxy_http_addr,
            receipt_base_url=settings.receipt_base_url,
        )
        self.core = self._parts.core
        self.receipts_address = self._parts.receipts_address
        servicer = VendorProxyServicer(self.core)
        self._server = RpcServer(
            [vendor_proxy_pb2.DESCRIPTOR.services_by_name["VendorProxyService"].full_name],
            lambda server: add_VendorProxyServiceServicer_to_server(servicer, server),
            settings.vendor_proxy_addr,
            authenticator,
            environment,
        )
        self.address = self._server.address

    async def start(self) -> None:
        """Take the lease, open the door for receipts, then serve."""
        self.core.loops.on_health = self._server.set_serving
        await self._parts.start()
        await self._server.start()

    async def stop(self) -> None:
        """Say NOT_SERVING, let open calls settle, end."""
        await self._server.set_serving(False)
        await self._parts.stop(self._drain_seconds)
        await self._server.stop(1.0)
        await self._channel.close(None)

    async def drop(self) -> None:
        """End as a crash would: callers lose their link, and nothing is settled."""
        await self._server.stop(0.0)
        await self._parts.drop()
        await self._channel.close(None)


def _adapter(
    profile: VendorProfile,
    http: Http,
    environment: Environment,
    secrets: Secrets,
    receipt_url: str,
) -> Adapter:
    match profile.adapter:
        case "sluice":
            return SluiceAdapter(profile, http, environment, secrets, receipt_url)
        case "openai-moderations":
            return OpenAiModerationsAdapter(profile, http, environment, secrets)
        case _:
            raise ValueError(f"vendor {profile.name}: there is no adapter {profile.adapter!r}")
