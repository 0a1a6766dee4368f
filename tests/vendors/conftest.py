"""Receives nothing; hands each test a simulator on a free port, under a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from kernel.environment import Environment
from tests.vendors.caller import Caller, HandClock, Receiver, receiving
from vendors.simulator import RunningSimulator, serve


@pytest.fixture
async def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def simulator(clock: HandClock) -> AsyncIterator[RunningSimulator]:
    running = await serve(0, Environment(clock=clock))
    yield running
    await running.stop()


@pytest.fixture
async def caller(simulator: RunningSimulator) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, f"http://127.0.0.1:{simulator.port}")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
