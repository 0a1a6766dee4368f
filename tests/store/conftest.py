"""Receives tmp_path, or a server's URL; hands each test a migrated store of its own.

`SLUICE_TEST_DATABASE_URL` names an empty database on MariaDB or MySQL: then the same suite runs
there, and tests that move the clock are listed as skipped.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernel.store.transaction import Store
from tests.manual_clock import ManualClock
from tests.store.stores import migrated

SERVER_URL = os.environ.get("SLUICE_TEST_DATABASE_URL", "")


@pytest.fixture
def hand_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clock(hand_clock: ManualClock) -> ManualClock:
    if SERVER_URL:
        pytest.skip("a server's clock is not moved by hand")
    return hand_clock


@pytest.fixture
async def store(tmp_path: Path, hand_clock: ManualClock) -> AsyncIterator[Store]:
    opened = migrated(SERVER_URL or f"sqlite:///{tmp_path / 'mesh.db'}", hand_clock)
    yield opened
    await opened.close()
