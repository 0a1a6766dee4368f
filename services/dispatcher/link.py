"""The gateway over gRPC: one channel to the vendor proxy.

Receives a channel's stub. Hands on `Gateway`. Retries are off on this path: the dispatcher
is the one layer that retries.
"""

from __future__ import annotations

import grpc

from kernel.attempt import (
    CallOutcome,
    CallRequest,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    QueryOutcome,
    Resend,
)
from kernel.runtime import wire
from mesh.v1 import vendor_proxy_pb2 as proxy
from mesh.v1.vendor_proxy_pb2_grpc import VendorProxyServiceStub
from services.dispatcher.gateway import LinkLostError, Occupied

# The proxy answered, and refused before anything was begun: no link was lost.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


class ProxyLink:
    """`Gateway` over a gRPC channel; time-outs in seconds."""

    def __init__(
        self, channel: grpc.aio.Channel, execute_timeout: float, ask_timeout: float = 15.0
    ) -> None:
        self._stub = VendorProxyServiceStub(channel)
        self._execute_timeout = execute_timeout
        self._ask_timeout = ask_timeout

    async def execute(self, request: CallRequest) -> CallOutcome:
        """Execute; raises LinkLostError."""
        message = wire.call_request_message(request)
        try:
            answer = await self._stub.Execute(message, timeout=self._execute_timeout)
        except grpc.aio.AioRpcError as error:
            reason = f"PROXY_{error.code().name}"
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return CallOutcome(Outcome.REJECTED, reason)
            if error.code() in _REFUSALS:
                return CallOutcome(Outcome.NOT_SENT, reason)
            raise LinkLostError(error.code().name) from error
        return wire.call_outcome(answer)

    async def fence(
        self, idempotency_key: str, vendor: str, attempt: int
    ) -> tuple[FenceAnswer, CallOutcome | None]:
        """FenceCall; raises LinkLostError."""
        request = proxy.FenceCallRequest(
            idempotency_key=idempotency_key, vendor=vendor, attempt=attempt
        )
        try:
            answer = await self._stub.FenceCall(request, timeout=self._ask_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                return FenceAnswer.UNKNOWN, None
            raise LinkLostError(error.code().name) from error
        name = proxy.FenceCallResponse.Answer.Name(answer.answer).removeprefix("ANSWER_")
        call = wire.call_outcome(answer.response) if answer.HasField("response") else None
        return FenceAnswer(name), call

    async def query(self, idempotency_key: str, vendor: str) -> QueryOutcome:
        """QueryStatus; raises LinkLostError."""
        request = proxy.QueryStatusRequest(idempotency_key=idempotency_key, vendor=vendor)
        try:
            answer = await self._stub.QueryStatus(request, timeout=self._ask_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                return QueryOutcome(QueryAnswer.CANNOT_TELL, reason=f"PROXY_{error.code().name}")
            raise LinkLostError(error.code().name) from error
        kinds = proxy.QueryStatusResponse
        resend = kinds.Resend.Name(answer.resend).removeprefix("RESEND_")
        return QueryOutcome(
            QueryAnswer(kinds.Answer.Name(answer.answer).removeprefix("ANSWER_")),
            wire.call_outcome(answer.response) if answer.HasField("response") else None,
            answer.retry_after_seconds,
            Resend(resend) if resend in Resend.__members__ else Resend.REFUSED,
            answer.reason,
        )

    async def occupied(self) -> dict[str, Occupied]:
        """ListLimits; raises LinkLostError."""
        try:
            answer = await self._stub.ListLimits(
                proxy.ListLimitsRequest(), timeout=self._ask_timeout
            )
        except grpc.aio.AioRpcError as error:
            raise LinkLostError(error.code().name) from error
        return {
            each.pool: Occupied(each.concurrency, each.in_flight + each.quarantined)
            for each in answer.limits
        }

    async def cancel(self, idempotency_key: str, vendor: str) -> bool:
        """CancelCall; raises LinkLostError."""
        request = proxy.CancelCallRequest(idempotency_key=idempotency_key, vendor=vendor)
        try:
            answer = await self._stub.CancelCall(request, timeout=self._ask_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                return False
            raise LinkLostError(error.code().name) from error
        return bool(answer.answer == proxy.CancelCallResponse.ANSWER_CANCELLED)
