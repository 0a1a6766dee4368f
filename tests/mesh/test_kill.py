"""SIGKILL one of four processes in the middle of the work: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli import demo, processes, vendor_process
from cli.outcome import assess, read_facts
from tests.mesh import four_processes

CONTENTS = 150


@pytest.mark.parametrize("victim", processes.SERVICES)
async def test_i7_a_killed_service_loses_nothing_and_doubles_nothing(
    tmp_path: Path, victim: str
) -> None:
    async with (
        vendor_process.spawned() as vendors,
        four_processes.opened(tmp_path, vendors.endpoint) as mesh,
    ):
        bodies = vendor_process.controls(mesh.workspace.keys["receipts"], faults=True)
        await vendors.put(bodies)
        requests = demo.contents(CONTENTS, seed=7)
        submitting = asyncio.create_task(mesh.submit_all(requests))
        if victim == "intake":
            await mesh.until(lambda seen: seen.contents >= 40, "40 contents are accepted", 20)
        else:
            await mesh.until(lambda seen: seen.tasks - seen.open_tasks >= 150, "150 tasks", 20)
        await mesh.services[victim].kill()
        await mesh.services[victim].start()
        await submitting
        found = await mesh.until(
            lambda seen: (
                seen.contents == CONTENTS
                and not seen.open_tasks
                and not seen.decided.get("PENDING", 0)
            ),
            "everything is decided and closed",
            60,
        )
        ledgers = {name: await vendors.ledger(name) for name in bodies}
        facts = await mesh.store.read(read_facts)
        result = assess(facts, ledgers, mesh.acknowledged, seconds=1.0)
        assert len(mesh.acknowledged) == CONTENTS
        assert result.lost == 0
        assert result.duplicate_executions == 0
        assert result.over_limit == 0
        assert result.expired == 0
        assert result.unknown_met > 0, "no fault struck"
        assert result.unknown_settled == result.unknown_met
        assert found.unknown_left == 0
