"""`sluice submit content`: files in, verdicts out.

Receives .jsonl files of contents, or plain text, image and video files (one content each).
Hands on case ids, and with --wait verdicts, with a progress bar.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import orjson
import typer
from google.protobuf.json_format import Parse, ParseError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from cli.console import (
    ConfigOption,
    JsonOption,
    client_settings,
    err,
    fail,
    out,
    run,
    token,
)
from cli.errors import explain
from kernel.runtime.rpc import open_channel
from mesh.v1 import aggregator_pb2, types_pb2
from mesh.v1 import intake_pb2 as intake
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub
from mesh.v1.intake_pb2_grpc import IntakeServiceStub

_TEXT = {".txt", ".md", ".text"}
_IMAGE = {".png", ".jpg", ".jpeg", ".webp", ".gif"}
_VIDEO = {".mp4", ".avi", ".mov", ".mkv", ".webm"}
_AT_ONCE = 16


class UnreadableContentError(ValueError):
    """A file cannot be made into a content; the message says which and why."""


@dataclass(slots=True)
class Submitted:
    """One content's way: `error` says why it was refused, else `state` is its verdict.

    `ended`: why the waiting for the verdict of an accepted content ended without one.
    """

    name: str
    case_id: str = ""
    disposition: str = ""
    state: str = ""
    reason: str = ""
    rule: str = ""
    error: str = ""
    ended: str = ""

    @property
    def unfinished(self) -> bool:
        """Whether what was asked for was not done: not accepted, or waited for in vain."""
        return bool(self.error or self.ended)


def submit_content(
    files: Annotated[list[Path], typer.Argument(help=".jsonl, text, image or video files.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the verdicts.")] = False,
    tenant: Annotated[str, typer.Option(help="Tenant of plain files.")] = "local",
    version: Annotated[int, typer.Option(help="Content version of plain files.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a verdict.")] = 300.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit contents for moderation; sending the same file again finds the same case."""
    settings = client_settings(config)
    try:
        requests = [each for path in files for each in read_file(path, tenant, version)]
    except (UnreadableContentError, OSError) as error:
        fail(str(error), "Nothing was submitted.")
    if not requests:
        fail("The files hold no contents. Nothing was submitted.")
    found = run(submit_all(settings.intake_addr, settings.aggregator_addr, requests, wait, timeout))
    print_submitted(found, wait=wait, as_json=as_json)
    if any(each.unfinished for each in found):
        raise typer.Exit(1)


async def submit_all(
    intake_address: str,
    aggregator_address: str,
    requests: list[tuple[str, intake.SubmitContentRequest]],
    wait: bool,
    timeout: float,
) -> list[Submitted]:
    """Submit (name, content) pairs, some at once; with `wait` follow each to its verdict."""
    found = [Submitted(name) for name, _ in requests]
    waiting = iter(zip(found, requests, strict=True))
    async with (
        open_channel(intake_address, token()) as to_intake,
        open_channel(aggregator_address, token()) as to_aggregator,
    ):
        submits = IntakeServiceStub(to_intake)
        cases = AggregatorServiceStub(to_aggregator)
        with Progress(
            TextColumn("judged" if wait else "accepted"),
            BarColumn(),
            MofNCompleteColumn(),
            console=err,
            transient=True,
        ) as progress:
            bar = progress.add_task("", total=len(requests))

            async def worker() -> None:
                for each, (_, request) in waiting:
                    try:
                        await _one(each, request, submits, cases, wait, timeout)
                    except grpc.aio.AioRpcError as error:
                        each.error = "; ".join(explain(error) or [error.code().name])
                    progress.advance(bar)

            await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    return found


