"""Receives nothing; hands each test a mesh on SQLite under a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.aggregator.running import Running, serving
from tests.aggregator.world import World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(tmp_path)
    yield opened
    await opened.store.close()


@pytest.fixture
async def running(world: World) -> AsyncIterator[Running]:
    async with serving(world) as served:
        yield served
