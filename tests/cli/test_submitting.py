"""Receives services that accept and then decide nothing; checks what a waiting person is told."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from rich.console import Console

from cli import submitting
from cli.submitting import Submitted
from kernel.environment import Environment
from kernel.errors import StoreAway
from kernel.runtime.rpc import Authenticator, RpcServer
from mesh.v1 import aggregator_pb2, types_pb2
from mesh.v1 import intake_pb2 as intake
from mesh.v1.aggregator_pb2_grpc import (
    AggregatorServiceServicer,
    add_AggregatorServiceServicer_to_server,
)
from mesh.v1.intake_pb2_grpc import IntakeServiceServicer, add_IntakeServiceServicer_to_server

CASE = "0" * 31 + "1"


class Accepting(IntakeServiceServicer):
    """Accepts everything."""

    async def SubmitContent(self, request: Any, context: Any) -> Any:  # noqa: N802
        return intake.SubmitContentResponse(case_id=CASE, disposition=types_pb2.DISPOSITION_CREATED)


class Undecided(AggregatorServiceServicer):
    """Shows a pending case, then stops or says nothing more."""

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops

    async def WatchCase(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[aggregator_pb2.WatchCaseResponse]:
        case = aggregator_pb2.Case(case_id=CASE, state=types_pb2.CASE_STATE_PENDING)
        yield aggregator_pb2.WatchCaseResponse(case=case)
        if self._stops:
            raise StoreAway("The aggregator is stopping.", reason="STOPPING")
        await asyncio.Event().wait()


@asynccontextmanager
async def mesh(*, stops: bool) -> AsyncIterator[str]:
    """Both services at one address."""

    def register(server: grpc.aio.Server) -> None:
        add_IntakeServiceServicer_to_server(Accepting(), server)  # type: ignore[abstract]
        add_AggregatorServiceServicer_to_server(
            Undecided(stops=stops),  # type: ignore[abstract]
            server,
        )

    server = RpcServer([], register, "127.0.0.1:0", Authenticator({}), Environment())
    await server.start()
    yield server.address
    await server.stop(0)


@pytest.mark.parametrize("stops", [False, True])
async def test_work_that_was_accepted_is_not_called_refused_when_the_waiting_ends(
    *, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(stops=stops) as address:
        (found,) = await submitting.submit_all(
            address, address, [("a.txt", intake.SubmitContentRequest())], wait=True, timeout=0.5
        )
    assert (found.case_id, found.state, found.error) == (CASE, "PENDING", "")
    assert found.unfinished
    assert f"sluice show {CASE}" in found.ended

    printed = io.StringIO()
    monkeypatch.setattr(submitting, "out", Console(file=printed, width=200, soft_wrap=True))
    submitting.print_submitted([found], wait=True, as_json=False)
    assert "REFUSED" not in printed.getvalue()
    assert f"sluice show {CASE}" in printed.getvalue()
    assert "PENDING" in printed.getvalue()
    printed.truncate(0)
    printed.seek(0)
    submitting.print_submitted([found], wait=True, as_json=True)
    assert json.loads(printed.getvalue())["ended"] == found.ended


def test_what_was_refused_or_is_not_decided_is_unfinished() -> None:
    assert not Submitted("a", CASE, "CREATED", "APPROVED").unfinished
    assert Submitted("a", error="no such tenant").unfinished
    assert Submitted("a", CASE, "CREATED", "PENDING", ended="waiting ended").unfinished
