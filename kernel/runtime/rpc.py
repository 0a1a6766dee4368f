"""gRPC at the edge of every service: servers, channels, callers, and errors as callers see them.

Receives servicers and `Problem`s. Hands on a running server whose every failure is one mapped
status with `google.rpc.ErrorInfo` (CONTRACT.md, bad input) and leaks no internals.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from kernel import errors
from kernel.environment import Environment
from kernel.limits import RequestLimits

_log = structlog.get_logger("sluice.rpc")
DOMAIN = "sluice"

_STATUS: dict[type[errors.Problem], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.RequestMismatch: grpc.StatusCode.ALREADY_EXISTS,
    errors.LostRace: grpc.StatusCode.ABORTED,
    errors.NotAllowedInState: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.StoreAway: grpc.StatusCode.UNAVAILABLE,
}

# A request may be as large as the limits allow, plus room for its envelope.
_MESSAGE_BYTES = RequestLimits().message_bytes + 1024 * 1024
_VIOLATION_BYTES = 3 * 1024
_KEEPALIVE_MILLIS = 30_000
_SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    # Clients ping every 30 s; a server that allows less would send GOAWAY during long calls.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MILLIS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
]
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    # Exactly one layer retries outside calls, and it is not the channel.
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MILLIS),
    ("grpc.keepalive_timeout_ms", 10_000),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `tenants` None: every tenant. Roles: submit, read, operate, review, gateway."""

    name: str
    tenants: frozenset[str] | None = None
    roles: frozenset[str] = frozenset({"submit", "read", "operate", "review", "gateway"})

    def require(self, role: str, tenant_id: str | None = None) -> None:
        """Raises PermissionDenied unless the caller has `role`, and may act for the tenant."""
        if role not in self.roles:
            raise errors.PermissionDenied(
                f"Caller {self.name} lacks the role {role}; nothing was done.", role=role
            )
        if tenant_id is not None and self.tenants is not None and tenant_id not in self.tenants:
            raise errors.PermissionDenied(
                f"Caller {self.name} may not act for this tenant; nothing was done."
            )

    def require_one_of(self, *roles: str) -> None:
        """Raises PermissionDenied unless the caller has one of `roles`."""
        if self.roles.isdisjoint(roles):
            raise errors.PermissionDenied(
                f"Caller {self.name} has none of the roles {', '.join(roles)}; nothing was done.",
                role=roles[0],
            )

    def require_every_tenant(self) -> None:
        """Raises PermissionDenied unless the caller may act for all tenants."""
        if self.tenants is not None:
            raise errors.PermissionDenied(
                f"Caller {self.name} may act for some tenants only, and this concerns all; "
                "nothing was done."
            )

    def speaking_for(self, person: str) -> str:
        """Who is recorded: the caller, and before it whom it says that it speaks for, if any."""
        if not person:
            return self.name
        return person if self == LOCAL else f"{person} via {self.name}"


LOCAL = Caller("local")
_caller: ContextVar[Caller] = ContextVar("caller", default=LOCAL)


def current_caller() -> Caller:
    """The authenticated caller of the call under way."""
    return _caller.get()


class Authenticator:
    """Callers by bearer token; where none is declared everyone is `local` (loopback only)."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._by_token = dict(callers)

    @property
    def open(self) -> bool:
        """Whether no caller is declared."""
        return not self._by_token

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Raises Unauthenticated when the token is missing or unknown."""
        if self.open:
            return LOCAL
        for name, value in metadata:
            if name == "authorization" and isinstance(value, str):
                scheme, _, token = value.partition(" ")
                if scheme.lower() == "bearer" and token in self._by_token:
                    return self._by_token[token]
        raise errors.Unauthenticated(
            "No valid bearer token came with the call; send authorization: Bearer <token>."
        )


