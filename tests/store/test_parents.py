"""Receives parents and policies on a real store; checks compare-and-set, keys and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from kernel.decision import Policy, Rule
from kernel.lifecycle import CaseState
from kernel.store import decisions, parents, policies
from kernel.store.decisions import Evidence, NewDecision
from kernel.store.parents import NewParent, Parent
from kernel.store.transaction import Store, Tx
from tests import factories
from tests.manual_clock import ManualClock
from tests.store.stores import SECOND, dump, rows


def accepted(tx: Tx, *, seconds: float = 60.0) -> Parent:
    of = factories.parent(tx.now(), seconds=seconds)
    parents.insert(tx, [of])
    found = parents.get(tx, of.id)
    assert found is not None
    return found


def reread(store: Store, parent: Parent) -> Parent:
    found = store.read_now(parents.get, parent.id)
    assert found is not None
    return found


def test_a_parent_reads_back_as_it_was_written(store: Store) -> None:
    def insert(tx: Tx) -> tuple[NewParent, Parent | None]:
        of = replace(factories.parent(tx.now()), labels={"a": "ü", "b": ""})
        parents.insert(tx, [of])
        return of, parents.by_logical_key(tx, of.tenant_id, of.kind, of.logical_key)

    of, found = store.write_now(insert)
    assert found is not None
    for name in NewParent.__dataclass_fields__:
        assert getattr(found, name) == getattr(of, name)
    assert (found.state, found.version, found.wake_at) == (CaseState.PENDING, 1, of.deadline)


def test_i1_a_logical_key_is_taken_once(store: Store) -> None:
    of = factories.parent(1_800_000_000 * SECOND)
    store.write_now(parents.insert, [of])
    before = store.read_now(dump)
    with pytest.raises(IntegrityError):
        store.write_now(parents.insert, [replace(of, id="f" * 32)])
    assert store.read_now(dump) == before
    # The same key of another tenant, or of another kind, is another intent.
    store.write_now(parents.insert, [replace(of, id="a" * 32, tenant_id="other")])
    store.write_now(parents.insert, [replace(of, id="b" * 32, kind="MESSAGE")])


def test_i1_equal_inputs_of_one_case_are_one_task(store: Store) -> None:
    of = factories.parent(1_800_000_000 * SECOND)
    one = factories.task(of, 1, "text")
    with pytest.raises(IntegrityError):
        store.write_now(factories.add_case, of, [one, replace(one, n=2)])
    assert store.read_now(dump)["parents"] == []
    other_version = replace(one, n=2, model_version="2")
    other_input = replace(one, n=3, input_digest="f" * 64)
    store.write_now(factories.add_case, of, [one, other_version, other_input])


KEYS = ["k1", "K1", "k1 ", "café", "cafe", "🍣", "🍺", "k1\t", "cafe\u0301", "", " "]


def test_case_7_01_keys_compare_byte_for_byte(store: Store) -> None:
    now = 1_800_000_000 * SECOND
    cases = [replace(factories.parent(now), logical_key=key) for key in KEYS]
    for case in cases:
        store.write_now(parents.insert, [case])
    for case in cases:
        found = store.read_now(parents.by_logical_key, "acme", "CONTENT", case.logical_key)
        assert found is not None
        assert (found.id, found.logical_key) == (case.id, case.logical_key)
    assert store.read_now(parents.by_logical_key, "ACME", "CONTENT", "k1") is None
    assert store.read_now(parents.by_logical_key, "acme", "CONTENT", "k1  ") is None


# ---- compare-and-set --------------------------------------------------------------------


def test_case_6_01_of_two_deciders_with_one_version_one_loses_and_changes_nothing(
    store: Store,
) -> None:
    seen = store.write_now(accepted)
    assert store.write_now(parents.decide, seen, CaseState.APPROVED)
    before = reread(store, seen)
    assert (before.state, before.version, before.wake_at) == (CaseState.APPROVED, 2, None)
    assert not store.write_now(parents.decide, seen, CaseState.REJECTED)
    assert not store.write_now(parents.decide, seen, CaseState.APPROVED, any_time=True)
    assert reread(store, seen) == before


@pytest.mark.parametrize(
    "stale",
    [lambda p: replace(p, version=0), lambda p: replace(p, state=CaseState.IN_REVIEW)],
)
def test_a_decision_on_another_version_or_state_is_lost(store: Store, stale: object) -> None:
    seen = store.write_now(accepted)
    assert not store.write_now(parents.decide, stale(seen), CaseState.APPROVED)  # type: ignore[operator]
    assert reread(store, seen) == seen


def test_i5_the_database_refuses_an_automatic_verdict_at_the_deadline(
    store: Store, clock: ManualClock
) -> None:
    seen = store.write_now(accepted, seconds=10.0)
    clock.advance(10.0)
    assert not store.write_now(parents.decide, seen, CaseState.APPROVED)
    assert reread(store, seen).state is CaseState.PENDING
    assert store.write_now(parents.decide, seen, CaseState.IN_REVIEW, any_time=True)
    assert reread(store, seen).decided_at == clock.now_micros()


def test_i5_the_last_microsecond_before_the_deadline_is_in_time(
    store: Store, clock: ManualClock
) -> None:
    seen = store.write_now(accepted, seconds=10.0)
    clock.advance(9.999999)
    assert store.write_now(parents.decide, seen, CaseState.APPROVED)


def test_a_wish_to_cancel_is_recorded_once_and_loses_nobodys_decision_unseen(
    store: Store,
) -> None:
    seen = store.write_now(accepted)
    assert store.write_now(parents.request_cancel, seen.id)
    assert not store.write_now(parents.request_cancel, seen.id)
    # The wish raised the version: a decision from before it must look again.
    assert not store.write_now(parents.decide, seen, CaseState.APPROVED)
    assert store.write_now(parents.decide, reread(store, seen), CaseState.CANCELLED)
    assert not store.write_now(parents.request_cancel, seen.id)


def test_a_parent_is_due_at_its_deadline_until_it_is_decided(
    store: Store, clock: ManualClock
) -> None:
    seen = store.write_now(accepted, seconds=10.0)
    assert store.read_now(parents.due, 5) == []
    clock.advance(10.0)
    assert store.read_now(parents.due, 5) == [seen.id]
    store.write_now(parents.postpone, seen.id, 5 * SECOND)
    assert store.read_now(parents.due, 5) == []
    clock.advance(5.0)
    store.write_now(parents.decide, seen, CaseState.FAILED, any_time=True)
    assert store.read_now(parents.due, 5) == []
    store.write_now(parents.postpone, seen.id, 5 * SECOND)
    assert reread(store, seen).wake_at is None


# ---- what is never edited ---------------------------------------------------------------


def test_i13_a_policy_version_is_stored_once_and_stays_as_it_is(store: Store) -> None:
    first = Policy("default", 1, (Rule("*", 0.8, 0.5), Rule("spam", None, 0.1)))
    store.write_now(policies.insert, first, "ann")
    changed = replace(first, rules=(Rule("*", 0.1),))
    with pytest.raises(IntegrityError):
        store.write_now(policies.insert, changed, "bob")
    second = replace(changed, version=2)
    assert store.write_now(policies.put_missing, [second, changed], "bob") == changed
    assert [p.policy.version for p in store.read_now(policies.listed)] == [1]
    assert store.write_now(policies.put_missing, [first, second], "bob") is None
    stored = store.read_now(policies.get, "default", 1)
    assert stored is not None
    assert (stored.policy, stored.author) == (first, "ann")
    newest = store.read_now(policies.newest, "default")
    assert newest is not None
    assert newest.policy.version == 2
    assert store.read_now(policies.newest, "none") is None
    assert [p.policy.version for p in store.read_now(policies.listed)] == [1, 2]


def test_i13_a_decision_version_is_appended_once_and_reads_back_whole(store: Store) -> None:
    seen = store.write_now(accepted)
    evidence = (Evidence(f"{seen.id}.1", "text", "1", "d" * 64, {"spam": 0.25}),)
    decision = NewDecision(
        seen.id, 1, CaseState.APPROVED, "ALL_BELOW", "default", 1, "spam>=0.8", evidence
    )
    store.write_now(decisions.append, [decision])
    with pytest.raises(IntegrityError):
        store.write_now(decisions.append, [replace(decision, outcome=CaseState.REJECTED)])
    (stored,) = store.read_now(decisions.listed, seen.id)
    assert stored.evidence == evidence
    assert (stored.outcome, stored.decided_by) == (CaseState.APPROVED, "policy")


def test_a_rule_with_a_long_category_is_cut_at_a_characters_end(store: Store) -> None:
    seen = store.write_now(accepted)
    long = NewDecision(seen.id, 1, CaseState.REJECTED, "r" * 200, "default", 1, "ü" * 200, ())
    store.write_now(decisions.append, [long])
    (stored,) = store.read_now(decisions.listed, seen.id)
    assert stored.rule == "ü" * 128
    assert len(store.read_now(rows, "decisions")) == 1
