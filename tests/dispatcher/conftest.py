"""Receives nothing; hands each test a world around a dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dispatcher.world import World, make_schema, open_world


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "mesh.db"
    make_schema(path)
    return path


@pytest.fixture
async def world(tmp_path: Path, empty: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, empty) as opened:
        yield opened
