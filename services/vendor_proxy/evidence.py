"""Settling the ledger: by the send's own outcome, or by evidence from outside.

Receives outcomes of sends, and terminal answers of receipts, queries and cancels. Hands on
the row's standing and whether the vendor has stopped. A verified success is the stronger
fact; a failure settles only what is surely one execution. Functions take the transaction
first, and never commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel.attempt import CallOutcome, Outcome
from kernel.idempotency import CallState
from kernel.receipt import ReceiptState
from kernel.store import call_evidence, call_sends, calls, raw_receipts
from kernel.store.calls import CallKey, StoredCall
from kernel.store.raw_receipts import NewReceipt, StoredReceipt
from kernel.store.transaction import Tx
from kernel.vendor import VendorProfile
from services.vendor_proxy.ledger import Begun, LedgerRules, shown

_OPEN_AGAIN = frozenset({Outcome.NOT_SENT, Outcome.THROTTLED})


@dataclass(frozen=True, slots=True)
class Ended:
    """A send that ended. `on_wire`: a byte of it may have left.

    `occupied_seconds`: how long its vendor may go on working, None when it has stopped.
    """

    begun: Begun
    outcome: CallOutcome
    on_wire: bool
    occupied_seconds: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a key's row says now. `stopped`: nothing of it is at the vendor any more."""

    outcome: CallOutcome
    stopped: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A receipt in the store. `key` None: its call is not known yet."""

    stored: bool
    key: CallKey | None = None
    stopped: bool = False


def settle(tx: Tx, ends: Sequence[Ended], rules: LedgerRules) -> list[Standing]:
    """Settle sends, then apply receipts that came before their vendor's id was known."""
    rows = [_settle_row(ended, rules) for ended in ends]
    held = call_sends.settle(tx, rows) == len(rows)
    standings = []
    for ended, row in zip(ends, rows, strict=True):
        profile = rules.vendors[row.key.vendor]
        standing = Standing(_of_send(ended, row), _stopped(ended, profile))
        if not held:
            standing = _after_lost_fence(tx, ended, row, standing, rules)
        if profile.able.receipts and _claim_orphans(tx, ended.begun, row.outcome, rules):
            found = calls.look_up(tx, [row.key], rules.write_seconds)[row.key]
            standing = _standing(found, profile)
        standings.append(standing)
    return standings


def claim_early(tx: Tx, begun: Begun, rules: LedgerRules) -> CallOutcome | None:
    """The outcome of a call that receipts settled before it was begun, None as a rule."""
    if not rules.vendors[begun.asked.key.vendor].able.receipts:
        return None
    if not _claim_orphans(tx, begun, None, rules):
        return None
    row = calls.look_up(tx, [begun.asked.key], rules.write_seconds)[begun.asked.key]
    return shown(row) if row.ledger.state is CallState.SETTLED else None


def add(tx: Tx, row: StoredCall, evidence: CallOutcome, profile: VendorProfile) -> bool:
    """Settle `row` by a terminal answer where it takes one; returns whether it did."""
    if not takes(row, evidence, profile):
        return False
    one = one_execution(row, profile)
    frees = one and row.ledger.state is not CallState.PREPARED
    return call_evidence.add_evidence(
        tx, row, evidence, frees=frees, cost_micros=evidence.cost_micros
    )


def takes(row: StoredCall, evidence: CallOutcome, profile: VendorProfile) -> bool:
    """Whether a terminal answer settles this row."""
    state = row.ledger.state
    last = row.outcome.outcome if row.outcome is not None else None
    if state is CallState.FENCED:
        return False
    if evidence.outcome is Outcome.COMPLETED:
        return last is not Outcome.COMPLETED
    still_open = state is not CallState.SETTLED or last is Outcome.ACCEPTED
    return still_open and one_execution(row, profile)


def one_execution(row: StoredCall, profile: VendorProfile) -> bool:
    """Whether all sends of the row are one piece of work for the vendor."""
    return row.doubted_sends == 0 or profile.able.dedupe


def keep_receipt(tx: Tx, receipt: NewReceipt, rules: LedgerRules) -> Kept:
    """Store a receipt once; give it to its call where that is known, as evidence too."""
    if not raw_receipts.store(tx, receipt):
        return Kept(False)
    key = None
    if receipt.reference:
        wanted = (receipt.vendor, receipt.reference)
        key = calls.references(tx, [wanted]).get(wanted)
    if key is None and receipt.external_id:
        key = calls.by_external_id(tx, receipt.vendor, receipt.external_id)
    row = calls.look_up(tx, [key], rules.write_seconds, lock=True).get(key) if key else None
    if row is None:
        return Kept(True)
    raw_receipts.match(tx, receipt.receipt_id, row.key, row.task_id)
    stopped = _apply_receipt(tx, row, receipt, rules)
    return Kept(True, row.key, stopped)


def _claim_orphans(tx: Tx, begun: Begun, outcome: CallOutcome | None, rules: LedgerRules) -> bool:
    key = begun.asked.key
    external_id = outcome.external_id if outcome is not None else ""
    found = raw_receipts.orphans(tx, key.vendor, reference=begun.reference, external_id=external_id)
    for receipt in found:
        raw_receipts.match(tx, receipt.receipt_id, key, begun.asked.request.task_id)
        row = calls.look_up(tx, [key], rules.write_seconds)[key]
        _apply_receipt(tx, row, receipt, rules)
    return bool(found)


