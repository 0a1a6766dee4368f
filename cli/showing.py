"""`sluice show`, `sluice unknown` and `sluice pools`: what is, and why.

Receives ids. Hands on states, missing sets, decisions and timelines, for people or as JSON.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer
from google.protobuf.json_format import MessageToDict
from rich.live import Live
from rich.table import Table

from cli import story
from cli.console import (
    ConfigOption,
    JsonOption,
    client_settings,
    fail,
    out,
    run,
    token,
)
from cli.submitting import aggregator_state
from kernel.environment import Environment
from kernel.identity import is_parent_id, parse_task_id
from kernel.runtime.rpc import open_channel
from kernel.runtime.settings import Settings
from mesh.v1 import aggregator_pb2, dispatcher_pb2, vendor_proxy_pb2
from mesh.v1.aggregator_pb2_grpc import AggregatorServiceStub
from mesh.v1.dispatcher_pb2_grpc import DispatcherServiceStub
from mesh.v1.vendor_proxy_pb2_grpc import VendorProxyServiceStub

_TIMEOUT = 10


def show(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="A case id or a task id.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """A case or task: state, what is missing, decisions, and its story."""
    if not is_parent_id(identifier) and parse_task_id(identifier) is None:
        raise typer.BadParameter(
            "a case id is 32 hex digits, a task id is <case id>.<number>", param_hint="ID"
        )
    settings = client_settings(config)
    told = run(_read(settings, identifier))
    if as_json:
        out.print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode(), markup=False)
        return
    for line in told.pop("text"):
        out.print(line, markup=False)


async def _read(settings: Settings, identifier: str) -> dict[str, Any]:
    key = parse_task_id(identifier)
    case_id = key[0] if key else identifier
    async with (
        open_channel(settings.aggregator_addr, token()) as to_aggregator,
        open_channel(settings.dispatcher_addr, token()) as to_dispatcher,
    ):
        case = (
            await AggregatorServiceStub(to_aggregator).GetCase(
                aggregator_pb2.GetCaseRequest(case_id=case_id), timeout=_TIMEOUT
            )
        ).case
        timeline = await DispatcherServiceStub(to_dispatcher).GetTimeline(
            dispatcher_pb2.GetTimelineRequest(id=identifier), timeout=_TIMEOUT
        )
    events = [MessageToDict(event) for event in timeline.events]
    tasks = [task for task in case.tasks if key is None or task.task_id == identifier]
    return {
        "case": MessageToDict(case),
        "tasks": [MessageToDict(task) for task in tasks],
        "timeline": events,
        "text": [*_case_lines(case), *_task_lines(tasks), "", *story.lines(timeline.events)],
    }


def _case_lines(case: aggregator_pb2.Case) -> list[str]:
    lines = [
        f"case {case.case_id}: {aggregator_state(case.state)}"
        + (" (cancel requested)" if case.cancel_requested else ""),
        f"content {case.content_id} version {case.content_version}, round {case.review_round}, "
        f"tenant {case.tenant_id}, policy {case.policy_id} v{case.policy_version}",
    ]
    if case.missing and aggregator_state(case.state) in ("PENDING", "IN_REVIEW"):
        lines.append("missing: " + ", ".join(case.missing))
    for each in case.decisions:
        rule = f" ({each.rule})" if each.rule else ""
        lines.append(
            f"decision {each.version}: {aggregator_state(each.outcome)}, {each.reason}{rule}, "
            f"by {each.decided_by}"
        )
    lines += [f"late result of {late.task_id} ({late.source})" for late in case.late_results]
    return lines


def _task_lines(tasks: list[Any]) -> list[str]:
    return [
        f"  {task.task_id.rpartition('.')[2]:>4}  {story.state_word(task.state):<10} "
        f"{task.model_id} {task.model_version} at {task.vendor}, attempt {task.attempt}, "
        f"sends {task.sends}/{task.max_sends}"
        + (f", {task.reason}" if task.reason else "")
        + (f", {task.possible_duplicates} possible duplicate" if task.possible_duplicates else "")
        for task in tasks
    ]


class As(StrEnum):
    """What an operator found out about an UNKNOWN call."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not-executed"
    RETRY = "retry"


unknown = typer.Typer(
    help="The operator's queue of UNKNOWN calls, oldest first.", invoke_without_command=True
)


