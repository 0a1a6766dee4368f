"""Receives nothing; hands tests a lab's command, and leaves the logs as it found them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import structlog
from typer.testing import CliRunner, Result

from cli.main import app

Lab = Callable[..., Result]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """`sluice lab ...`, in this process."""
    yield lambda *arguments: CliRunner().invoke(app, ["lab", *arguments])
    # The command logs to a stream that is gone with it.
    structlog.reset_defaults()