async def _one(
    each: Submitted,
    request: intake.SubmitContentRequest,
    submits: Any,
    cases: Any,
    wait: bool,
    timeout: float,
) -> None:
    answer = await submits.SubmitContent(request, timeout=30)
    each.case_id = answer.case_id
    each.disposition = intake_disposition(answer.disposition)
    if not wait:
        return
    try:
        async for case in watch(cases, answer.case_id, timeout):
            each.state = aggregator_state(case.state)
            if case.decisions:
                each.reason, each.rule = case.decisions[-1].reason, case.decisions[-1].rule
            if each.state != "PENDING":
                return
    except grpc.aio.AioRpcError as error:
        # It is accepted and goes on, whatever became of the watching.
        timed_out = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        why = f"no verdict within {timeout:g} s" if timed_out else "; ".join(explain(error) or [])
        each.ended = f"waiting ended, the work goes on: {why}. Type: sluice show {each.case_id}"


async def watch(cases: Any, case_id: str, timeout: float) -> AsyncIterator[aggregator_pb2.Case]:
    """The case now and at each change, for at most `timeout` seconds."""
    request = aggregator_pb2.WatchCaseRequest(case_id=case_id)
    async for message in cases.WatchCase(request, timeout=timeout):
        yield message.case


def intake_disposition(value: types_pb2.Disposition.ValueType) -> str:
    """CREATED or EXISTS."""
    return types_pb2.Disposition.Name(value).removeprefix("DISPOSITION_")


def aggregator_state(value: types_pb2.CaseState.ValueType) -> str:
    """A case's state as a word."""
    return types_pb2.CaseState.Name(value).removeprefix("CASE_STATE_")


def print_submitted(found: list[Submitted], *, wait: bool, as_json: bool) -> None:
    """A table, or one JSON object a line."""
    if as_json:
        for each in found:
            shown = {f: getattr(each, f) for f in each.__slots__ if getattr(each, f)}
            out.print(orjson.dumps(shown).decode(), markup=False)
        return
    table = Table("content", Column("case", no_wrap=True), "verdict" if wait else "accepted", "why")
    for each in found:
        verdict = (each.state if wait else "") or each.disposition
        why = each.error or each.ended or " ".join(filter(None, (each.reason, each.rule)))
        table.add_row(each.name, each.case_id, "REFUSED" if each.error else verdict, why)
    out.print(table)


def read_file(
    path: Path, tenant: str, version: int
) -> Iterable[tuple[str, intake.SubmitContentRequest]]:
    """The contents of one file, named; raises UnreadableContentError or OSError."""
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if line.strip():
                yield f"{path.name}:{number}", _from_json(line, f"{path}:{number}")
        return
    yield (
        path.name,
        intake.SubmitContentRequest(
            tenant_id=tenant,
            content_id=path.name,
            content_version=version,
            parts=[_part(path, suffix)],
        ),
    )


def _part(path: Path, suffix: str) -> intake.ContentPart:
    if suffix in _TEXT:
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UnreadableContentError(f"{path}: is not UTF-8 text") from error
        return intake.ContentPart(kind=intake.PART_KIND_TEXT, text=text)
    if suffix in _IMAGE:
        return intake.ContentPart(kind=intake.PART_KIND_IMAGE, data=path.read_bytes())
    if suffix in _VIDEO:
        from vendors.models.errors import ModelsMissingError, NotAVideoError
        from vendors.models.sampling import sample_frames

        try:
            frames = sample_frames(path)
        except (ModelsMissingError, NotAVideoError) as error:
            raise UnreadableContentError(f"{path}: {error}") from error
        return intake.ContentPart(
            kind=intake.PART_KIND_VIDEO,
            frames=intake.Frames(images=[frame.data for frame in frames]),
        )
    raise UnreadableContentError(
        f"{path}: not a kind that is known (.jsonl, {', '.join(sorted(_TEXT | _IMAGE | _VIDEO))})"
    )


def _from_json(line: bytes, where: str) -> intake.SubmitContentRequest:
    """A content as JSON: the fields of SubmitContentRequest in snake_case, bytes as base64."""
    request = intake.SubmitContentRequest()
    try:
        Parse(line, request)
    except (ParseError, ValueError, binascii.Error) as error:
        raise UnreadableContentError(
            f"{where}: is not a content ({type(error).__name__}); see docs/contents.md"
        ) from error
    return request
