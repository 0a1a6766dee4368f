"""The command `sluice`: its list of commands.

Receives what was typed. Hands on to one module a command; exit status 0 only when the work
was done, 2 on wrong usage.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from cli import demo as demos
from cli import doctor, judging, serving, showing, submitting
from cli.console import fail, log_to_stderr, out, run
from cli.labs import lab
from cli.outcome import FAULTS_STRIKE_FROM
from kernel.environment import Environment

app = typer.Typer(
    help="A gRPC service mesh for work done by vendors that are slow, metered, and sometimes "
    "do the work and lose the answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
submit = typer.Typer(help="Hand in work.", no_args_is_help=True)
submit.command("content")(submitting.submit_content)
database = typer.Typer(help="The databases.", no_args_is_help=True)
database.command("upgrade")(serving.upgrade)
app.command()(serving.up)
app.command()(serving.serve)
app.command("vendor-sim")(serving.vendor_sim)
app.command()(serving.models)
app.add_typer(submit, name="submit")
app.command()(showing.show)
app.add_typer(showing.unknown, name="unknown")
app.command()(showing.pools)
app.command()(judging.judge)
app.command()(lab)
app.add_typer(database, name="db")
app.command()(doctor.doctor)


@app.command()
def demo(
    contents: Annotated[int, typer.Option(min=1, help="How many contents.")] = 500,
    folder: Annotated[Path, typer.Option(help="Where its databases go.")] = Path(".run/demo"),
    report: Annotated[Path, typer.Option(help="Where the figures go.")] = Path(".run/demo.json"),
) -> None:
    """The main job on vendors that hide answers, throttle, drop and repeat."""
    log_to_stderr(logging.WARNING)
    found = run(demos.run(folder, contents, out, Environment()))
    demos.write(found.outcome, report)
    out.print(found.outcome.table())
    if found.story:
        out.print("One task that was UNKNOWN:")
    for line in found.story:
        out.print("  " + line, markup=False)
    out.print(f"figures in {report}", markup=False)
    broken = found.outcome.broken()
    if broken:
        fail("An invariant does not hold:", *broken, f"The databases are kept in {folder}.")
    if found.outcome.calm:
        remark = "No fault struck, so no call became UNKNOWN; more --contents meet more faults."
        if contents >= FAULTS_STRIKE_FROM:
            fail(remark)
        out.print(remark, markup=False)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
