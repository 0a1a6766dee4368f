"""AggregatorService over gRPC: protos in, protos out, nothing decided here.

Receives requests of authenticated callers. Hands on the core's answers. A case of another
tenant is a case that does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kernel.decision import Policy, Rule
from kernel.identity import task_id
from kernel.lifecycle import CaseState
from kernel.receipt import ReceiptState
from kernel.runtime import wire
from kernel.runtime.rpc import Caller, current_caller
from kernel.store.decisions import LateResult, StoredDecision
from kernel.store.policies import StoredPolicy
from kernel.store.receipts import NewReceipt
from mesh.v1 import aggregator_pb2 as pb
from mesh.v1 import types_pb2 as types
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceServicer
from services.aggregator import receipts
from services.aggregator.case import CaseView
from services.aggregator.core import AggregatorCore


class AggregatorServicer(AggregatorServiceServicer):
    """The service's edge."""

    def __init__(self, core: AggregatorCore) -> None:
        self._core = core

    async def ApplyReceipts(  # noqa: N802
        self, request: pb.ApplyReceiptsRequest, context: Any
    ) -> pb.ApplyReceiptsResponse:
        """From the gateway alone."""
        caller = _allowed("gateway")
        caller.require_every_tenant()
        told = await self._core.apply_receipts([_receipt(each) for each in request.receipts])
        return pb.ApplyReceiptsResponse(dispositions=[str(each) for each in told])

    async def GetCase(self, request: pb.GetCaseRequest, context: Any) -> pb.GetCaseResponse:  # noqa: N802
        """One case."""
        caller = _allowed("read")
        view = await self._core.get_case(request.case_id, caller.tenants)
        return pb.GetCaseResponse(case=_case(view))

    async def WatchCase(  # noqa: N802
        self, request: pb.WatchCaseRequest, context: Any
    ) -> AsyncIterator[pb.WatchCaseResponse]:
        """One case, again and again."""
        caller = _allowed("read")
        async for view in self._core.watch_case(request.case_id, caller.tenants):
            yield pb.WatchCaseResponse(case=_case(view))

    async def ResolveReview(  # noqa: N802
        self, request: pb.ResolveReviewRequest, context: Any
    ) -> pb.ResolveReviewResponse:
        """A reviewer's word."""
        caller = _allowed("review")
        view = await self._core.resolve_review(
            request.case_id,
            _case_state(request.decision),
            request.expected_version,
            request.reviewer,
            request.note,
            actor=caller.speaking_for(request.reviewer),
            tenants=caller.tenants,
        )
        return pb.ResolveReviewResponse(case=_case(view))

    async def Redecide(self, request: pb.RedecideRequest, context: Any) -> pb.RedecideResponse:  # noqa: N802
        """Another policy version's word."""
        caller = _allowed("review")
        view, changed = await self._core.redecide(
            request.case_id, request.policy_version, tenants=caller.tenants
        )
        return pb.RedecideResponse(case=_case(view), changed=changed)

    async def PutPolicy(self, request: pb.PutPolicyRequest, context: Any) -> pb.PutPolicyResponse:  # noqa: N802
        """A new policy version, which decides for every tenant."""
        caller = _allowed("review")
        caller.require_every_tenant()
        stored = await self._core.put_policy(
            request.policy_id, _policy_body(request.body), caller.speaking_for(request.author)
        )
        return pb.PutPolicyResponse(policy=_policy(stored))

    async def ListPolicies(  # noqa: N802
        self, request: pb.ListPoliciesRequest, context: Any
    ) -> pb.ListPoliciesResponse:
        """Policy versions."""
        _allowed("read")
        stored = await self._core.list_policies(request.policy_id)
        return pb.ListPoliciesResponse(policies=[_policy(each) for each in stored])


def _allowed(role: str) -> Caller:
    caller = current_caller()
    caller.require(role)
    return caller


