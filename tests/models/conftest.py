"""One running server and one corpus for all tests of the models; both need the extra."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from kernel.environment import Environment
from vendors.models import RunningModels, serve
from vendors.models.corpus import write_corpus


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running() -> AsyncIterator[RunningModels]:
    models = await serve(0, Environment())
    yield models
    await models.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(running: RunningModels) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{running.port}") as session:
        yield session


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("corpus")
    return folder, write_corpus(folder)