def _apply_receipt(
    tx: Tx, row: StoredCall, receipt: NewReceipt | StoredReceipt, rules: LedgerRules
) -> bool:
    profile = rules.vendors[row.key.vendor]
    evidence = _evidence(receipt, profile)
    if evidence is not None:
        add(tx, row, evidence, profile)
    elif receipt.external_id and not row.ledger.external_id:
        call_evidence.learn_external_id(tx, row, receipt.external_id)
    ended = receipt.state in (ReceiptState.SUCCEEDED, ReceiptState.FAILED)
    return ended and one_execution(row, profile) and row.ledger.state is not CallState.PREPARED


def _evidence(receipt: NewReceipt | StoredReceipt, profile: VendorProfile) -> CallOutcome | None:
    """A terminal receipt as an outcome; a success without its result settles nothing here."""
    if receipt.state is ReceiptState.FAILED:
        reason = receipt.reason or "FAILED"
        return CallOutcome(
            Outcome.REJECTED,
            reason,
            external_id=receipt.external_id,
            cost_micros=receipt.cost_micros or 0,
        )
    if receipt.state is ReceiptState.SUCCEEDED and receipt.scores is not None:
        cost = profile.price_micros if receipt.cost_micros is None else receipt.cost_micros
        return CallOutcome(
            Outcome.COMPLETED,
            scores=receipt.scores,
            external_id=receipt.external_id,
            cost_micros=cost,
        )
    return None


def _settle_row(ended: Ended, rules: LedgerRules) -> call_sends.Settle:
    begun, outcome = ended.begun, ended.outcome
    again = outcome.outcome in _OPEN_AGAIN or (
        outcome.outcome is Outcome.REJECTED and outcome.retryable
    )
    # This send did nothing, which says nothing of the earlier ones that are in doubt.
    says_nothing = begun.doubted_sends > 0 and (again or not ended.on_wire)
    doubt = outcome.outcome is Outcome.UNKNOWN or says_nothing
    nothing_done = not ended.on_wire or outcome.outcome is Outcome.THROTTLED
    able = rules.vendors[begun.asked.key.vendor].able
    final = ended.on_wire and outcome.outcome in (Outcome.COMPLETED, Outcome.REJECTED) and not again
    return call_sends.Settle(
        key=begun.asked.key,
        incarnation=begun.incarnation,
        send_number=begun.send_number,
        state=CallState.UNKNOWN if doubt else CallState.SETTLED,
        outcome=outcome,
        occupied_seconds=ended.occupied_seconds,
        sends_back=int(not ended.on_wire),
        marks_back=int(begun.marked and nothing_done),
        doubt_over=able.dedupe and final,
    )


def _of_send(ended: Ended, row: call_sends.Settle) -> CallOutcome:
    begun = ended.begun
    return replace(
        ended.outcome,
        sends=begun.sends - row.sends_back,
        possible_duplicates=begun.possible_duplicates - row.marks_back,
        cost_micros=begun.cost_micros + ended.outcome.cost_micros,
    )


def _stopped(ended: Ended, profile: VendorProfile) -> bool:
    final = ended.outcome.outcome in (Outcome.COMPLETED, Outcome.REJECTED)
    one = ended.begun.doubted_sends == 0 or (profile.able.dedupe and ended.on_wire)
    return final and one


def _standing(row: StoredCall, profile: VendorProfile) -> Standing:
    settled = row.ledger.state is CallState.SETTLED and row.outcome is not None
    final = settled and shown(row).outcome in (Outcome.COMPLETED, Outcome.REJECTED)
    return Standing(replace(shown(row), replayed=False), final and one_execution(row, profile))


def _after_lost_fence(
    tx: Tx, ended: Ended, settled: call_sends.Settle, own: Standing, rules: LedgerRules
) -> Standing:
    """What stands after a settle whose fence did not hold: evidence or a newer send came first."""
    key, ours = settled.key, settled.outcome
    row = calls.look_up(tx, [key], rules.write_seconds)[key]
    same_send = (row.incarnation, row.send_number) == (settled.incarnation, settled.send_number)
    profile = rules.vendors[key.vendor]
    theirs = row.outcome
    if same_send and theirs is not None and _same(theirs, ours):
        return own  # it is in: another batch member lost, or the commit's answer did
    # Evidence that ended the call says too that its vendor has stopped.
    if same_send and _standing(row, profile).stopped:
        settled = replace(settled, occupied_seconds=None)
    same_execution = not ours.external_id or ours.external_id == row.ledger.external_id
    if ours.outcome is Outcome.COMPLETED and takes(row, ours, profile):
        cost = ours.cost_micros
        call_evidence.add_evidence(tx, row, ours, frees=False, cost_micros=cost)
        call_sends.vacate(tx, settled, 0)
    else:
        call_sends.vacate(tx, settled, 0 if same_execution else ours.cost_micros)
    row = calls.look_up(tx, [key], rules.write_seconds)[key]
    if row.ledger.state is CallState.PREPARED:
        return Standing(CallOutcome(Outcome.IN_PROGRESS, "NEWER_SEND"), False)
    return _standing(row, profile)


def _same(one: CallOutcome, other: CallOutcome) -> bool:
    return (one.outcome, one.reason, one.scores) == (other.outcome, other.reason, other.scores)