def _receipt(message: pb.Receipt) -> NewReceipt:
    name = (
        pb.ReceiptState.Name(message.state).removeprefix("RECEIPT_STATE_")
        if message.state in pb.ReceiptState.values()
        else ""
    )
    # A word of a later version of the gateway is kept like one that nobody mapped.
    known = name in ReceiptState.__members__
    return receipts.received(
        receipt_id=message.receipt_id,
        task_id=message.task_id,
        state=ReceiptState(name) if known else ReceiptState.UNMAPPED,
        vendor_status=message.vendor_status,
        external_id=message.external_id,
        reason=message.reason,
        scores=wire.scores(message),
        cost_micros=message.cost_micros,
        occurred_at=wire.micros(message, "occurred_at") or wire.micros(message, "received_at"),
        vendor=message.vendor,
        idempotency_key=message.idempotency_key,
    )


def _case_state(value: types.CaseState.ValueType) -> CaseState | None:
    """The rules' word; None for one that is unspecified or unknown."""
    if value not in types.CaseState.values():
        return None
    name = types.CaseState.Name(value).removeprefix("CASE_STATE_")
    return CaseState(name) if name in CaseState.__members__ else None


def _case_state_value(state: CaseState) -> types.CaseState.ValueType:
    return types.CaseState.Value(f"CASE_STATE_{state}")


def _policy_body(body: pb.PolicyBody) -> Policy:
    """The body; what is to happen at the deadline and on a failure is a person's by default."""
    return Policy(
        "",
        0,
        tuple(
            Rule(
                rule.category,
                rule.reject_at if rule.HasField("reject_at") else None,
                rule.review_at if rule.HasField("review_at") else None,
            )
            for rule in body.rules
        ),
        _without_verdict(body.on_deadline),
        _without_verdict(body.on_required_failed),
    )


def _without_verdict(value: types.CaseState.ValueType) -> CaseState:
    """Unspecified means IN_REVIEW; a value that nobody knows is refused as PENDING is."""
    if value == types.CASE_STATE_UNSPECIFIED:
        return CaseState.IN_REVIEW
    return _case_state(value) or CaseState.PENDING


def _policy(stored: StoredPolicy) -> pb.Policy:
    policy = stored.policy
    return pb.Policy(
        policy_id=policy.policy_id,
        version=policy.version,
        body=pb.PolicyBody(
            rules=[
                pb.PolicyBody.Rule(
                    category=rule.category, reject_at=rule.reject_at, review_at=rule.review_at
                )
                for rule in policy.rules
            ],
            on_deadline=_case_state_value(policy.on_deadline),
            on_required_failed=_case_state_value(policy.on_required_failed),
        ),
        created_at=wire.timestamp(stored.created_at),
        author=stored.author,
    )


def _case(view: CaseView) -> pb.Case:
    parent = view.parent
    content_id, content_version, review_round = view.content_key
    return pb.Case(
        case_id=parent.id,
        tenant_id=parent.tenant_id,
        content_id=content_id,
        content_version=content_version,
        review_round=review_round,
        state=_case_state_value(parent.state),
        version=parent.version,
        created_at=wire.timestamp(parent.created_at),
        deadline=wire.timestamp(parent.deadline),
        policy_id=parent.policy_id,
        policy_version=parent.policy_version,
        missing=view.missing,
        decisions=[_decision(each) for each in view.decisions],
        tasks=[wire.task_message(each) for each in view.tasks],
        cancel_requested=parent.cancel_requested_at is not None,
        labels=dict(view.labels),
        late_results=[_late_result(each) for each in view.late_results],
    )


def _decision(decision: StoredDecision) -> pb.Decision:
    return pb.Decision(
        version=decision.version,
        outcome=_case_state_value(decision.outcome),
        reason=decision.reason,
        policy_id=decision.policy_id,
        policy_version=decision.policy_version,
        rule=decision.rule,
        decided_at=wire.timestamp(decision.decided_at),
        decided_by=decision.decided_by,
        evidence=[
            pb.Evidence(
                task_id=each.task_id,
                model_id=each.model_id,
                model_version=each.model_version,
                input_digest=each.input_digest,
                result=wire.result(each.scores),
            )
            for each in decision.evidence
        ],
    )


def _late_result(late: LateResult) -> pb.LateResult:
    return pb.LateResult(
        task_id=task_id(late.parent_id, late.n),
        received_at=wire.timestamp(late.received_at),
        result=wire.result(late.scores),
        source=late.source,
    )
