"""VendorProxyService over gRPC: protos in, protos out, nothing decided here.

Receives requests of authenticated callers. Hands on the core's answers; calls are scoped by
the caller's name.
"""

from __future__ import annotations

from typing import Any

from kernel.attempt import CallOutcome
from kernel.errors import FieldViolation, InvalidArgument, PermissionDenied
from kernel.idempotency import idempotency_key
from kernel.runtime import wire
from kernel.runtime.rpc import Caller, current_caller
from kernel.store.calls import StoredCall
from kernel.store.proxy_schema import OPEN_END
from mesh.v1 import vendor_proxy_pb2 as pb
from mesh.v1.vendor_proxy_pb2_grpc import VendorProxyServiceServicer
from services.vendor_proxy import ledger
from services.vendor_proxy.core import Limit, ProxyCore


class VendorProxyServicer(VendorProxyServiceServicer):
    """The service's edge."""

    def __init__(self, core: ProxyCore) -> None:
        self._core = core

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse:  # noqa: N802
        """One call."""
        caller = current_caller()
        caller.require("gateway", request.tenant_id)
        if request.caller and request.caller != caller.name:
            raise PermissionDenied("caller must be the authenticated caller, or empty.")
        if request.task_id:
            _check_task(caller, request)
        outcome = await self._core.execute(caller.name, wire.call_request(request))
        return wire.call_outcome_message(outcome)

    async def GetCall(self, request: pb.GetCallRequest, context: Any) -> pb.GetCallResponse:  # noqa: N802
        """What the ledger holds."""
        caller = _gateway()
        found = await self._core.get_call(caller, request.idempotency_key, request.vendor)
        return pb.GetCallResponse(call=_call(found))

    async def QueryStatus(  # noqa: N802
        self, request: pb.QueryStatusRequest, context: Any
    ) -> pb.QueryStatusResponse:
        """What the vendor says."""
        caller = _gateway()
        outcome = await self._core.query_status(caller, request.idempotency_key, request.vendor)
        kinds = pb.QueryStatusResponse
        return pb.QueryStatusResponse(
            answer=kinds.Answer.Value(f"ANSWER_{outcome.answer}"),
            response=_response(outcome.call),
            retry_after_seconds=outcome.retry_after_seconds,
            resend=kinds.Resend.Value(f"RESEND_{outcome.resend}"),
            reason=outcome.reason,
        )

    async def FenceCall(  # noqa: N802
        self, request: pb.FenceCallRequest, context: Any
    ) -> pb.FenceCallResponse:
        """Close attempts to new sends."""
        answer, call = await self._core.fence(
            _gateway(), request.idempotency_key, request.vendor, request.attempt
        )
        return pb.FenceCallResponse(
            answer=pb.FenceCallResponse.Answer.Value(f"ANSWER_{answer}"), response=_response(call)
        )

    async def CancelCall(  # noqa: N802
        self, request: pb.CancelCallRequest, context: Any
    ) -> pb.CancelCallResponse:
        """Ask the vendor to stop."""
        answer = await self._core.cancel_call(_gateway(), request.idempotency_key, request.vendor)
        return pb.CancelCallResponse(answer=pb.CancelCallResponse.Answer.Value(f"ANSWER_{answer}"))

    async def IngestReceipt(  # noqa: N802
        self, request: pb.IngestReceiptRequest, context: Any
    ) -> pb.IngestReceiptResponse:
        """The gRPC door for receipts."""
        _gateway()
        stored = await self._core.ingest_receipt(
            request.vendor_account, dict(request.headers), request.body
        )
        return pb.IngestReceiptResponse(stored=stored)

    async def ListLimits(  # noqa: N802
        self, request: pb.ListLimitsRequest, context: Any
    ) -> pb.ListLimitsResponse:
        """Every pool."""
        current_caller().require_one_of("gateway", "operate", "read")
        return pb.ListLimitsResponse(limits=[_limit(each) for each in self._core.list_limits()])

    async def SetLimit(self, request: pb.SetLimitRequest, context: Any) -> pb.SetLimitResponse:  # noqa: N802
        """Change one pool's limit."""
        current_caller().require("operate")
        limit, in_force_at = await self._core.set_limit(request.pool, request.concurrency)
        return pb.SetLimitResponse(limit=_limit(limit), in_force_at=wire.timestamp(in_force_at))


def _check_task(caller: Caller, request: pb.ExecuteRequest) -> None:
    """Receipts of a call settle its task, so only the mesh names one, under the task's own key."""
    caller.require_every_tenant()
    if request.idempotency_key != idempotency_key(request.task_id, request.vendor):
        raise InvalidArgument(
            FieldViolation("task_id", "is not the task of this idempotency_key; leave it empty")
        )


def _gateway() -> str:
    caller = current_caller()
    caller.require("gateway")
    return caller.name


def _response(outcome: CallOutcome | None) -> pb.ExecuteResponse | None:
    return None if outcome is None else wire.call_outcome_message(outcome)


def _call(row: StoredCall) -> pb.Call:
    occupied = row.occupied_until if row.occupied_until != OPEN_END else None
    return pb.Call(
        caller=row.key.caller,
        vendor=row.key.vendor,
        idempotency_key=row.key.idempotency_key,
        task_id=row.task_id,
        pool=row.pool,
        state=row.ledger.state.value,
        attempt=row.ledger.attempt,
        fenced_attempt=row.ledger.fenced_attempt,
        response=_response(ledger.shown(row) if row.outcome else None),
        begun_at=wire.timestamp(row.begun_at),
        settled_at=wire.timestamp(row.settled_at),
        occupied_until=wire.timestamp(occupied),
        last_query_answer=row.last_query_answer,
        last_query_at=wire.timestamp(row.last_query_at),
    )


def _limit(limit: Limit) -> pb.Limit:
    return pb.Limit(
        pool=limit.pool,
        vendor=limit.vendor,
        concurrency=limit.concurrency,
        in_flight=limit.in_flight,
        quarantined=limit.quarantined,
        closed_until=wire.timestamp(limit.closed_until),
    )
