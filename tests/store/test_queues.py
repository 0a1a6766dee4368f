"""Receives markers and outbox rows; checks that none is lost, skipped or forgotten too soon."""

from __future__ import annotations

import pytest

from kernel.store import closures, markers, outbox
from kernel.store.transaction import Store, Tx
from tests.manual_clock import ManualClock
from tests.store.stores import SECOND, rows, run

ONE, OTHER = "a" * 32, "b" * 32


# ---- change markers ---------------------------------------------------------------------


def test_a_transaction_leaves_one_marker_for_each_parent_that_changed(store: Store) -> None:
    store.write_now(markers.append, [ONE, OTHER, ONE])
    store.write_now(markers.append, [])
    found = store.read_now(markers.oldest, 10)
    assert {parent: len(ids) for parent, ids in found.items()} == {ONE: 1, OTHER: 1}


def test_exactly_the_markers_that_were_read_are_deleted(store: Store) -> None:
    store.write_now(markers.append, [ONE])
    read = store.read_now(markers.of_parent, ONE)
    # It changes again between the read of the children and the write of the decision.
    store.write_now(markers.append, [ONE])
    store.write_now(markers.delete, read)
    left = store.read_now(markers.of_parent, ONE)
    assert len(left) == 1
    assert not set(left) & set(read)
    store.write_now(markers.delete, read)
    assert store.read_now(markers.of_parent, ONE) == left


def test_the_id_of_a_deleted_marker_is_never_given_again(store: Store) -> None:
    seen: set[int] = set()
    for _ in range(5):
        store.write_now(markers.append, [ONE])
        ids = store.read_now(markers.of_parent, ONE)
        assert not seen & set(ids)
        seen |= set(ids)
        store.write_now(markers.delete, ids)


def test_markers_are_read_the_oldest_first_and_page_by_page(store: Store) -> None:
    for parent in (ONE, OTHER, ONE, OTHER):
        store.write_now(markers.append, [parent])
    first = store.read_now(markers.oldest, 3)
    assert {parent: len(ids) for parent, ids in first.items()} == {ONE: 2, OTHER: 1}
    last = max(marker for ids in first.values() for marker in ids)
    assert list(store.read_now(markers.oldest, 3, last)) == [OTHER]


# ---- the outbox -------------------------------------------------------------------------


def append(store: Store, *names: str) -> None:
    store.write_now(outbox.append, [(name, f"key-{name}", {"id": name}) for name in names])


def lease(store: Store, owner: str, most: int = 10, seconds: float = 10.0) -> list[str]:
    taken = store.write_now(outbox.lease, owner, most, int(seconds * SECOND))
    return [row.topic for row in taken]


def ids(store: Store) -> list[int]:
    return [row.id for row in store.read_now(rows, "outbox")]


def test_a_leased_row_belongs_to_its_relay_alone(store: Store) -> None:
    append(store, "a", "b", "c")
    assert lease(store, "relay-1", 2) == ["a", "b"]
    assert lease(store, "relay-2") == ["c"]
    assert lease(store, "relay-1") == []


def test_a_row_reads_back_as_it_was_written(store: Store) -> None:
    append(store, "a")
    (row,) = store.write_now(outbox.lease, "relay-1", 1, SECOND)
    assert (row.topic, row.key, row.body) == ("a", "key-a", '{"id":"a"}')


def test_a_row_is_deleted_by_its_owner_alone(store: Store) -> None:
    append(store, "a", "b")
    lease(store, "relay-1", 1)
    before = ids(store)
    store.write_now(outbox.delete, "relay-2", before)
    assert ids(store) == before
    store.write_now(outbox.delete, "relay-1", before)
    assert ids(store) == before[1:]


def test_case_3_12_what_a_dead_relay_held_is_published_by_another(
    store: Store, clock: ManualClock
) -> None:
    append(store, "a")
    assert lease(store, "relay-1") == ["a"]
    held = ids(store)
    clock.advance(9.9)
    assert lease(store, "relay-2") == []
    clock.advance(0.1)
    assert lease(store, "relay-2") == ["a"]
    # The first one comes back: the row is no longer its to delete.
    store.write_now(outbox.delete, "relay-1", held)
    assert ids(store) == held


def test_case_3_01_a_lower_id_that_comes_later_is_not_skipped(store: Store) -> None:
    append(store, "early")
    (low,) = ids(store)
    append(store, "late")
    # As if the transaction of the lower id committed after the relay had read the higher one.
    store.write_now(run, "delete from outbox where topic = 'early'")
    assert lease(store, "relay-1") == ["late"]
    store.write_now(outbox.delete, "relay-1", ids(store))
    store.write_now(
        run,
        """insert into outbox (id, topic, record_key, body, leased_until, lease_owner,
             created_at) values (:id, 'early', '', '{}', 0, '', 0)""",
        id=low,
    )
    assert lease(store, "relay-1") == ["early"]


def test_case_3_01_a_gap_of_a_rolled_back_row_stalls_nothing(store: Store) -> None:
    append(store, "a")

    def fails(tx: Tx) -> None:
        outbox.append(tx, [("gone", "", {})])
        raise ValueError("rolled back")

    with pytest.raises(ValueError, match="rolled back"):
        store.write_now(fails)
    append(store, "b")
    assert lease(store, "relay-1") == ["a", "b"]


def test_nothing_to_tell_writes_nothing(store: Store) -> None:
    store.write_now(outbox.append, [])
    assert lease(store, "relay-1") == []


# ---- closures ---------------------------------------------------------------------------


def test_case_4_11_a_closure_is_only_ever_lengthened_and_ends_by_itself(
    store: Store, clock: ManualClock
) -> None:
    store.write_now(closures.close, "pool-a", 30 * SECOND)
    store.write_now(closures.close, "pool-a", 10 * SECOND)
    assert store.read_now(closures.closed) == {"pool-a": clock.now_micros() + 30 * SECOND}
    clock.advance(10.0)
    store.write_now(closures.close, "pool-a", 40 * SECOND)
    store.write_now(closures.close, "pool-b", SECOND)
    assert set(store.read_now(closures.closed)) == {"pool-a", "pool-b"}
    clock.advance(40.0)
    assert store.read_now(closures.closed) == {}
