"""What callers are told over the wire: CONTRACT's table of bad input, and the good answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kernel.lifecycle import CaseState
from kernel.limits import RequestLimits
from kernel.store import parents
from mesh.v1 import intake_pb2, intake_pb2_grpc, types_pb2
from tests.intake.wire import CALLERS, at, calling, refusal, serving, text_request
from tests.intake.world import RULES, StatementFaults, World, open_world

TEXT, IMAGE, VIDEO = (
    intake_pb2.PART_KIND_TEXT,
    intake_pb2.PART_KIND_IMAGE,
    intake_pb2.PART_KIND_VIDEO,
)
Request = intake_pb2.SubmitContentRequest
Part = intake_pb2.ContentPart
Frames = intake_pb2.Frames


@pytest.fixture
async def stub(world: World) -> AsyncIterator[intake_pb2_grpc.IntakeServiceAsyncStub]:
    async with serving(world) as app, calling(app) as opened:
        yield opened


async def test_a_submit_answers_with_its_case_tasks_and_time(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    deadline = world.ahead(60) + 123_456
    request = text_request(deadline=at(deadline))
    answer = await stub.SubmitContent(request)
    assert answer.disposition == types_pb2.DISPOSITION_CREATED
    assert answer.accepted_at == at(world.now())
    assert [
        (t.task_id, t.model_id, t.model_version, t.requirement, list(t.positions))
        for t in answer.tasks
    ] == [
        (f"{answer.case_id}.1", "text", "1", types_pb2.REQUIREMENT_REQUIRED, ["0"]),
        (f"{answer.case_id}.2", "tone", "1", types_pb2.REQUIREMENT_OPTIONAL, ["0"]),
    ]
    assert world.rows("select deadline from tasks") == [(deadline,)] * 2

    again = await stub.SubmitContent(request)
    assert again.disposition == types_pb2.DISPOSITION_EXISTS
    assert (again.case_id, again.accepted_at) == (answer.case_id, answer.accepted_at)
    assert list(again.tasks) == list(answer.tasks)


async def test_i1_twenty_concurrent_equal_submits_over_the_wire_make_one_case(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    answers = await asyncio.gather(*(stub.SubmitContent(text_request()) for _ in range(20)))
    made = [a for a in answers if a.disposition == types_pb2.DISPOSITION_CREATED]
    assert len(made) == 1
    assert {a.case_id for a in answers} == {made[0].case_id}
    assert world.rows("select count(*) from parents") == [(1,)]


def part(kind: Any, **source: Any) -> dict[str, Any]:
    return {"parts": [Part(kind=kind, **source)]}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"tenant_id": ""}, ["tenant_id"]),
        ({"tenant_id": "t" * 129}, ["tenant_id"]),
        ({"tenant_id": "t\x00"}, ["tenant_id"]),
        ({"content_id": ""}, ["content_id"]),
        ({"content_id": "é" * 65}, ["content_id"]),
        ({"content_version": 0}, ["content_version"]),
        ({"review_round": -1}, ["review_round"]),
        ({"priority": 77}, ["priority"]),
        ({"deadline": at(1)}, ["deadline"]),
        ({"deadline": intake_pb2.SubmitContentRequest().deadline}, ["deadline"]),
        ({"deadline": at(1_900_000_000_000_000)}, ["deadline"]),
        ({"labels": {f"l{n}": "" for n in range(33)}}, ["labels"]),
        ({"labels": {"": "x"}}, ["labels[0].key"]),
        ({"labels": {"a": "x" * 129}}, ["labels[0].value"]),
        ({"on_unknown": types_pb2.OnUnknown()}, ["on_unknown.mode"]),
        (
            {
                "on_unknown": types_pb2.OnUnknown(
                    mode=types_pb2.OnUnknown.MODE_AT_LEAST_ONCE,
                    max_duplicates=-1,
                    max_cost_micros=-1,
                )
            },
            ["on_unknown.max_duplicates", "on_unknown.max_cost_micros"],
        ),
        ({"parts": []}, ["parts"]),
        ({"parts": [Part(kind=TEXT, text="a")] * 101}, ["parts"]),
        (part(0, text="a"), ["parts[0].kind"]),
        (part(9, text="a"), ["parts[0].kind"]),
        (part(TEXT), ["parts[0].text"]),
        (part(TEXT, text=""), ["parts[0].text"]),
        (part(TEXT, text="a" * (1024 * 1024 + 1)), ["parts[0].text"]),
        (part(TEXT, data=b"a"), ["parts[0].data", "parts[0].text"]),
        (part(IMAGE), ["parts[0].data"]),
        (part(IMAGE, data=b""), ["parts[0].data"]),
        (part(IMAGE, data=b"a" * (8 * 1024 * 1024 + 1)), ["parts[0].data"]),
        (part(IMAGE, uri="ftp://host/a"), ["parts[0].uri"]),
        (part(IMAGE, uri="a.png"), ["parts[0].uri"]),
        (part(VIDEO), ["parts[0].frames"]),
        (part(VIDEO, frames=Frames()), ["parts[0].frames"]),
        (part(VIDEO, frames=Frames(images=[b"a", b""])), ["parts[0].frames.images[1]"]),
        (part(VIDEO, uri="http://a/v"), ["parts[0].duration_seconds"]),
        (
            part(VIDEO, uri="http://a/v", duration_seconds=float("nan")),
            ["parts[0].duration_seconds"],
        ),
        (
            {
                "parts": [
                    Part(kind=TEXT, text="ok"),
                    Part(kind=IMAGE, data=b"ok"),
                    Part(kind=TEXT, text=""),
                ],
                "content_id": "",
                "deadline": at(1),
            },
            ["content_id", "parts[2].text", "deadline"],
        ),
    ],
)
async def test_a_bad_submit_is_refused_with_every_bad_field_and_stores_nothing(
    world: World,
    stub: intake_pb2_grpc.IntakeServiceAsyncStub,
    change: dict[str, Any],
    fields: list[str],
) -> None:
    refused = await refusal(stub.SubmitContent(text_request(**change)))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.reason == "INVALID_FIELD"
    assert refused.fields == fields
    assert world.counts() == (0, 0, 0)


async def test_a_malformed_timestamp_is_a_bad_deadline(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    for nanos in (-1, 1_000_000_000):
        deadline = at(world.ahead(60))
        deadline.nanos = nanos
        refused = await refusal(stub.SubmitContent(text_request(deadline=deadline)))
        assert refused.fields == ["deadline"]


async def test_an_answer_with_more_bad_fields_than_fit_names_the_first_and_counts_the_rest(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    frames = Frames(images=[b""] * 10_000)
    refused = await refusal(stub.SubmitContent(text_request(**part(VIDEO, frames=frames))))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.fields[:2] == ["parts[0].frames.images[0]", "parts[0].frames.images[1]"]
    assert refused.fields[-1] == "..."
    assert f"{10_000 - len(refused.fields) + 1} more fields are bad" in refused.text
    many: dict[str, Any] = {"parts": [Part(kind=TEXT)] * 30}
    assert len((await refusal(stub.SubmitContent(text_request(**many)))).fields) == 30


def _sized(size: int) -> Request:
    """A valid request of exactly `size` bytes on the wire, of images of 4 MB at most."""
    request = text_request(parts=[])
    while (missing := size - request.ByteSize()) > 0:
        request.parts.append(Part(kind=IMAGE, data=b"a" * min(4_000_000, missing)))
    over = request.ByteSize() - size
    request.parts[-1].data = request.parts[-1].data[: -over or None]
    return request


@pytest.mark.parametrize("size", [4_194_304, 4_194_305, RequestLimits().message_bytes])
async def test_case_8_09_a_content_up_to_the_limit_is_accepted(
    stub: intake_pb2_grpc.IntakeServiceAsyncStub, size: int
) -> None:
    request = _sized(size)
    assert request.ByteSize() == size
    answer = await stub.SubmitContent(request)
    assert answer.disposition == types_pb2.DISPOSITION_CREATED


async def test_case_8_09_a_content_one_byte_over_the_limit_is_refused_and_named(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    request = _sized(RequestLimits().message_bytes + 1)
    assert request.ByteSize() == RequestLimits().message_bytes + 1
    refused = await refusal(stub.SubmitContent(request))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["parts"])
    far = await refusal(stub.SubmitContent(_sized(RequestLimits().message_bytes * 2)))
    assert far.code is grpc.StatusCode.RESOURCE_EXHAUSTED  # refused by the transport
    assert world.counts() == (0, 0, 0)


async def test_a_kind_that_no_rule_covers_is_named(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path, planning={"rules": [RULES[1]]}) as world,
        serving(world) as app,
        calling(app) as stub,
    ):
        request = text_request(parts=[Part(kind=TEXT, text="a"), Part(kind=IMAGE, data=b"i")])
        refused = await refusal(stub.SubmitContent(request))
        assert (refused.code, refused.fields) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            ["parts[1].kind"],
        )
        assert world.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (part(TEXT, text="other"), "parts"),
        ({"priority": types_pb2.PRIORITY_BULK}, "priority"),
        ({"labels": {"n": "2"}}, "labels"),
        ({"deadline": at(1_800_000_100_000_000)}, "deadline"),
        (
            {"on_unknown": types_pb2.OnUnknown(mode=types_pb2.OnUnknown.MODE_AT_MOST_ONCE)},
            "on_unknown",
        ),
    ],
)
async def test_case_1_07_the_same_key_with_another_body_is_a_named_mismatch(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub, change: dict[str, Any], field: str
) -> None:
    first = await stub.SubmitContent(text_request())
    refused = await refusal(stub.SubmitContent(text_request(**change)))
    assert refused.code is grpc.StatusCode.ALREADY_EXISTS
    assert refused.reason == "REQUEST_MISMATCH"
    assert refused.metadata == {"field": field, "case_id": first.case_id}
    assert world.rows("select count(*) from parents") == [(1,)]


async def test_unspecified_priority_is_normal_and_no_difference(
    stub: intake_pb2_grpc.IntakeServiceAsyncStub,
) -> None:
    await stub.SubmitContent(text_request())
    again = await stub.SubmitContent(text_request(priority=types_pb2.PRIORITY_NORMAL))
    assert again.disposition == types_pb2.DISPOSITION_EXISTS


async def test_a_cancel_answers_for_the_case_and_each_task(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    case_id = (await stub.SubmitContent(text_request())).case_id
    answer = await stub.CancelContent(intake_pb2.CancelContentRequest(case_id=case_id))
    assert answer.state == types_pb2.CASE_STATE_PENDING
    assert [(t.task_id, t.answer, t.state) for t in answer.tasks] == [
        (
            f"{case_id}.{n}",
            intake_pb2.CancelledTask.ANSWER_CANCELLED,
            types_pb2.TASK_STATE_CANCELLED,
        )
        for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("case_id", "code", "fields"),
    [
        ("", grpc.StatusCode.INVALID_ARGUMENT, ["case_id"]),
        ("nope", grpc.StatusCode.INVALID_ARGUMENT, ["case_id"]),
        ("f" * 32, grpc.StatusCode.NOT_FOUND, []),
    ],
)
async def test_a_bad_cancel_is_refused(
    stub: intake_pb2_grpc.IntakeServiceAsyncStub,
    case_id: str,
    code: grpc.StatusCode,
    fields: list[str],
) -> None:
    refused = await refusal(stub.CancelContent(intake_pb2.CancelContentRequest(case_id=case_id)))
    assert (refused.code, refused.fields) == (code, fields)


async def test_a_caller_without_a_known_token_is_unauthenticated(world: World) -> None:
    async with serving(world, CALLERS) as app:
        for token in ("", "token-nobody"):
            async with calling(app, token) as stub:
                refused = await refusal(stub.SubmitContent(text_request()))
                assert refused.code is grpc.StatusCode.UNAUTHENTICATED
                assert refused.reason == "CALLER_UNKNOWN"
    assert world.counts() == (0, 0, 0)


async def test_a_caller_may_submit_and_cancel_only_by_its_role_and_for_its_tenants(
    world: World,
) -> None:
    async with serving(world, CALLERS) as app:
        async with calling(app, "token-acme") as acme:
            case_id = (await acme.SubmitContent(text_request())).case_id
            denied = await refusal(acme.SubmitContent(text_request(tenant_id="other")))
            assert denied.code is grpc.StatusCode.PERMISSION_DENIED
        cancel = intake_pb2.CancelContentRequest(case_id=case_id)
        async with calling(app, "token-read") as reader:
            for call in (reader.SubmitContent(text_request()), reader.CancelContent(cancel)):
                denied = await refusal(call)
                assert denied.code is grpc.StatusCode.PERMISSION_DENIED
                assert denied.metadata == {"role": "submit"}
        async with calling(app, "token-other") as other:
            assert (await refusal(other.CancelContent(cancel))).code is grpc.StatusCode.NOT_FOUND
        assert world.rows("select count(*) from parents where cancel_requested_at is null") == [
            (1,)
        ]
        async with calling(app, "token-acme") as acme:
            assert len((await acme.CancelContent(cancel)).tasks) == 2


async def test_a_store_that_is_away_is_unavailable_and_nothing_is_half_written(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    faults = StatementFaults(world.store)
    faults.fail_always = True
    refused = await refusal(stub.SubmitContent(text_request()))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_AWAY")
    cancel = intake_pb2.CancelContentRequest(case_id="f" * 32)
    assert (await refusal(stub.CancelContent(cancel))).code is grpc.StatusCode.UNAVAILABLE
    assert world.counts() == (0, 0, 0)

    faults.fail_always = False
    answer = await stub.SubmitContent(text_request())
    assert answer.disposition == types_pb2.DISPOSITION_CREATED


async def test_a_case_with_a_verdict_tells_its_state(
    world: World, stub: intake_pb2_grpc.IntakeServiceAsyncStub
) -> None:
    case_id = (await stub.SubmitContent(text_request())).case_id
    case = await world.store.read(parents.get, case_id)
    assert case is not None
    await world.store.write(parents.decide, case, CaseState.REJECTED)
    refused = await refusal(stub.CancelContent(intake_pb2.CancelContentRequest(case_id=case_id)))
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.metadata == {"state": "REJECTED"}
