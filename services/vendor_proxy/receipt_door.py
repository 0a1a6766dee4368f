"""The HTTP door for receipts: `POST /receipts/{vendor}`.

Receives vendors' HTTP requests. Hands their raw bytes to the core; answers 2xx only for what
is stored, and says nothing of why something was refused.
"""

from __future__ import annotations

import socket

import structlog
from aiohttp import web

from kernel.errors import InvalidArgument, NotFound, StoreAway, Unauthenticated
from services.vendor_proxy.core import ProxyCore
from services.vendor_proxy.receipts import BODY_BYTES

_log = structlog.get_logger("sluice.receipts")
_BACKLOG = 1024


class ReceiptDoor:
    """An HTTP server on a socket of its own; `address` is the bound host:port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
        self._runner: web.AppRunner | None = None
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"

    async def start(self, core: ProxyCore) -> None:
        """Serve until stopped."""
        application = web.Application(client_max_size=BODY_BYTES)

        async def take(request: web.Request) -> web.Response:
            return await _take(core, request)

        application.router.add_post("/receipts/{vendor}", take)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def stop(self) -> None:
        """Let open requests end, and close."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._socket.close()


async def _take(core: ProxyCore, request: web.Request) -> web.Response:
    # The size limit comes first: a larger body is not even read to its end.
    body = await request.read()
    try:
        await core.ingest_receipt(request.match_info["vendor"], request.headers, body)
    except Unauthenticated:
        return web.Response(status=401)
    except NotFound:
        return web.Response(status=404)
    except InvalidArgument:
        return web.Response(status=400)
    except StoreAway:
        return web.Response(status=503)
    except Exception as error:
        # The type only: an exception's text can hold what must not be logged.
        _log.error("receipt_failed", error=type(error).__name__)
        return web.Response(status=500)
    return web.Response(status=204)
