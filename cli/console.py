"""What every command shares: the console, how a command runs, and where services are.

Receives a coroutine. Hands on its result, or an explained failure and exit status 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import structlog
import typer
from rich.console import Console

from cli.errors import explain
from cli.workspace import Workspace, load_settings, open_workspace
from kernel.runtime.settings import Settings, SettingsError, load

T = TypeVar("T")

# Where nobody looks, lines are not cut to the width of a screen.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)

DataOption = Annotated[
    Path, typer.Option("--data", help="Folder of the embedded databases and keys.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="SLUICE_CONFIG",
        help="YAML file of settings; SLUICE_... goes over it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; what a person can act on is explained, not traced."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        lines = explain(error)
        if lines is None:
            raise
        fail(*lines)


def fail(*lines: str) -> NoReturn:
    """Say what happened and what to do, and exit with 1."""
    for line in lines:
        err.print(line, markup=False)
    raise typer.Exit(1)


def settings_of(
    data: Path, config: Path | None, opened: Callable[[Path], Workspace] = open_workspace
) -> tuple[Workspace, Settings]:
    """The data folder and its settings; what is wrong with them is explained."""
    try:
        workspace = opened(data)
        return workspace, load_settings(workspace, config)
    except Exception as error:
        lines = explain(error)
        if lines is None:
            raise
        fail(*lines)


def client_settings(config: Path | None) -> Settings:
    """Where the services are, for a command that only talks to them."""
    try:
        return load(config, os.environ)
    except SettingsError as error:
        fail(str(error))


def token() -> str:
    """The caller's bearer token, from the file that SLUICE_TOKEN_FILE names, or none."""
    path = os.environ.get("SLUICE_TOKEN_FILE", "")
    try:
        return Path(path).read_text().strip() if path else ""
    except OSError as error:
        fail(f"SLUICE_TOKEN_FILE: {path} cannot be read ({error.strerror}).")


def log_to_stderr(least: int = logging.INFO) -> None:
    """Structured logs of at least this level, one line each, away from what is printed."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(least),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(),
        ],
        # Looked up at each line: what standard error is can change under a test or a host.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
