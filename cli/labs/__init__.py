"""`sluice lab NAME`: a claim of the design, shown on the real cores and checked.

Receives a lab's name. Hands on what the lab saw and whether its assertions hold; exit status 1
when one does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import orjson
import typer

from cli.console import JsonOption, log_to_stderr, out
from cli.labs import aggregation, fencing, unknown_outcome
from cli.labs.report import Check, Report

_LONGEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab: what it shows, and its play, which fills a report."""

    summary: str
    play: Callable[[Report], Awaitable[None]]


LABS: dict[str, Lab] = {
    "fencing": Lab("a lease that ran out does not mean that its holder is gone", fencing.run),
    "unknown_outcome": Lab(
        "a call that may have happened is UNKNOWN until evidence settles it", unknown_outcome.run
    ),
    "aggregation": Lab(
        "a verdict rests on the set of required results, never on a count of messages",
        aggregation.run,
    ),
}


def lab(
    name: Annotated[str, typer.Argument(metavar="NAME", help=", ".join(LABS))],
    as_json: JsonOption = False,
) -> None:
    """Play one of the labs and check what it shows."""
    if name not in LABS:
        raise typer.BadParameter(f"there is {', '.join(LABS)}", param_hint="NAME")
    log_to_stderr(logging.WARNING)
    report = asyncio.run(play(name))
    if as_json:
        document = orjson.dumps(report.document(), option=orjson.OPT_INDENT_2)
        out.print(document.decode(), markup=False)
    else:
        report.print(out)
    if not report.passed:
        raise typer.Exit(1)


async def play(name: str) -> Report:
    """One run of a lab. A play that breaks off is a failed assertion of its report."""
    chosen = LABS[name]
    report = Report(name, chosen.summary)
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            await chosen.play(report)
    except Exception as error:
        found = f"{type(error).__name__}: {error}".rstrip(": ")
        report.checks.append(Check("the lab runs to its end", False, found))
    return report
