"""The scripted vendors as a process of their own, and what the demo has them do.

Receives a secret for receipts. Hands on a running simulator's address, and its ledgers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from kernel.environment import Environment
from vendors.simulator.app import RunningSimulator, serve

# Scores by what a text says or which model looks; everything else scores low.
_TEXT_RESULTS = {
    "default": {"violence": 0.02, "hate": 0.01, "spam": 0.03},
    "a threat against a neighbour": {"violence": 0.97, "hate": 0.20, "spam": 0.01},
    "could be read two ways": {"violence": 0.70, "hate": 0.10, "spam": 0.02},
}

_FAULTS: list[dict[str, Any]] = [
    {"when": {"p": 0.02}, "do": "hide_response"},
    # Two in a hundred calls are refused; one refusal in ten also asks for a second of silence.
    {"when": {"p": 0.002}, "do": "throttle", "retry_after": 1},
    {"when": {"p": 0.018}, "do": "throttle", "retry_after": 0},
    {"when": {"p": 0.01}, "do": "drop_before", "once_per_key": True},
    {"when": {"p": 0.01}, "do": "error_after"},
]
_RECEIPT_FAULTS: list[dict[str, Any]] = [
    {"when": {"p": 0.05}, "do": "duplicate_receipt"},
    {"when": {"p": 0.05}, "do": "reorder_receipts"},
]


def controls(receipt_secret: str, *, faults: bool, seed: int = 20261130) -> dict[str, Any]:
    """What to tell each of the three default vendors; their ability is that of default.yaml."""
    script = _FAULTS if faults else []
    return {
        "textguard": {
            "capabilities": {"query_by_key": True, "consistency_lag_ms": 100},
            "latency_ms": [30, 120],
            "concurrency": 64,
            "price_micros": 100,
            "seed": seed,
            "results": _TEXT_RESULTS,
            "script": script,
        },
        "imagescan": {
            "capabilities": {"dedupe": True, "key_window_ms": 3_600_000},
            "latency_ms": [60, 200],
            "concurrency": 48,
            "price_micros": 400,
            "seed": seed + 1,
            "script": script,
        },
        "videolens": {
            "capabilities": {"query_by_id": True, "receipts": True, "async": True},
            "latency_ms": [120, 400],
            "concurrency": 64,
            "counts": "jobs",
            "price_micros": 900,
            "seed": seed + 2,
            "receipt_secret": receipt_secret,
            "script": [*script, *_RECEIPT_FAULTS] if faults else [],
        },
    }


class VendorControl:
    """The simulator's control door; `endpoint` like http://127.0.0.1:7200."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def put(self, bodies: Mapping[str, Any]) -> None:
        """Create or change vendors."""
        async with aiohttp.ClientSession() as session:
            for name, body in bodies.items():
                url = f"{self.endpoint}/_control/{name}"
                async with session.put(url, json=body) as answer:
                    if answer.status >= 300:
                        raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")

    async def ledger(self, name: str) -> dict[str, Any]:
        """What really happened at one vendor."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.endpoint}/_control/{name}/ledger") as answer,
        ):
            answer.raise_for_status()
            found: dict[str, Any] = await answer.json()
            return found


async def start(port: int, bodies: Mapping[str, Any], environment: Environment) -> RunningSimulator:
    """A simulator in this process that plays these vendors."""
    simulator = await serve(port, environment)
    try:
        await VendorControl(f"http://127.0.0.1:{simulator.port}").put(bodies)
    except BaseException:
        await simulator.stop()
        raise
    return simulator


@asynccontextmanager
async def spawned() -> AsyncIterator[VendorControl]:
    """A simulator in a process of its own, on a free port; ended by its id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.main",
        "vendor-sim",
        "--port",
        "0",
        "--bare",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the simulator has no output to read its address from")
        line = (await process.stdout.readline()).decode().strip()
        if not line.startswith("http://"):
            raise RuntimeError("the simulator did not start; run: sluice vendor-sim")
        yield VendorControl(line.split()[0])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
