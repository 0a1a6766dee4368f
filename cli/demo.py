"""The main job, end to end: contents in, verdicts out, on vendors that misbehave.

Receives a number of contents. Hands on a table, one task's story, and `.run/demo.json`.
Fails when an invariant fails.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import outcome, processes, story, vendor_process
from cli.workspace import default_vendors, load_settings, open_workspace
from kernel.environment import Environment
from kernel.identity import task_id
from kernel.runtime.rpc import open_channel
from kernel.store import outcome as stored
from kernel.store.transaction import Store
from mesh.v1 import intake_pb2 as intake
from mesh.v1.intake_pb2_grpc import IntakeServiceStub

FREE_PORTS = {
    f"{name}_addr": "127.0.0.1:0"
    for name in ("intake", "dispatcher", "vendor_proxy", "vendor_proxy_http", "aggregator")
}
_SUBMITS_AT_ONCE = 32
_LONGEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class DemoRun:
    """What the demo found: the figures, and the story of a task that was UNKNOWN."""

    outcome: outcome.DemoOutcome
    story: list[str]


def contents(amount: int, seed: int) -> list[intake.SubmitContentRequest]:
    """Invented contents of text, image and video; one in four has a video of six frames.

    A still scene repeats a frame, so that equal frames are judged once.
    """
    draw = random.Random(seed)
    made = []
    for number in range(amount):
        text = draw.choices(
            (
                "a recipe for lentil soup",
                "a threat against a neighbour",
                "could be read two ways",
            ),
            weights=(90, 5, 5),
        )[0]
        parts = [
            intake.ContentPart(kind=intake.PART_KIND_TEXT, text=f"{text}, number {number}"),
            intake.ContentPart(kind=intake.PART_KIND_IMAGE, data=picture(draw)),
        ]
        if number % 4 == 0:
            frames = [picture(draw) for _ in range(5)]
            frames.insert(3, frames[2])
            parts.append(
                intake.ContentPart(kind=intake.PART_KIND_VIDEO, frames=intake.Frames(images=frames))
            )
        made.append(
            intake.SubmitContentRequest(
                tenant_id=f"tenant-{number % 7}",
                content_id=f"post-{number}",
                content_version=1,
                parts=parts,
            )
        )
    return made


def picture(draw: random.Random) -> bytes:
    """A small PNG of one drawn colour."""
    pixel = bytes(draw.randrange(256) for _ in range(3))
    row = b"\0" + pixel * 8

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * 8))
        + chunk(b"IEND", b"")
    )


async def run(folder: Path, amount: int, console: Console, environment: Environment) -> DemoRun:
    """The demo in a fresh data folder."""
    shutil.rmtree(folder, ignore_errors=True)
    workspace = open_workspace(folder)
    requests = contents(amount, seed=1)
    async with vendor_process.spawned() as vendors:
        controls = vendor_process.controls(workspace.keys["receipts"], faults=True)
        await vendors.put(controls)
        settings = load_settings(workspace, None, **FREE_PORTS, **default_vendors(vendors.endpoint))
        processes.upgrade(settings, environment)
        store = Store(settings.database_url, environment.clock)
        try:
            async with processes.run(settings, workspace.secret, environment) as running:
                started = environment.clock.suspended_seconds()
                acknowledged: set[str] = set()
                await asyncio.gather(
                    submit_all(running.intake, requests, acknowledged),
                    follow(store, acknowledged, len(requests), console, environment),
                )
                seconds = environment.clock.suspended_seconds() - started
                found = await store.read(stored.once_unknown)
                told = await story.fetch(running.dispatcher, task_id(*found)) if found else []
            ledgers = {name: await vendors.ledger(name) for name in controls}
            facts = await store.read(outcome.read_facts)
            return DemoRun(outcome.assess(facts, ledgers, acknowledged, seconds), told)
        finally:
            await store.close()


async def submit_all(
    address: str, requests: list[intake.SubmitContentRequest], acknowledged: set[str]
) -> None:
    """Submit everything, some at once; `acknowledged` collects the case ids that were told."""
    waiting = iter(requests)
    async with open_channel(address) as channel:
        stub = IntakeServiceStub(channel)

        async def worker() -> None:
            for request in waiting:
                answer = await stub.SubmitContent(request, timeout=30)
                acknowledged.add(answer.case_id)

        await asyncio.gather(*(worker() for _ in range(_SUBMITS_AT_ONCE)))


async def follow(
    store: Store,
    acknowledged: set[str],
    expected: int,
    console: Console,
    environment: Environment,
) -> None:
    """Show progress until everything is decided and closed, or the time is up."""
    ends = environment.clock.suspended_seconds() + _LONGEST_SECONDS
    with _progress(console) as show:
        while environment.clock.suspended_seconds() < ends:
            counts = await store.read(stored.read)
            pending = counts.decided.get("PENDING", 0)
            decided = counts.contents - pending
            await show(decided, expected, counts)
            settled = len(acknowledged) == expected and not pending and not counts.open_tasks
            if settled:
                return
            await environment.clock.sleep(0.25)


Show = Callable[[int, int, stored.Outcome], Awaitable[None]]


class _progress:  # noqa: N801 - reads as a context
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("contents decided", total=None)
        self._rounds = 0

    def __enter__(self) -> Show:
        self._bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    async def _show(self, decided: int, expected: int, counts: stored.Outcome) -> None:
        self._bar.update(self._task, completed=decided, total=expected)
        if not self._console.is_terminal and self._rounds % 8 == 0:
            self._console.print(
                f"{decided}/{expected} contents decided, {counts.tasks} tasks, "
                f"{counts.open_tasks} open, {counts.unknown_left} UNKNOWN now"
            )
        self._rounds += 1


def write(found: outcome.DemoOutcome, path: Path) -> None:
    """Keep the figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(found.document(), option=orjson.OPT_INDENT_2) + b"\n")
