"""What one look at the store finds: changed and due parents with all their children.

Receives the open transaction. Hands on `Case`s: markers are read first, then the children,
so a marker that is deleted later has been seen. Small sets are read at every change; a large
one only when that can matter. Source: DESIGN sections 2 and 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel.decision import Child, Policy, Snapshot, adopt, review_demanded
from kernel.lifecycle import CaseState, State
from kernel.store import markers, parents, policies, snapshots
from kernel.store.decisions import LateResult
from kernel.store.parents import Parent
from kernel.store.snapshots import ChildRow
from kernel.store.transaction import Tx
from services.aggregator import late

KIND = "CONTENT"

ALWAYS_READ = 64
"""Children: a set up to this size is read at every change."""

READS_OF_A_SET = 16
"""A larger set is read when its markers reach this part of it, so at most 16 + 1 times."""

OVERLAP_MICROS = 60_000_000
"""Longer than any transaction with its retries: a result stamped before can commit after."""

PolicyKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """A changed or due parent; `parent` None: it is gone.

    `markers` are ids read before the children. `children` None: not read, since the parent
    is decided, gone, of a kind that is not decided here, or (`waits`) a large set that
    waits for more markers. `late`: results that a decided parent's decision did not see.
    """

    parent_id: str
    parent: Parent | None
    markers: tuple[int, ...] = ()
    due: bool = False
    waits: bool = False
    children: tuple[ChildRow, ...] | None = None
    late: tuple[LateResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """`now` in microseconds by the database's clock; `last_marker` None: no further page."""

    now: int
    cases: tuple[Case, ...]
    policies: Mapping[PolicyKey, Policy]
    last_marker: int | None


def look(
    tx: Tx,
    after_marker: int,
    most: int,
    known: Mapping[PolicyKey, Policy],
    looked_at: Mapping[str, int],
) -> Look:
    """One page of markers, with the first page the due parents, and what is needed of each.

    `known`: policy versions at hand. `looked_at`: when a large set's new results were last
    looked at (microseconds), as far as is remembered.
    """
    marked = markers.oldest(tx, most, after_marker)
    due = set(parents.due(tx, most)) if after_marker == 0 else set()
    now = tx.now()
    found = parents.several(tx, marked.keys() | due)
    versions = _versions(tx, found.values(), known)
    sizes = snapshots.sizes(tx, found)
    cases: list[Case] = []
    read: list[Case] = []
    decided: dict[str, int] = {}
    for parent_id in sorted(marked.keys() | due):
        case = Case(
            parent_id, found.get(parent_id), tuple(marked.get(parent_id, ())), parent_id in due
        )
        parent = case.parent
        if parent is None or parent.kind != KIND:
            cases.append(case)
        elif parent.state is not CaseState.PENDING:
            since = parent.created_at
            if sizes[parent_id] > ALWAYS_READ and parent.decided_at is not None:
                since = parent.decided_at - OVERLAP_MICROS
            decided[parent_id] = since
            cases.append(case)
        elif sizes[parent_id] <= ALWAYS_READ:
            read.append(case)
        else:
            large = replace(case, markers=tuple(markers.of_parent(tx, parent_id)))
            policy = versions.get((parent.policy_id, parent.policy_version))
            since = looked_at.get(parent_id, parent.created_at) - OVERLAP_MICROS
            ripe = (
                case.due
                or parent.cancel_requested_at is not None
                or _matters(tx, parent, policy, len(large.markers), sizes[parent_id], since)
            )
            (read if ripe else cases).append(large if ripe else replace(large, waits=True))
    missed = late.find(tx, decided)
    cases = [replace(case, late=missed.get(case.parent_id, ())) for case in cases]
    sets = snapshots.children(tx, [case.parent_id for case in read])
    cases += [replace(case, children=tuple(sets[case.parent_id])) for case in read]
    ids = [marker_id for each in marked.values() for marker_id in each]
    return Look(now, tuple(cases), versions, max(ids) if len(ids) >= most else None)


def snapshot_of(parent: Parent, rows: Sequence[ChildRow]) -> Snapshot:
    """The case as the decision sees it."""
    return Snapshot(
        case_version=parent.version,
        state=parent.state,
        deadline=parent.deadline,
        cancel_requested=parent.cancel_requested_at is not None,
        children=in_time(rows, parent.deadline),
    )


def in_time(rows: Iterable[ChildRow], deadline: int) -> tuple[Child, ...]:
    """The children, each success with whether it came before the deadline."""
    return tuple(_judged(row, deadline) for row in rows)


def _judged(row: ChildRow, deadline: int) -> Child:
    child = row.child
    if child.state is not State.SUCCEEDED or row.result_at is None:
        return child
    return replace(child, adoption=adopt(result_at=row.result_at, deadline=deadline))


def _versions(
    tx: Tx, cases: Iterable[Parent], known: Mapping[PolicyKey, Policy]
) -> dict[PolicyKey, Policy]:
    """The policy versions that pending cases pin, as far as they are stored."""
    found: dict[PolicyKey, Policy] = {}
    pinned = {(c.policy_id, c.policy_version) for c in cases if c.state is CaseState.PENDING}
    for key in sorted(pinned):
        policy = known.get(key)
        if policy is None:
            stored = policies.get(tx, *key)
            policy = stored.policy if stored else None
        if policy is not None:
            found[key] = policy
    return found


def _matters(
    tx: Tx, parent: Parent, policy: Policy | None, waiting: int, size: int, since: int
) -> bool:
    """Whether reading a large set can change anything now."""
    if waiting * READS_OF_A_SET >= size or not snapshots.has_open_required(tx, parent.id):
        return True
    fresh = in_time(snapshots.results_since(tx, parent.id, since), parent.deadline)
    return policy is not None and review_demanded(policy, fresh)
