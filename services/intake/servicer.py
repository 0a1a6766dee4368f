"""The intake's wire: protos in, contents out, and back.

Receives `SubmitContentRequest` and `CancelContentRequest` of an authenticated caller. Hands
on the core's answers. Times on the wire are timestamps, inside they are microseconds.
"""

from __future__ import annotations

from kernel.fairness import Priority
from kernel.runtime import wire
from kernel.runtime.rpc import current_caller
from mesh.v1 import intake_pb2, intake_pb2_grpc, types_pb2
from services.intake.admission import Content, Kind, OnUnknownWish, Part
from services.intake.core import IntakeCore, SubmittedTask

SERVICE_NAME = intake_pb2.DESCRIPTOR.services_by_name["IntakeService"].full_name

_KINDS = {
    intake_pb2.PART_KIND_TEXT: Kind.TEXT,
    intake_pb2.PART_KIND_IMAGE: Kind.IMAGE,
    intake_pb2.PART_KIND_VIDEO: Kind.VIDEO,
}
_PRIORITIES = {
    types_pb2.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    types_pb2.PRIORITY_CRITICAL: Priority.CRITICAL,
    types_pb2.PRIORITY_NORMAL: Priority.NORMAL,
    types_pb2.PRIORITY_BULK: Priority.BULK,
}


class IntakeServicer(intake_pb2_grpc.IntakeServiceServicer):
    """`mesh.v1.IntakeService` around a core."""

    def __init__(self, core: IntakeCore) -> None:
        self._core = core

    async def SubmitContent(  # noqa: N802 - the name is the proto's
        self,
        request: intake_pb2.SubmitContentRequest,
        context: object,
    ) -> intake_pb2.SubmitContentResponse:
        """Accept one content; the caller must be allowed to submit for its tenant."""
        current_caller().require("submit", request.tenant_id)
        submitted = await self._core.submit(content_of(request))
        return intake_pb2.SubmitContentResponse(
            case_id=submitted.case_id,
            disposition=types_pb2.Disposition.Value(f"DISPOSITION_{submitted.disposition}"),
            accepted_at=wire.timestamp(submitted.accepted_at),
            tasks=[_planned_task(task) for task in submitted.tasks],
        )

    async def CancelContent(  # noqa: N802 - the name is the proto's
        self,
        request: intake_pb2.CancelContentRequest,
        context: object,
    ) -> intake_pb2.CancelContentResponse:
        """Cancel a case; one of a tenant that the caller may not act for is not found."""
        caller = current_caller()
        caller.require("submit")
        cancelled = await self._core.cancel(
            request.case_id, lambda tenant: caller.tenants is None or tenant in caller.tenants
        )
        answers = intake_pb2.CancelledTask.Answer
        return intake_pb2.CancelContentResponse(
            state=types_pb2.CaseState.Value(f"CASE_STATE_{cancelled.state}"),
            tasks=[
                intake_pb2.CancelledTask(
                    task_id=task.task_id,
                    answer=answers.Value(f"ANSWER_{task.answer}"),
                    state=wire.task_state(task.state),
                )
                for task in cancelled.tasks
            ],
        )


def content_of(request: intake_pb2.SubmitContentRequest) -> Content:
    """The content as the core sees it; what cannot be read becomes what admission refuses."""
    return Content(
        tenant_id=request.tenant_id,
        content_id=request.content_id,
        content_version=request.content_version,
        review_round=request.review_round,
        parts=tuple(_part(part) for part in request.parts),
        priority=_PRIORITIES.get(request.priority),
        deadline=wire.micros(request, "deadline") if request.HasField("deadline") else None,
        labels=dict(request.labels),
        on_unknown=_wish(request.on_unknown) if request.HasField("on_unknown") else None,
        wire_bytes=request.ByteSize(),
    )


def _part(part: intake_pb2.ContentPart) -> Part:
    source = part.WhichOneof("source")
    return Part(
        kind=_KINDS.get(part.kind),
        text=part.text if source == "text" else None,
        data=part.data if source == "data" else None,
        uri=part.uri if source == "uri" else None,
        frames=tuple(part.frames.images) if source == "frames" else None,
        duration_seconds=part.duration_seconds,
    )


def _wish(on_unknown: types_pb2.OnUnknown) -> OnUnknownWish:
    rule = wire.on_unknown(on_unknown)
    return OnUnknownWish(
        rule.mode if rule else None, on_unknown.max_duplicates, on_unknown.max_cost_micros
    )


def _planned_task(task: SubmittedTask) -> intake_pb2.PlannedTask:
    return intake_pb2.PlannedTask(
        task_id=task.task_id,
        model_id=task.model_id,
        model_version=task.model_version,
        requirement=types_pb2.Requirement.Value(f"REQUIREMENT_{task.requirement}"),
        positions=task.positions,
    )
