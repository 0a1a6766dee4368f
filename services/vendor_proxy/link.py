"""The way to the mesh: receipts to the aggregator over gRPC, repeated by nobody here.

Receives stored receipts. Hands on the aggregator's dispositions.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from kernel.runtime import wire
from kernel.store.raw_receipts import StoredReceipt
from mesh.v1 import aggregator_pb2 as pb
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub

_APPLY_SECONDS = 15.0


class AggregatorLink:
    """`ReceiptSink` over a gRPC channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AggregatorServiceStub(channel)

    async def apply(self, receipts: Sequence[StoredReceipt]) -> Sequence[str]:
        """ApplyReceipts; raises grpc.aio.AioRpcError when nothing was acknowledged."""
        request = pb.ApplyReceiptsRequest(receipts=[_message(each) for each in receipts])
        answer = await self._stub.ApplyReceipts(request, timeout=_APPLY_SECONDS)
        return list(answer.dispositions)


def _message(receipt: StoredReceipt) -> pb.Receipt:
    return pb.Receipt(
        receipt_id=receipt.receipt_id,
        task_id=receipt.task_id,
        vendor=receipt.vendor,
        idempotency_key=receipt.idempotency_key,
        external_id=receipt.external_id,
        state=pb.ReceiptState.Value(f"RECEIPT_STATE_{receipt.state}"),
        vendor_status=receipt.vendor_status,
        occurred_at=wire.timestamp(receipt.occurred_at),
        received_at=wire.timestamp(receipt.received_at),
        result=wire.result(receipt.scores),
        cost_micros=receipt.cost_micros or 0,
        reason=receipt.reason,
    )