@unknown.callback()
def unknown_list(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The queue, with age and cost at stake."""
    if context.invoked_subcommand:
        context.obj = config
        return
    settings = client_settings(config)

    async def work() -> list[Any]:
        async with open_channel(settings.dispatcher_addr, token()) as channel:
            stub = DispatcherServiceStub(channel)
            found: list[Any] = []
            page = ""
            while True:
                answer = await stub.ListUnknown(
                    dispatcher_pb2.ListUnknownRequest(page_token=page), timeout=_TIMEOUT
                )
                found += answer.tasks
                page = answer.next_page_token
                if not page:
                    return found

    found = run(work())
    if as_json:
        for each in found:
            out.print(orjson.dumps(MessageToDict(each)).decode(), markup=False)
        return
    table = Table("task", "vendor", "age", "at stake", "needs you", "why")
    for each in found:
        table.add_row(
            each.task.task_id,
            each.task.vendor,
            f"{each.age_seconds:.0f} s",
            f"{each.cost_at_stake_micros / 1e6:.6f}",
            "yes" if each.needs_operator else "no, being asked",
            each.task.reason,
        )
    out.print(table if found else "No call is UNKNOWN.")
    if any(each.needs_operator for each in found):
        out.print(
            "Ask the vendor, then: sluice unknown resolve TASK --as executed|not-executed|retry",
            markup=False,
        )


@unknown.command("resolve")
def unknown_resolve(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK")],
    resolution: Annotated[As, typer.Option("--as", help="What the vendor says of the call.")],
    note: Annotated[str, typer.Option(help="Where the evidence is.")] = "",
) -> None:
    """Settle one UNKNOWN call by evidence from outside; the action is recorded."""
    settings = client_settings(context.obj)
    kinds = dispatcher_pb2.ResolveUnknownRequest
    name = f"RESOLUTION_{resolution.name}"

    async def work() -> Any:
        async with open_channel(settings.dispatcher_addr, token()) as channel:
            return await DispatcherServiceStub(channel).ResolveUnknown(
                kinds(task_id=task, resolution=kinds.Resolution.Value(name), note=note),
                timeout=_TIMEOUT,
            )

    answer = run(work())
    out.print(f"{task}: {story.state_word(answer.task.state)} ({answer.task.reason})", markup=False)


def pools(
    config: ConfigOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Limits, calls in flight and backlog by pool."""
    settings = client_settings(config)

    async def read() -> list[tuple[Any, Any]]:
        async with (
            open_channel(settings.dispatcher_addr, token()) as to_dispatcher,
            open_channel(settings.vendor_proxy_addr, token()) as to_proxy,
        ):
            mesh = await DispatcherServiceStub(to_dispatcher).ListPools(
                dispatcher_pb2.ListPoolsRequest(), timeout=_TIMEOUT
            )
            limits = await VendorProxyServiceStub(to_proxy).ListLimits(
                vendor_proxy_pb2.ListLimitsRequest(), timeout=_TIMEOUT
            )
        by_pool = {limit.pool: limit for limit in limits.limits}
        return [(pool, by_pool.get(pool.pool)) for pool in mesh.pools]

    async def follow() -> None:
        with Live(_pool_table(await read()), console=out) as live:
            while True:
                await Environment().clock.sleep(1.0)
                live.update(_pool_table(await read()))

    if watch and as_json:
        fail("--watch shows a table for people; use --json without it.")
    if watch:
        run(follow())
        return
    found = run(read())
    if as_json:
        for pool, limit in found:
            both = {"pool": MessageToDict(pool), "limit": MessageToDict(limit) if limit else None}
            out.print(orjson.dumps(both).decode(), markup=False)
        return
    out.print(_pool_table(found))


def _pool_table(found: list[tuple[Any, Any]]) -> Table:
    table = Table(
        "pool", "vendor", "limit", "at vendor", "quarantined", "ready", "in flight", "accepted",
        "retry", "unknown", "oldest ready", "closed until",
    )  # fmt: skip
    for pool, limit in found:
        closed = pool.closed_until if pool.HasField("closed_until") else None
        oldest = pool.oldest_ready_at if pool.HasField("oldest_ready_at") else None
        table.add_row(
            pool.pool,
            pool.vendor,
            str(limit.concurrency) if limit else "-",
            str(limit.in_flight) if limit else "-",
            str(limit.quarantined) if limit else "-",
            str(pool.ready),
            str(pool.in_flight),
            str(pool.accepted),
            str(pool.retry_wait),
            str(pool.unknown),
            oldest.ToJsonString() if oldest else "-",
            closed.ToJsonString() if closed else "-",
        )
    return table
