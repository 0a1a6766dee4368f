"""Receives nothing; hands each test a served probe that knows no caller."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.probe import Probe


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    async with Probe() as served:
        yield served
