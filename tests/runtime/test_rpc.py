"""Receives calls whose handlers fail in every way; checks what callers, and the log, are told."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from structlog.testing import capture_logs

from kernel import errors
from kernel.errors import FieldViolation, InvalidArgument, Overloaded
from kernel.runtime.rpc import (
    open_channel,
    problem_status,
)
from tests.runtime.probe import METHOD, STREAM, Handler, Probe

SECRET = "token=SECRET-123 to=+15555550100"


def raising(error: BaseException) -> Handler:
    async def handle(_: bytes) -> bytes:
        raise error

    return handle


def details(status: status_pb2.Status) -> dict[str, Any]:
    found = {}
    for packed in status.details:
        for kind in ("ErrorInfo", "BadRequest", "RetryInfo"):
            detail = getattr(error_details_pb2, kind)()
            if packed.Unpack(detail):
                found[kind] = detail
    return found


# ---- problems, as CONTRACT's table of bad input has them --------------------------------

PROBLEMS = [
    (InvalidArgument(FieldViolation("parts", "at least one")), "INVALID_ARGUMENT", "INVALID_FIELD"),
    (errors.NotFound("No such case."), "NOT_FOUND", "NOT_FOUND"),
    (errors.RequestMismatch("Another body.", field="parts"), "ALREADY_EXISTS", "REQUEST_MISMATCH"),
    (errors.LostRace("Moved.", version="7"), "ABORTED", "VERSION_MOVED"),
    (errors.NotAllowedInState("No.", state="FAILED"), "FAILED_PRECONDITION", "STATE_FORBIDS"),
    (Overloaded("Later.", retry_after_seconds=1.5), "RESOURCE_EXHAUSTED", "OVERLOADED"),
    (errors.Unauthenticated("Who?"), "UNAUTHENTICATED", "CALLER_UNKNOWN"),
    (errors.PermissionDenied("No.", role="operate"), "PERMISSION_DENIED", "CALLER_NOT_ALLOWED"),
    (errors.StoreAway("Try again."), "UNAVAILABLE", "STORE_AWAY"),
]


@pytest.mark.parametrize("method", [METHOD, STREAM])
@pytest.mark.parametrize(("problem", "code", "reason"), PROBLEMS)
async def test_each_problem_reaches_the_caller_as_the_contract_says(
    probe: Probe, problem: errors.Problem, code: str, reason: str, method: str
) -> None:
    probe.handle = raising(problem)
    error = await probe.refused(method)
    assert error.code() is grpc.StatusCode[code]
    assert error.details() == problem.message
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    found = details(status)
    assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == (reason, "sluice")
    assert dict(found["ErrorInfo"].metadata) == problem.metadata
    assert ("BadRequest" in found) is (code == "INVALID_ARGUMENT")
    assert ("RetryInfo" in found) is (code == "RESOURCE_EXHAUSTED")


def test_every_kind_of_problem_has_a_status_of_its_own() -> None:
    told = {type(problem) for problem, *_ in PROBLEMS}
    assert told == set(errors.Problem.__subclasses__())
    assert problem_status(errors.StoreAway("x")).code != grpc.StatusCode.INTERNAL.value[0]


def test_a_refusal_for_load_says_when_to_come_back() -> None:
    found = details(problem_status(Overloaded("Later.", retry_after_seconds=1.5)))
    assert found["RetryInfo"].retry_delay.ToNanoseconds() == 1_500_000_000


async def test_every_bad_field_is_named_as_far_as_a_status_can_carry_it(probe: Probe) -> None:
    few = [FieldViolation(f"parts[{at}]", "no kind") for at in range(20)]
    probe.handle = raising(InvalidArgument(*few))
    status = rpc_status.from_call(await probe.refused())  # type: ignore[arg-type]
    named = details(status)["BadRequest"].field_violations
    assert [each.field for each in named] == [each.field for each in few]
    many = [FieldViolation(f"parts[{at}]", "no kind" * 20) for at in range(5000)]
    probe.handle = raising(InvalidArgument(*many))
    error = await probe.refused()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    *named_first, rest = details(rpc_status.from_call(error))["BadRequest"].field_violations  # type: ignore[arg-type]
    assert named_first[0].field == "parts[0]"
    assert rest.description == f"{5000 - len(named_first)} more fields are bad"


# ---- faults of ours (case 8-01) ---------------------------------------------------------


class UnspeakableError(Exception):
    """An exception that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class DeepError(Exception):
    """A fault whose cause holds what must not be told."""

    def __init__(self) -> None:
        super().__init__(SECRET)
        self.__cause__ = ValueError(SECRET)


