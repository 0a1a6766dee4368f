"""Settling the ledger: by the send's own outcome, or by evidence from outside.

Receives outcomes of sends, and terminal answers of receipts, queries and cancels. Hands on
the row's standing and whether the vendor has stopped. A verified success is the stronger
fact; a failure settles only what is surely one execution. Functions take the transaction
first, and never commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel.attempt import CallOutcome, Outcome
from kernel.idempotency import CallState
from kernel.receipt import ReceiptState
from kernel.store import call_evidence, call_sends, calls, raw_receipts
from kernel.store.calls import CallKey, StoredCall
from kernel.store.raw_receipts import NewReceipt, StoredReceipt
from kernel.store.transaction import Tx
from kernel.vendor import VendorProfile
from services.vendor_proxy.ledger import Begun, LedgerRules, one_execution, row_of, shown

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
    """What a key's row says now. `stopped`: nothing of it is at the vendor any more.

    `matched`: receipts that waited for this call found it.
    """

    outcome: CallOutcome
    stopped: bool
    matched: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A receipt in the store. `key` None: its call is not known yet."""

    stored: bool
    key: CallKey | None = None
    stopped: bool = False


def settle(tx: Tx, ended: Ended, rules: LedgerRules) -> Standing:
    """Settle a send, then apply receipts that came before their vendor's id was known."""
    settled = _settle_row(ended)
    if call_sends.settle(tx, settled):
        standing = Standing(_of_send(ended, settled), _stopped(ended))
    else:
        standing = _after_lost_fence(tx, settled, rules)
    return _claim_orphans(tx, ended.begun, ended.outcome.external_id, rules) or standing


def claim_early(tx: Tx, begun: Begun, rules: LedgerRules) -> Standing | None:
    """What stands by receipts that came before their call was begun, None where none did."""
    return _claim_orphans(tx, begun, "", rules)


def add(tx: Tx, row: StoredCall, evidence: CallOutcome, profile: VendorProfile) -> bool:
    """Take `row` where a terminal answer leads it; returns whether it led anywhere."""
    state = _led_to(row, evidence, profile)
    if state is None:
        return False
    frees = one_execution(row, profile) and row.ledger.state is not CallState.PREPARED
    return call_evidence.add_evidence(tx, row, evidence, state, frees=frees)


def keep_receipt(tx: Tx, receipt: NewReceipt, rules: LedgerRules) -> Kept:
    """Store a receipt once; give it to its call where that is known, as evidence too."""
    if not raw_receipts.store(tx, receipt):
        return Kept(False)
    key = None
    if receipt.reference:
        key = calls.by_reference(tx, receipt.vendor, receipt.reference)
    if key is None and receipt.external_id:
        key = calls.by_external_id(tx, receipt.vendor, receipt.external_id)
    row = calls.look_up(tx, key, rules.write_seconds, lock=True) if key else None
    if row is None:
        return Kept(True)
    return Kept(True, row.key, _give(tx, row, receipt, rules))


def _led_to(row: StoredCall, evidence: CallOutcome, profile: VendorProfile) -> CallState | None:
    """The state that a terminal answer takes this row to, None where it says nothing new."""
    state = row.ledger.state
    last = row.outcome.outcome if row.outcome is not None else None
    if state is CallState.FENCED:
        return None
    if evidence.outcome is Outcome.COMPLETED:
        return None if last is Outcome.COMPLETED else CallState.SETTLED
    accepted = last is Outcome.ACCEPTED
    if state is CallState.SETTLED and not accepted:
        return None
    if one_execution(row, profile):
        return CallState.SETTLED
    # One of several executions failed, which says nothing of the others: what the vendor had
    # accepted is over, and an earlier send is still in doubt.
    its_own = evidence.external_id in ("", row.ledger.external_id)
    return CallState.UNKNOWN if accepted and its_own else None


