"""Receives tokens, roles and addresses; checks who is let in, and for what."""

from __future__ import annotations

import grpc
import pytest

from kernel import errors
from kernel.environment import Environment
from kernel.runtime.rpc import (
    LOCAL,
    Authenticator,
    Caller,
    RpcServer,
    current_caller,
    is_loopback,
)
from tests.runtime.probe import METHOD, STREAM, Probe

APP = Caller("app", frozenset({"acme"}), frozenset({"submit", "read"}))


async def named(_: bytes) -> bytes:
    return current_caller().name.encode()


@pytest.mark.parametrize("method", [METHOD, STREAM])
async def test_a_caller_is_known_by_its_token_alone(method: str) -> None:
    async with Probe({"t0ken": APP}) as probe:
        probe.handle = named
        assert (await probe.call(method, "t0ken")).endswith(b"app")
        for wrong in ("", "T0KEN", "t0ken ", "t0kenn"):
            error = await probe.refused(method, wrong)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert wrong == "" or wrong not in (error.details() or "")


async def test_where_nobody_is_declared_everybody_is_local(probe: Probe) -> None:
    probe.handle = named
    assert await probe.call() == b"local"
    assert await probe.call(token="anything") == b"local"


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("Bearer t0ken", True),
        ("bearer t0ken", True),
        ("Basic t0ken", False),
        ("t0ken", False),
        ("Bearer  t0ken", False),
        ("", False),
    ],
)
def test_only_a_bearer_token_is_taken(header: str, *, known: bool) -> None:
    authenticator = Authenticator({"t0ken": APP})
    if known:
        assert authenticator.caller([("x", "y"), ("authorization", header)]) is APP
        return
    with pytest.raises(errors.Unauthenticated):
        authenticator.caller([("authorization", header)])
    with pytest.raises(errors.Unauthenticated):
        authenticator.caller([("authorization", b"Bearer t0ken")])


def test_a_caller_may_do_what_its_roles_and_tenants_allow() -> None:
    APP.require("submit", "acme")
    APP.require("read")
    with pytest.raises(errors.PermissionDenied, match="lacks the role operate"):
        APP.require("operate", "acme")
    with pytest.raises(errors.PermissionDenied, match="may not act for this tenant"):
        APP.require("submit", "other")
    LOCAL.require("gateway", "anyone")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("example.org:1", False),
    ],
)
def test_only_loopback_is_loopback(address: str, *, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_an_open_server_refuses_to_listen_to_the_world() -> None:
    with pytest.raises(ValueError, match="declare callers with tokens"):
        RpcServer([], lambda _: None, "0.0.0.0:0", Authenticator({}), Environment())
