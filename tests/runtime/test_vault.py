"""Receives payloads and keys; checks that only what was sealed opens, and only with its key."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.environment import Environment
from kernel.runtime.vault import PayloadGoneError, Vault, VaultKeyError, VaultKeys
from kernel.store.transaction import Store
from tests.manual_clock import ManualClock
from tests.store.stores import SECOND, migrated, rows

steady = settings(derandomize=True, max_examples=200, deadline=None)

ONE, TWO = bytes(range(32)), bytes(range(1, 33))
KEYS = VaultKeys([("k1", ONE)])


@steady
@given(st.binary(max_size=200), st.binary(max_size=20))
def test_what_is_sealed_opens_again_and_shows_nothing(plain: bytes, bound_to: bytes) -> None:
    sealed = KEYS.seal(plain, bound_to)
    assert KEYS.open(sealed, bound_to) == plain
    if len(plain) > 3:
        assert plain not in sealed


def test_i8_the_same_bytes_are_sealed_differently_each_time() -> None:
    assert len({KEYS.seal(b"123456") for _ in range(50)}) == 50


@steady
@given(st.binary(min_size=1, max_size=40), st.data())
def test_any_changed_byte_is_refused(plain: bytes, data: st.DataObject) -> None:
    sealed = bytearray(KEYS.seal(plain))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(VaultKeyError):
        KEYS.open(bytes(sealed))


@steady
@given(st.binary(max_size=40))
def test_bytes_that_were_never_sealed_are_refused(rubbish: bytes) -> None:
    with pytest.raises(VaultKeyError):
        KEYS.open(rubbish)


@pytest.mark.parametrize("cut", [0, 1, 3, 8, 14, 20])
def test_a_cut_payload_is_refused(cut: int) -> None:
    with pytest.raises(VaultKeyError):
        KEYS.open(KEYS.seal(b"a payload")[:cut])


def test_what_was_sealed_for_one_reference_does_not_open_for_another() -> None:
    sealed = KEYS.seal(b"plain", b"ref-1")
    for other in (b"ref-2", b"", b"ref-"):
        with pytest.raises(VaultKeyError):
            KEYS.open(sealed, other)


def test_a_rotated_key_opens_what_it_sealed_and_the_new_one_seals() -> None:
    before = VaultKeys([("old", ONE)])
    after = VaultKeys([("new", TWO), ("old", ONE)])
    assert after.open(before.seal(b"plain")) == b"plain"
    with pytest.raises(VaultKeyError, match="'new' is not configured"):
        before.open(after.seal(b"plain"))
    with pytest.raises(VaultKeyError, match="does not open"):
        VaultKeys([("old", TWO)]).open(before.seal(b"plain"))


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_are_read_with_the_sealing_one_first() -> None:
    keys = VaultKeys.parse(f" new:{encoded(TWO)} , old:{encoded(ONE)},")
    assert keys.seal(b"x")[1:4] == b"new"
    assert keys.open(KEYS_OLD.seal(b"x")) == b"x"


KEYS_OLD = VaultKeys([("old", ONE)])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no key"),
        (" , ", "holds no key"),
        (encoded(ONE), "key number 1 is not id:base64"),
        ("k1:", "key number 1 is not id:base64"),
        ("k1:!!", "key number 1 is not id:base64"),
        (f"k1:{encoded(ONE)},{encoded(TWO)}", "key number 2 is not id:base64"),
        (f"k1:{encoded(ONE[:16])}", "key number 1: 32 bytes"),
        (f":{encoded(ONE)}", "key number 1: 32 bytes and an id"),
        (f"{encoded(ONE)}:key1", "key number 1: 32 bytes"),
        (f"{'k' * 33}:{encoded(ONE)}", "id of 1 to 32"),
        (f"k1:{encoded(ONE)},k1:{encoded(TWO)}", "same id"),
    ],
)
def test_i8_keys_that_cannot_be_used_are_refused_without_being_shown(
    text: str, reason: str
) -> None:
    with pytest.raises(VaultKeyError, match=reason) as refused:
        VaultKeys.parse(text)
    for secret in (encoded(ONE), encoded(TWO), encoded(ONE[:16])):
        assert secret not in str(refused.value)


# ---- in its table -----------------------------------------------------------------------


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    opened = migrated(f"sqlite:///{tmp_path / 'vault.db'}", clock, "vault")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_payloads_come_back_by_reference_and_are_stored_sealed(
    store: Store, clock: ManualClock
) -> None:
    vault = Vault(store, KEYS, Environment(clock=clock))
    later = clock.now_micros() + 60 * SECOND
    refs = await vault.put([b"PRIVATE-TEXT", b"", b"\x00" * 100_000], later)
    assert len(set(refs)) == 3
    assert [await vault.open(ref) for ref in refs] == [b"PRIVATE-TEXT", b"", b"\x00" * 100_000]
    stored = await store.read(rows, "payloads")
    assert all(b"PRIVATE" not in row.sealed for row in stored)
    assert await vault.put([], later) == []


async def test_a_stored_payload_does_not_open_under_the_reference_of_another(
    store: Store, clock: ManualClock
) -> None:
    vault = Vault(store, KEYS, Environment(clock=clock))
    one, other = await vault.put([b"one", b"other"], clock.now_micros() + SECOND)
    with store.engine.begin() as connection:
        connection.exec_driver_sql(
            "update payloads set sealed = (select sealed from payloads where ref = ?) "
            "where ref = ?",
            (one, other),
        )
    with pytest.raises(VaultKeyError):
        await vault.open(other)


async def test_a_payload_is_gone_after_its_time_and_not_before(
    store: Store, clock: ManualClock
) -> None:
    vault = Vault(store, KEYS, Environment(clock=clock))
    (ref,) = await vault.put([b"plain"], clock.now_micros() + 10 * SECOND)
    clock.advance(9.999999)
    assert await vault.expire() == 0
    assert await vault.open(ref) == b"plain"
    clock.advance(0.000001)
    assert await vault.expire() == 1
    with pytest.raises(PayloadGoneError):
        await vault.open(ref)
    with pytest.raises(PayloadGoneError):
        await vault.open("f" * 32)


async def test_what_is_stored_elsewhere_is_sealed_too(store: Store, clock: ManualClock) -> None:
    vault = Vault(store, KEYS, Environment(clock=clock))
    sealed = vault.seal(b"raw receipt")
    assert b"receipt" not in sealed
    assert vault.unseal(sealed) == b"raw receipt"
