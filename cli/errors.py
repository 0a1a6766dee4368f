"""Failures as the person at the terminal reads them.

Receives what a command raised. Hands on three things: what happened, what it means for
their data, and what to do next; then exit status 1.
"""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError

from kernel.errors import Problem
from kernel.limits import BrokenRelationError
from kernel.runtime.rpc import AddressTakenError
from kernel.runtime.settings import SettingsError
from kernel.runtime.vault import VaultKeyError
from kernel.store.migrations import SchemaOutdatedError


def explain(error: BaseException) -> list[str] | None:
    """Lines for a person; None for an error that is a fault of ours."""
    if isinstance(error, grpc.aio.AioRpcError):
        return _of_call(error)
    if isinstance(error, Problem):
        return [error.message]
    if isinstance(error, SettingsError | BrokenRelationError | VaultKeyError | SchemaOutdatedError):
        return [str(error), "Nothing was started. Correct the setting and start again."]
    if isinstance(error, ArgumentError | NoSuchModuleError):
        return ["A database URL cannot be read; give it as SQLAlchemy does. Nothing was started."]
    if isinstance(error, DatabaseError):
        return [
            "A database cannot be used: it is away, or the file is no database. Nothing was "
            "started.",
            "sluice doctor says which, and what to do.",
        ]
    if isinstance(error, AddressTakenError):
        return [str(error)]
    if isinstance(error, OSError):
        return [f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"]
    return None


def _of_call(error: grpc.aio.AioRpcError) -> list[str]:
    if error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata():
        return [
            "No service answers at this address; nothing was changed.",
            "Start one with: sluice up   (sluice doctor says what is reachable)",
        ]
    told = [error.details() or error.code().name]
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for packed in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if packed.Is(info.DESCRIPTOR):
            packed.Unpack(info)
            extra = ", ".join(f"{k}: {v}" for k, v in sorted(info.metadata.items()))
            told.append(f"reason {info.reason}" + (f" ({extra})" if extra else ""))
    if error.code() is grpc.StatusCode.ALREADY_EXISTS:
        told.append("The first request stands. Send the new content as a new content_version.")
    return told