def _claim_orphans(tx: Tx, begun: Begun, external_id: str, rules: LedgerRules) -> Standing | None:
    """What stands after receipts that waited for this call, None where none did."""
    key = begun.asked.key
    profile = rules.vendors[key.vendor]
    if not profile.able.receipts:
        return None
    found = raw_receipts.orphans(tx, key.vendor, reference=begun.reference, external_id=external_id)
    for receipt in found:
        _give(tx, row_of(tx, key, rules), receipt, rules)
    return replace(_standing(row_of(tx, key, rules), profile), matched=True) if found else None


def _give(tx: Tx, row: StoredCall, receipt: NewReceipt | StoredReceipt, rules: LedgerRules) -> bool:
    """Give a receipt to its call, as evidence too; returns whether the vendor has stopped."""
    stopped = _apply_receipt(tx, row, receipt, rules)
    charged = None
    if receipt.state is ReceiptState.SUCCEEDED and receipt.cost_micros is None:
        charged = row_of(tx, row.key, rules).cost_micros
    raw_receipts.match(tx, receipt.receipt_id, row.key, row.task_id, charged)
    return stopped


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


def _settle_row(ended: Ended) -> call_sends.Settle:
    begun, outcome = ended.begun, ended.outcome
    refused = outcome.outcome is Outcome.REJECTED
    again = outcome.outcome in _OPEN_AGAIN or (refused and outcome.retryable)
    # This send did nothing, which says nothing of the earlier ones that are in doubt; only a
    # vendor that takes them all for one refuses them all.
    says_nothing = begun.doubted_sends > 0 and (
        again or not ended.on_wire or (refused and not begun.one_execution)
    )
    doubt = outcome.outcome is Outcome.UNKNOWN or says_nothing
    nothing_done = not ended.on_wire or outcome.outcome is Outcome.THROTTLED
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
        # A send that left has used its grant, though it was refused: budgets are of sends.
        grants_back=0 if ended.on_wire else begun.grants,
        doubt_over=begun.one_execution and final,
    )


def _of_send(ended: Ended, settled: call_sends.Settle) -> CallOutcome:
    begun = ended.begun
    return replace(
        ended.outcome,
        sends=begun.sends - settled.sends_back,
        possible_duplicates=begun.possible_duplicates - settled.marks_back,
        cost_micros=begun.cost_micros + ended.outcome.cost_micros,
        settles_key=settled.state is CallState.SETTLED,
    )


def _stopped(ended: Ended) -> bool:
    final = ended.outcome.outcome in (Outcome.COMPLETED, Outcome.REJECTED)
    none_doubted = ended.begun.doubted_sends == 0
    return final and (none_doubted or (ended.begun.one_execution and ended.on_wire))


def _standing(row: StoredCall, profile: VendorProfile) -> Standing:
    settled = row.ledger.state is CallState.SETTLED and row.outcome is not None
    final = settled and shown(row).outcome in (Outcome.COMPLETED, Outcome.REJECTED)
    return Standing(replace(shown(row), replayed=False), final and one_execution(row, profile))


def _after_lost_fence(tx: Tx, settled: call_sends.Settle, rules: LedgerRules) -> Standing:
    """What stands after a settle whose fence did not hold.

    Evidence or a newer send came first; or this very settle did, and its commit's answer was
    lost. Whatever the row says, the permit of this send returns.
    """
    ours, profile = settled.outcome, rules.vendors[settled.key.vendor]
    row = row_of(tx, settled.key, rules)
    same_send = (row.incarnation, row.send_number) == (settled.incarnation, settled.send_number)
    # Evidence that ended the call says too that its vendor has stopped.
    if same_send and _standing(row, profile).stopped:
        settled = replace(settled, occupied_seconds=None, doubt_over=True)
    charged = (
        (ours.outcome is Outcome.COMPLETED and add(tx, row, ours, profile))
        or (same_send and one_execution(row, profile))
        or ours.external_id in ("", row.ledger.external_id)
    )
    call_sends.vacate(tx, settled, 0 if charged else ours.cost_micros)
    row = row_of(tx, settled.key, rules)
    if row.ledger.state is CallState.PREPARED:
        return Standing(CallOutcome(Outcome.IN_PROGRESS, "NEWER_SEND"), False)
    return _standing(row, profile)
