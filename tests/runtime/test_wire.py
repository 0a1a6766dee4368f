"""Receives messages as strangers can send them; checks that what is no value is none."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.runtime import wire
from mesh.v1 import types_pb2 as types
from mesh.v1 import vendor_proxy_pb2 as proxy


@pytest.mark.parametrize(
    "stamp", [Timestamp(nanos=-1), Timestamp(nanos=1_000_000_000), Timestamp(seconds=1 << 40)]
)
def test_a_timestamp_that_is_none_is_no_time(stamp: Timestamp) -> None:
    assert wire.micros(proxy.ExecuteRequest(deadline=stamp), "deadline") == 0


def test_microseconds_come_back_as_they_went() -> None:
    sent = proxy.ExecuteRequest(deadline=wire.timestamp(1_234_567))
    assert wire.micros(sent, "deadline") == 1_234_567
    assert wire.micros(proxy.ExecuteRequest(), "deadline") == 0
    assert wire.timestamp(0) is None


def test_a_rule_of_a_mode_that_nobody_knows_is_no_rule() -> None:
    rule = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 2, 5)
    assert wire.on_unknown(wire.on_unknown_message(rule)) == rule
    for mode in (0, 99):
        assert wire.on_unknown(types.OnUnknown(mode=mode)) is None  # type: ignore[arg-type]