def problem_status(problem: errors.Problem) -> status_pb2.Status:
    """The rich status of a problem: ErrorInfo, and BadRequest or RetryInfo where they apply."""
    code = next(
        (code for kind, code in _STATUS.items() if isinstance(problem, kind)),
        grpc.StatusCode.INTERNAL,
    )
    status = status_pb2.Status(code=code.value[0], message=problem.message)
    info = error_details_pb2.ErrorInfo(
        reason=problem.reason, domain=DOMAIN, metadata=problem.metadata
    )
    details: list[Message] = [info]
    if isinstance(problem, errors.InvalidArgument):
        details.append(_bad_request(problem.violations))
    if isinstance(problem, errors.Overloaded):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(problem.retry_after_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _bad_request(violations: Sequence[errors.FieldViolation]) -> error_details_pb2.BadRequest:
    """As many violations as fit, and how many more there are.

    A status travels in trailing metadata, of which clients take 8 KiB: what is larger would
    reach them as RESOURCE_EXHAUSTED, naming nothing.
    """
    named = error_details_pb2.BadRequest()
    for at, each in enumerate(violations):
        one = error_details_pb2.BadRequest.FieldViolation(
            field=each.field, description=each.description
        )
        if named.ByteSize() + one.ByteSize() > _VIOLATION_BYTES:
            named.field_violations.add(
                field="...", description=f"{len(violations) - at} more fields are bad"
            )
            break
        named.field_violations.append(one)
    return named


class _Edge(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Authenticates each call and maps whatever a handler raises."""

    def __init__(self, authenticator: Authenticator, environment: Environment) -> None:
        self._authenticator = authenticator
        self._environment = environment

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or not method.startswith("/mesh."):
            return handler
        wrap = self._stream if handler.response_streaming else self._unary
        asks, tells = (
            "stream" if streams else "unary"
            for streams in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, f"{asks}_{tells}")
        return getattr(grpc, f"{asks}_{tells}_rpc_method_handler")(
            wrap(inner, method), handler.request_deserializer, handler.response_serializer
        )

    def _unary(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                _caller.set(self._authenticator.caller(context.invocation_metadata() or ()))
                return await inner(request, context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except BaseException as error:
                await self._abort(context, error, method)

        return call

    def _stream(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                _caller.set(self._authenticator.caller(context.invocation_metadata() or ()))
                async for message in inner(request, context):
                    yield message
            except (asyncio.CancelledError, grpc.aio.AbortError, GeneratorExit):
                raise
            except BaseException as error:
                await self._abort(context, error, method)

        return call

    async def _abort(self, context: Any, error: BaseException, method: str) -> None:
        if isinstance(error, errors.Problem):
            await context.abort_with_status(rpc_status.to_status(problem_status(error)))
        error_id = self._environment.new_id()
        # Frames and the type, never the text: it can hold what must not be logged.
        frames = "".join(traceback.format_tb(error.__traceback__, limit=-8))
        _log.error(
            "call_failed",
            method=method,
            error_id=error_id,
            error=type(error).__name__,
            frames=frames,
        )
        await context.abort(
            grpc.StatusCode.INTERNAL,
            f"This call failed by a fault of ours; error id {error_id}. "
            "What was accepted before is safe; send the same request again.",
        )


class AddressTakenError(RuntimeError):
    """A server cannot listen where it is told to."""


class RpcServer:
    """One service's gRPC server with health checking and reflection."""

    def __init__(
        self,
        service_names: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        address: str,
        authenticator: Authenticator,
        environment: Environment,
    ) -> None:
        if authenticator.open and not is_loopback(address):
            raise ValueError(
                f"{address} is not loopback and no caller is declared: "
                "declare callers with tokens, or listen on 127.0.0.1"
            )
        self._server = grpc.aio.server(
            interceptors=[_Edge(authenticator, environment)], options=_SERVER_OPTIONS
        )
        register(self._server)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = tuple(service_names)
        reflection.enable_server_reflection(
            (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressTakenError(
                f"{address} cannot be listened on: another process has it, or it is not this "
                "machine's. Stop that process, or set another address."
            ) from error
        self.address = f"{address.rsplit(':', 1)[0]}:{self.port}"

    async def start(self) -> None:
        """Serve, and say so to health checks."""
        await self._server.start()
        await self.set_serving(True)

    async def set_serving(self, serving: bool) -> None:
        """What health checks are told."""
        state = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._names):
            await self._health.set(name, state)

    async def begin_shutdown(self) -> None:
        """Say NOT_SERVING for good, still serving: a later `set_serving` says nothing more."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING first, refuse new calls, let those under way end within the grace."""
        await self.begin_shutdown()
        await self._server.stop(grace_seconds)


def is_loopback(address: str) -> bool:
    """Whether host:port is on this machine only."""
    host = address.rsplit(":", 1)[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")


def open_channel(address: str, token: str = "") -> grpc.aio.Channel:
    """A channel to one service; `token` is presented with every call."""
    kinds = (_BearerUnaryUnary, _BearerUnaryStream, _BearerStreamUnary, _BearerStreamStream)
    interceptors: list[Any] = [kind(token) for kind in kinds] if token else []
    return grpc.aio.insecure_channel(
        address, options=_CHANNEL_OPTIONS, interceptors=interceptors or None
    )


class _Bearer:
    """Adds the caller's token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def _present(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(client_call_details.metadata or ()))
        metadata.add("authorization", f"Bearer {self._token}")
        return await continuation(client_call_details._replace(metadata=metadata), request)


# grpc.aio takes an interceptor for one kind of call only, whatever else it could intercept.
class _BearerUnaryUnary(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_unary = _Bearer._present


class _BearerUnaryStream(_Bearer, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_stream = _Bearer._present


class _BearerStreamUnary(_Bearer, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_unary = _Bearer._present  # type: ignore[assignment]  # called by position


class _BearerStreamStream(_Bearer, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_stream = _Bearer._present  # type: ignore[assignment]  # called by position
