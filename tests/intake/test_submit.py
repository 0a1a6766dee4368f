"""A content is accepted once, as a whole, and found again by its key."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from sqlalchemy import event

from kernel.attempt import OnUnknownMode
from kernel.decision import Policy
from kernel.environment import MICROS_PER_SECOND
from kernel.errors import InvalidArgument, RequestMismatch, StoreAway
from kernel.fairness import Priority
from kernel.idempotency import idempotency_key
from kernel.lifecycle import CaseState, State
from kernel.store import parents, policies
from kernel.store.transaction import CommitInDoubtError, Store, Tx
from services.intake.admission import Kind, OnUnknownWish, Part
from services.intake.core import PAYLOAD_RETENTION_SECONDS, Disposition
from tests.intake.world import StatementFaults, World, open_world, text_content

T = TypeVar("T")


async def test_an_accepted_content_is_stored_with_its_tasks_and_one_outbox_row_a_pool(
    world: World,
) -> None:
    content = text_content(
        parts=(Part(Kind.TEXT, text="hi"), Part(Kind.VIDEO, frames=(b"x", b"y", b"x"))),
        priority=Priority.BULK,
        labels={"b": "2", "a": "1"},
    )
    submitted = await world.core.submit(content)

    assert submitted.disposition is Disposition.CREATED
    assert submitted.accepted_at == world.now()
    case = await world.store.read(parents.get, submitted.case_id)
    assert case is not None
    assert case.state is CaseState.PENDING
    assert case.logical_key == '["post-1",1,1]'
    assert case.deadline == world.ahead(300)
    assert case.labels == {"a": "1", "b": "2"}
    assert (case.policy_id, case.policy_version) == ("default", 1)
    children = await world.children(submitted.case_id)
    assert [t.task_id for t in submitted.tasks] == [t.task_id for t in children]
    assert [t.positions for t in submitted.tasks] == [t.positions for t in children]
    assert {t.state for t in children} == {State.READY}
    assert {t.deadline for t in children} == {case.deadline}
    assert {t.priority for t in children} == {"BULK"}
    assert world.rows("select topic, record_key, body from outbox order by topic") == [
        (f"sluice.ready.{pool}", submitted.case_id, body)
        for pool in ("image", "text", "tone", "video")
        for body in [orjson.dumps({"id": submitted.case_id, "version": 1}).decode()]
    ]
    assert len(world.nudges) == 1


async def test_equal_inputs_share_one_payload_and_each_opens_as_it_was_given(world: World) -> None:
    content = text_content(
        parts=(
            Part(Kind.VIDEO, frames=(b"x", b"y", b"x")),
            Part(Kind.VIDEO, uri="s3://bucket/v", duration_seconds=2),
        )
    )
    submitted = await world.core.submit(content)
    children = await world.children(submitted.case_id)
    assert len({t.payload_ref for t in children}) == 3
    opened = [await world.vault.open(t.payload_ref) for t in children]
    assert opened == [b"x", b"x", b"y", b"y", b"s3://bucket/v", b"s3://bucket/v"]


async def test_payloads_outlive_the_deadline_by_their_retention_and_then_expire(
    world: World,
) -> None:
    await world.core.submit(text_content(deadline=world.ahead(60)))
    world.clock.advance(60 + PAYLOAD_RETENTION_SECONDS - 1)
    assert await world.vault.expire() == 0
    world.clock.advance(1)
    assert await world.vault.expire() == 1


async def test_case_1_02_the_vendor_key_is_stored_before_any_call_and_names_nothing_volatile(
    world: World,
) -> None:
    submitted = await world.core.submit(text_content())
    for task in await world.children(submitted.case_id):
        assert task.idempotency_key == idempotency_key(task.task_id, task.vendor)


async def test_case_1_03_a_submit_sent_again_finds_the_same_case_and_tasks(world: World) -> None:
    first = await world.core.submit(text_content("top-up-7"))
    world.clock.advance(2)
    second = await world.core.submit(text_content("top-up-7"))
    assert second == replace(first, disposition=Disposition.EXISTS)
    assert world.counts() == (1, 2, 2)


async def test_i1_twenty_concurrent_equal_submits_make_one_case(world: World) -> None:
    answers = await asyncio.gather(*(world.core.submit(text_content()) for _ in range(20)))
    dispositions = [answer.disposition for answer in answers]
    assert dispositions.count(Disposition.CREATED) == 1
    assert dispositions.count(Disposition.EXISTS) == 19
    assert len({(a.case_id, a.accepted_at, a.tasks) for a in answers}) == 1
    assert world.counts() == (1, 2, 2)


async def test_i1_concurrent_submits_of_one_key_with_other_bodies_make_one_case(
    world: World,
) -> None:
    answers = await asyncio.gather(
        *(world.core.submit(text_content(text=f"body {i}")) for i in range(10)),
        return_exceptions=True,
    )
    mismatches = [a for a in answers if isinstance(a, RequestMismatch)]
    assert len(mismatches) == 9
    assert {m.metadata["field"] for m in mismatches} == {"parts"}
    assert world.counts() == (1, 2, 2)


async def test_i1_a_replay_is_answered_after_the_deadline_and_after_the_verdict(
    world: World,
) -> None:
    content = text_content(deadline=world.ahead(60))
    first = await world.core.submit(content)
    case = await world.store.read(parents.get, first.case_id)
    assert case is not None
    assert await world.store.write(parents.decide, case, CaseState.APPROVED)
    world.clock.advance(3_600)
    assert await world.core.submit(content) == replace(first, disposition=Disposition.EXISTS)


async def test_i1_a_replay_is_answered_though_no_rule_would_plan_it_today(tmp_path: Path) -> None:
    async with open_world(tmp_path) as before:
        first = await before.core.submit(text_content())
    async with open_world(tmp_path, planning={"rules": []}, policies={}) as after:
        assert await after.core.submit(text_content()) == replace(
            first, disposition=Disposition.EXISTS
        )
        with pytest.raises(InvalidArgument, match=r"parts\[0\]\.kind"):
            await after.core.submit(text_content("another"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parts": (Part(Kind.TEXT, text="Hello"),)}, "parts"),
        ({"parts": (Part(Kind.TEXT, text="hello"),) * 2}, "parts"),
        ({"parts": (Part(Kind.IMAGE, data=b"hello"),)}, "parts"),
        ({"priority": Priority.CRITICAL}, "priority"),
        ({"labels": {"a": "1"}}, "labels"),
        ({"labels": {"a": "1", "b": "2 "}}, "labels"),
        ({"deadline": 1_800_000_100_000_000}, "deadline"),
        ({"on_unknown": OnUnknownWish(OnUnknownMode.AT_MOST_ONCE)}, "on_unknown"),
    ],
)
async def test_case_1_07_the_same_key_with_another_body_is_refused_and_the_field_named(
    world: World, change: dict[str, Any], field: str
) -> None:
    content = text_content(labels={"a": "1", "b": "2"})
    first = await world.core.submit(content)
    with pytest.raises(RequestMismatch) as refused:
        await world.core.submit(replace(content, **change))
    assert refused.value.metadata == {"field": field, "case_id": first.case_id}
    assert world.counts() == (1, 2, 2)
    assert world.rows("select labels from parents") == [('{"a":"1","b":"2"}',)]


async def test_case_1_07_the_order_of_labels_is_no_difference(world: World) -> None:
    first = await world.core.submit(text_content(labels={"to": "A", "n": "1"}))
    second = await world.core.submit(text_content(labels={"n": "1", "to": "A"}))
    assert second == replace(first, disposition=Disposition.EXISTS)


async def test_a_version_and_a_round_are_part_of_the_key_and_round_0_is_the_first(
    world: World,
) -> None:
    first = await world.core.submit(text_content(review_round=0))
    assert (await world.core.submit(text_content(review_round=1))).case_id == first.case_id
    others = [
        text_content(review_round=2),
        text_content(content_version=2),
        text_content(tenant_id="other"),
    ]
    ids = {(await world.core.submit(content)).case_id for content in others}
    assert len(ids | {first.case_id}) == 4


async def test_case_7_01_keys_are_compared_byte_for_byte(world: World) -> None:
    keys = ["k1", "K1", "k1 ", "café", "cafe", "🍣", "🍺"]
    ids = [
        (await world.core.submit(text_content(key, text=f"b{at}"))).case_id
        for at, key in enumerate(keys)
    ]
    assert len(set(ids)) == 7
    tenants = ["t", "T", "t "]
    ids += [
        (await world.core.submit(text_content("k1", tenant_id=tenant))).case_id
        for tenant in tenants
    ]
    assert len(set(ids)) == 10


async def test_case_6_05_the_required_set_is_committed_with_the_case(world: World) -> None:
    seen: list[tuple[int, int, int]] = []

    def look(*_: object) -> None:
        seen.append(world.counts())

    event.listen(world.store.engine, "after_cursor_execute", look)
    await world.core.submit(text_content())
    assert len(seen) >= 5  # begin, policy, parent, tasks, outbox
    assert set(seen) == {(0, 0, 0)}
    assert world.counts() == (1, 2, 2)


async def test_a_store_that_fails_at_any_statement_leaves_nothing_half_written(
    world: World,
) -> None:
    faults = StatementFaults(world.store)
    failed = 0
    for statement in range(1, 50):
        faults.arm(statement)
        try:
            await world.core.submit(text_content())
        except StoreAway:
            failed += 1
            assert world.counts() == (0, 0, 0)
            assert world.nudges == []
        else:
            break
    assert failed >= 5
    assert world.counts() == (1, 2, 2)


async def test_the_newest_policy_version_of_the_moment_is_pinned(world: World) -> None:
    await world.store.write(policies.insert, Policy("default", 9, ()), "tester")
    submitted = await world.core.submit(text_content())
    case = await world.store.read(parents.get, submitted.case_id)
    assert case is not None
    assert case.policy_version == 9


async def test_a_deadline_that_has_passed_or_lies_too_far_ahead_is_named_with_the_other_faults(
    world: World,
) -> None:
    for deadline in (world.now(), world.ahead(7 * 86_400) + MICROS_PER_SECOND):
        with pytest.raises(InvalidArgument) as refused:
            await world.core.submit(text_content(deadline=deadline))
        assert [v.field for v in refused.value.violations] == ["deadline"]
        with pytest.raises(InvalidArgument) as refused:
            await world.core.submit(text_content(deadline=deadline, content_version=0))
        assert [v.field for v in refused.value.violations] == ["content_version", "deadline"]
    assert world.counts() == (0, 0, 0)
    with closing(sqlite3.connect(world.folder / "vault.db")) as vault:
        assert vault.execute("select count(*) from payloads").fetchone() == (0,)


class LosingStore(Store):
    """Loses the answers of the next commits: of those that are in, or those that are not."""

    committed: tuple[bool, ...] = ()
    reads_fail = False

    async def write(
        self, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:  # the same in all but its type
        if not self.committed:
            return await super().write(function, *args, **kwargs)
        first, self.committed = self.committed[0], self.committed[1:]
        if first:
            await super().write(function, *args, **kwargs)
        raise CommitInDoubtError("lost")

    async def read(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self.reads_fail and not self.committed:
            raise StoreAway("away")
        return await super().read(function, *args, **kwargs)


@pytest.mark.parametrize("committed", [(True,), (False,), (False, False), (False, True)])
async def test_case_7_06_a_commit_in_doubt_is_read_back_before_any_answer(
    tmp_path: Path, committed: tuple[bool, ...]
) -> None:
    async with open_world(tmp_path, LosingStore) as world:
        assert isinstance(world.store, LosingStore)
        world.store.committed = committed
        first = await world.core.submit(text_content())
        assert first.disposition is Disposition.CREATED
        assert len(world.nudges) == 1
        again = await world.core.submit(text_content())
        assert again == replace(first, disposition=Disposition.EXISTS)
        assert world.counts() == (1, 2, 2)


async def test_case_7_06_what_cannot_be_read_back_is_told_as_in_doubt(tmp_path: Path) -> None:
    async with open_world(tmp_path, LosingStore) as world:
        assert isinstance(world.store, LosingStore)
        world.store.committed, world.store.reads_fail = (True,), True
        with pytest.raises(StoreAway) as told:
            await world.core.submit(text_content())
        assert told.value.reason == "COMMIT_IN_DOUBT"
        assert "not known" in told.value.message
        world.store.reads_fail = False
        again = await world.core.submit(text_content())
        assert again.disposition is Disposition.EXISTS
        assert world.counts() == (1, 2, 2)


async def test_a_commit_that_stays_in_doubt_ends_in_a_typed_refusal(tmp_path: Path) -> None:
    async with open_world(tmp_path, LosingStore) as world:
        assert isinstance(world.store, LosingStore)
        world.store.committed = (False, False, False)
        with pytest.raises(StoreAway) as told:
            await world.core.submit(text_content())
        assert told.value.reason == "COMMIT_IN_DOUBT"
        assert world.counts() == (0, 0, 0)


async def test_a_caller_who_leaves_during_the_commit_does_not_cut_it(world: World) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Any, *_: object) -> None:
        loop.call_soon_threadsafe(inside.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)

    event.listen(world.store.engine, "commit", hold)
    caller = asyncio.create_task(world.core.submit(text_content()))
    await inside.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await world.store.write(_nothing)  # waits its turn behind the commit
    assert world.counts() == (1, 2, 2)


def _nothing(tx: Tx) -> None:
    tx.now()
