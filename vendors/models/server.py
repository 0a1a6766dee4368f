"""Receives HTTP requests; hands them to the models in threads, and the scores back.

No key is asked for and `Idempotency-Key` is not honoured, as with the real service: a call
has no side effect but its cost, so sending it twice costs twice and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import orjson
import structlog
from aiohttp import web

from kernel.environment import MICROS_PER_SECOND, Environment
from vendors.models.detectors import Detectors
from vendors.models.errors import RequestRefusedError
from vendors.models.moderation import JUDGES, moderate

MAX_BODY_BYTES = 20 * 1024 * 1024
"""Bytes of one request body, after decompression."""

THREADS = 2
"""Threads that run models, and image detectors loaded."""

MAX_WAITING = 64
"""Requests read, waiting or running at once; further ones get 429 at once."""

RETRY_AFTER_SECONDS = 1

BODY_TIMEOUT_SECONDS = 60.0
"""The longest that a client may take to send its body."""

STOP_SECONDS = 10.0
"""The longest that a stop waits for calls in flight."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RunningModels:
    """The server while it runs: `port` is the TCP port that it listens on."""

    port: int
    _runner: web.AppRunner = field(repr=False)
    _threads: ThreadPoolExecutor = field(repr=False)

    async def stop(self) -> None:
        """Close the port, let calls in flight end, and free the models. May be repeated."""
        await self._runner.cleanup()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


async def serve(port: int, env: Environment, host: str = "127.0.0.1") -> RunningModels:
    """Load the models once, then listen. Who can connect can ask: once it listens, it is ready.

    Args:
        port: TCP port; 0 takes a free one.
        env: Clock and ids.
        host: Address to listen on. There is no authentication: keep it on loopback.

    Raises:
        ModelsMissingError: if the extra `models` is not installed.
        OSError: if the port is taken.
    """
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="models")
    runner: web.AppRunner | None = None
    try:
        loop = asyncio.get_running_loop()
        detectors = await loop.run_in_executor(threads, Detectors, THREADS)
        app = _Service(env, detectors, threads).application()
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        if runner is not None:
            await runner.cleanup()
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    return RunningModels(runner.addresses[0][1], runner, threads)


class _Service:
    """The handlers and the bound on what they take in."""

    def __init__(self, env: Environment, detectors: Detectors, threads: ThreadPoolExecutor) -> None:
        self._env = env
        self._detectors = detectors
        self._threads = threads
        self._started_seconds = env.clock.now_micros() // MICROS_PER_SECOND
        self._waiting = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.router.add_post("/v1/moderations", self.moderations)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        return app

    async def moderations(self, request: web.Request) -> web.Response:
        """`POST /v1/moderations`."""
        if self._waiting >= MAX_WAITING:
            raise RequestRefusedError(
                429,
                f"{MAX_WAITING} requests are waiting already: try again after Retry-After.",
                code="rate_limit_exceeded",
                kind="rate_limit_error",
            )
        self._waiting += 1
        try:
            body = await _read(request)
            answer = await asyncio.get_running_loop().run_in_executor(
                self._threads, moderate, body, self._detectors
            )
        finally:
            self._waiting -= 1
        return _json({"id": f"modr-{self._env.new_id()}", **answer})

    async def models(self, _: web.Request) -> web.Response:
        """`GET /v1/models`. `created` is when this process loaded them, epoch seconds."""
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._started_seconds,
                "owned_by": "sluice",
                "judges": sorted(kinds),
            }
            for name, kinds in JUDGES.items()
        ]
        return _json({"object": "list", "data": data})

    async def health(self, _: web.Request) -> web.Response:
        """`GET /health`: the models are loaded, since the port opens only after that."""
        return _json({"status": "ok", "waiting": self._waiting, "most_waiting": MAX_WAITING})


async def _read(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            return await request.read()
    except web.RequestPayloadError as error:
        raise RequestRefusedError(
            400, "The body does not unpack: check Content-Encoding and send it again."
        ) from error
    except TimeoutError as error:
        raise RequestRefusedError(
            408, f"The body did not arrive within {BODY_TIMEOUT_SECONDS:.0f} s: send it again."
        ) from error


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error in OpenAI's shape, none with a word of what was sent."""
    try:
        return await handler(request)
    except RequestRefusedError as refused:
        return _refusal(refused)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(
            RequestRefusedError(
                413,
                f"The body is over {MAX_BODY_BYTES} bytes: send less, or smaller images.",
                code="request_too_large",
            )
        )
    except web.HTTPException as error:
        return _refusal(
            RequestRefusedError(
                error.status,
                "Nothing answers here: use POST /v1/moderations, GET /v1/models or GET /health.",
                code="unknown_url" if error.status == 404 else None,
            ),
            {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {},
        )
    except Exception as error:
        _log.error("moderation_failed", error=type(error).__name__)
        return _refusal(
            RequestRefusedError(
                500, "The model failed on this input: try again later.", kind="server_error"
            )
        )


def _refusal(refused: RequestRefusedError, headers: dict[str, str] | None = None) -> web.Response:
    response = _json(refused.body(), refused.status)
    response.headers.update(headers or {})
    if refused.status == 429:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
