"""Verdicts where models fail: no category is invented, and nothing waits for ever."""

from __future__ import annotations

from mesh.v1 import types_pb2 as types
from tests.mesh.declared import KEYED, NEITHER, Vendor, model, script
from tests.mesh.world import Opening, image, text

TWO = {"TEXT": [model("a"), model("b")]}


async def test_case_6_06_a_required_model_that_failed_for_good_sends_the_case_to_review(
    mesh_of: Opening,
) -> None:
    vendors = {"a": Vendor(KEYED), "b": Vendor(KEYED, script("refuse"))}
    async with mesh_of(vendors, TWO) as mesh:
        case = await mesh.verdict(await mesh.submit())
        assert case.state == types.CASE_STATE_IN_REVIEW
        (decision,) = case.decisions
        assert decision.reason == "REQUIRED_MODEL_FAILED"
        assert decision.rule == "model-b"
        assert list(case.missing) == [f"{case.case_id}.2"]


async def test_case_6_06_an_optional_model_that_failed_changes_nothing(mesh_of: Opening) -> None:
    vendors = {"a": Vendor(KEYED), "b": Vendor(KEYED, script("refuse"))}
    planning = {"TEXT": [model("a"), model("b", requirement="OPTIONAL")]}
    async with mesh_of(vendors, planning) as mesh:
        case = await mesh.verdict(await mesh.submit())
        assert case.state == types.CASE_STATE_APPROVED


async def test_case_6_08_a_model_that_never_answers_neither_passes_nor_rejects(
    mesh_of: Opening,
) -> None:
    vendors = {"words": Vendor(NEITHER, script("hang"), timeout=0.2), "pictures": Vendor(KEYED)}
    planning = {"TEXT": [model("words")], "IMAGE": [model("pictures")]}
    async with mesh_of(vendors, planning) as mesh:
        case_id = await mesh.submit(text("hello"), image(b"\x89PNG fake"), seconds=2.5)
        case = await mesh.verdict(case_id)
        assert case.state == types.CASE_STATE_IN_REVIEW
        (decision,) = case.decisions
        assert decision.reason == "MODEL_UNAVAILABLE"
        judged = {each.model_id for each in decision.evidence}
        assert judged <= {"model-pictures"}, "a category was invented"


async def test_scores_decide_by_the_policy(mesh_of: Opening) -> None:
    results = {
        "default": {"violence": 0.01},
        "a threat": {"violence": 0.95},
        "two ways": {"violence": 0.7},
    }
    async with mesh_of({"v": Vendor(KEYED, {"results": results})}) as mesh:
        states = [
            (await mesh.verdict(await mesh.submit(text(content)))).state
            for content in ("soup", "a threat", "two ways")
        ]
    assert states == [
        types.CASE_STATE_APPROVED,
        types.CASE_STATE_REJECTED,
        types.CASE_STATE_IN_REVIEW,
    ]


async def test_i1_equal_inputs_of_one_case_are_judged_once(mesh_of: Opening) -> None:
    async with mesh_of({"v": Vendor(KEYED)}) as mesh:
        case = await mesh.verdict(await mesh.submit(text("same"), text("same"), text("other")))
        assert sorted(tuple(task.positions) for task in case.tasks) == [("0", "1"), ("2",)]
        assert (await mesh.ledger("v"))["requests"] == 2
