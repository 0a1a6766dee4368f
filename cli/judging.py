"""`sluice judge`: a folder of files, judged by the local models, with nothing else running.

Receives a folder, or makes one of 20 real text and image files. Starts the models and the
mesh in this process, submits every file, hands on the verdicts.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import processes
from cli.console import DataOption, JsonOption, fail, log_to_stderr, out, run
from cli.demo import FREE_PORTS
from cli.submitting import (
    Submitted,
    UnreadableContentError,
    print_submitted,
    read_file,
    submit_all,
)
from cli.workspace import load_settings, open_workspace
from kernel.environment import Environment
from mesh.v1 import intake_pb2 as intake

_PROFANITY_VERSION, _IMAGE_VERSION = "alt-profanity-check", "nudenet"


def judge(
    folder: Annotated[
        Path | None, typer.Argument(help="Files to judge; none: 20 samples are made.")
    ] = None,
    data: DataOption = Path(".run/judge"),
    as_json: JsonOption = False,
) -> None:
    """Judge a folder of text, image and video files with real local models."""
    log_to_stderr(logging.WARNING)
    from vendors.models.corpus import write_corpus
    from vendors.models.errors import ModelsMissingError

    try:
        if folder is None:
            folder = data / "samples"
            folder.mkdir(parents=True, exist_ok=True)
            write_corpus(folder)
            out.print(f"20 sample files in {folder}", markup=False)
        found = run(judge_contents(read_folder(folder), data))
    except ModelsMissingError as missing:
        fail(str(missing))
    except (UnreadableContentError, OSError) as error:
        fail(str(error), "Nothing was submitted.")
    print_submitted(found, wait=True, as_json=as_json)
    if any(each.unfinished for each in found):
        raise typer.Exit(1)


def read_folder(folder: Path) -> list[tuple[str, intake.SubmitContentRequest]]:
    """The contents of every file of `folder`; raises UnreadableContentError or OSError."""
    if not folder.is_dir():
        raise UnreadableContentError(f"{folder}: is no folder; name one that holds the files")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if not files:
        raise UnreadableContentError(f"{folder}: holds no files")
    return [each for path in files for each in read_file(path, "local", 1)]


async def judge_contents(
    requests: list[tuple[str, intake.SubmitContentRequest]], data: Path
) -> list[Submitted]:
    """Every content, judged by local models; raises ModelsMissingError."""
    from vendors.models.server import serve

    environment = Environment()
    # A folder judged again is a new question: the same names may hold other bytes now.
    review = environment.clock.now_micros() // 1_000
    for _, request in requests:
        request.content_version = review
    models = await serve(0, environment)
    try:
        workspace = open_workspace(data)
        settings = load_settings(
            workspace, None, **FREE_PORTS, **local_models(f"http://127.0.0.1:{models.port}")
        )
        processes.upgrade(settings, environment)
        async with processes.run(settings, workspace.secret, environment) as running:
            return await submit_all(running.intake, running.aggregator, requests, True, 120.0)
    finally:
        await models.stop()


def local_models(endpoint: str) -> dict[str, Any]:
    """Vendors, pools, planning and policies for the local models at `endpoint`."""
    return {
        "vendors": {
            "local": {
                "adapter": "openai-moderations",
                "endpoint": endpoint,
                "client_timeout_seconds": 30,
                "max_execution_seconds": 30,
            }
        },
        "pools": {
            "text": {"vendor": "local", "concurrency": 8},
            "image": {"vendor": "local", "concurrency": 4},
            "video": {"vendor": "local", "concurrency": 4},
        },
        "planning": {
            "rules": [
                {
                    "kind": "TEXT",
                    "models": [
                        {"model": "sluice-text", "version": _PROFANITY_VERSION, "pool": "text"}
                    ],
                },
                {
                    "kind": "IMAGE",
                    "models": [
                        {"model": "sluice-image", "version": _IMAGE_VERSION, "pool": "image"}
                    ],
                },
                {
                    "kind": "VIDEO",
                    "models": [
                        {"model": "sluice-image", "version": _IMAGE_VERSION, "pool": "video"}
                    ],
                },
            ]
        },
        "policies": {"default": {"rules": [{"category": "*", "reject_at": 0.9, "review_at": 0.5}]}},
    }