@pytest.mark.parametrize("method", [METHOD, STREAM])
@pytest.mark.parametrize(
    "fault", [ValueError(SECRET), UnspeakableError(), DeepError(), KeyError(SECRET)]
)
async def test_case_8_01_a_fault_is_internal_and_says_nothing_of_its_text(
    probe: Probe, fault: Exception, method: str
) -> None:
    probe.handle = raising(fault)
    with capture_logs() as logs:
        async with asyncio.timeout(2):
            error = await probe.refused(method)
    assert error.code() is grpc.StatusCode.INTERNAL
    told = error.details() or ""
    found = re.search(r"error id ([0-9a-f]{32})", told)
    assert found is not None
    metadata = repr(error.trailing_metadata()) + repr(error.initial_metadata())
    (line,) = [each for each in logs if each["event"] == "call_failed"]
    for text in (told, metadata, repr(line)):
        assert "SECRET" not in text
        assert "5555550100" not in text
    assert line["error_id"] == found[1]
    assert line["error"] == type(fault).__name__
    assert line["method"] == method
    assert "in handle" in line["frames"]


async def test_case_8_01_the_next_call_is_served_after_a_fault(probe: Probe) -> None:
    probe.handle = raising(UnspeakableError())
    await probe.refused()
    probe.handle = probe.echo
    assert await probe.call() == b"ping"
    assert await probe.call(STREAM) == b"first ping"


async def test_a_stream_keeps_what_it_told_before_its_fault(probe: Probe) -> None:
    probe.handle = raising(errors.NotFound("No such case."))
    async with open_channel(probe.server.address) as channel:
        watching = channel.unary_stream(STREAM, None, None)(b"", timeout=3)
        assert await watching.read() == b"first "
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await watching.read()
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


# ---- health, and the channel ------------------------------------------------------------


async def test_health_follows_what_it_is_told(probe: Probe) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    async with open_channel(probe.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "mesh.v1.ProbeService"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status == serving
        await probe.server.set_serving(False)
        for service in ("", "mesh.v1.ProbeService"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status != serving
        await probe.server.set_serving(True)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving


async def test_case_1_11_the_channel_never_retries_by_itself(probe: Probe) -> None:
    calls: list[None] = []

    async def away(_: bytes) -> bytes:
        calls.append(None)
        raise errors.StoreAway("Try again.")

    probe.handle = away
    assert (await probe.refused()).code() is grpc.StatusCode.UNAVAILABLE
    assert len(calls) == 1


def options(name: str) -> dict[str, int]:
    from kernel.runtime import rpc

    return dict(getattr(rpc, name))


def test_case_8_08_clients_ping_no_more_often_than_servers_allow() -> None:
    client, server = options("_CHANNEL_OPTIONS"), options("_SERVER_OPTIONS")
    allowed = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] >= allowed


def test_case_8_09_both_sides_take_messages_of_the_same_size() -> None:
    client, server = options("_CHANNEL_OPTIONS"), options("_SERVER_OPTIONS")
    for name in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert client[name] == server[name]


def test_case_1_11_retries_are_off_on_every_channel() -> None:
    assert options("_CHANNEL_OPTIONS")["grpc.enable_retries"] == 0
