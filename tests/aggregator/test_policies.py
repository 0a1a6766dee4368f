"""Receives policies from callers and from settings; checks what is stored, and by whose word."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kernel.decision import Policy
from kernel.runtime.declared import store_policies
from kernel.runtime.rpc import LOCAL, Authenticator, Caller
from kernel.runtime.settings import SettingsError
from mesh.v1 import aggregator_pb2 as pb
from mesh.v1 import types_pb2 as types
from services.aggregator.app import AggregatorApp
from tests import factories
from tests.aggregator.running import Running, final, refused, settings_of
from tests.aggregator.world import World

BODY = pb.PolicyBody(rules=[pb.PolicyBody.Rule(category="*", reject_at=0.5)])


async def test_a_new_policy_version_is_stored_and_decides_again(
    world: World, running: Running
) -> None:
    case_id = await world.case("text")
    await world.succeed(case_id, 1, spam=0.6)
    assert (await final(running, case_id)).state == types.CASE_STATE_APPROVED
    body = pb.PolicyBody(rules=[pb.PolicyBody.Rule(category="*", reject_at=0.5, review_at=0.0)])
    put = pb.PutPolicyRequest(policy_id="default", body=body, author="ada")
    policy = (await running.stubs["rules-token"].PutPolicy(put)).policy
    assert (policy.version, policy.author) == (2, "ada via rules")
    assert policy.body.rules[0].HasField("review_at")
    assert policy.body.on_deadline == types.CASE_STATE_IN_REVIEW
    answer = await running.desk.Redecide(pb.RedecideRequest(case_id=case_id, policy_version=2))
    assert (answer.changed, answer.case.state) == (True, types.CASE_STATE_REJECTED)
    assert [d.version for d in answer.case.decisions] == [1, 2]
    listed = await running.desk.ListPolicies(pb.ListPoliciesRequest(policy_id="default"))
    assert [p.version for p in listed.policies] == [1, 2]
    everyone = await running.desk.ListPolicies(pb.ListPoliciesRequest())
    assert {p.policy_id for p in everyone.policies} == {"declared", "default"}


async def test_a_policy_that_decides_for_all_is_put_only_by_who_may_act_for_all(
    running: Running,
) -> None:
    put = pb.PutPolicyRequest(policy_id="default", body=BODY, author="ada")
    for token in ("desk-token", "reader-token", "gateway-token"):
        code, _, _ = await refused(running.stubs[token].PutPolicy(put))
        assert code is grpc.StatusCode.PERMISSION_DENIED, token
    listed = await running.desk.ListPolicies(pb.ListPoliciesRequest(policy_id="default"))
    assert [p.version for p in listed.policies] == [1]


async def test_i13_who_put_a_policy_is_the_caller_whomever_it_speaks_for(running: Running) -> None:
    rules = running.stubs["rules-token"]
    for author, recorded in (("", "rules"), ("ada", "ada via rules")):
        put = pb.PutPolicyRequest(policy_id="p", body=BODY, author=author)
        assert (await rules.PutPolicy(put)).policy.author == recorded


def test_where_nobody_is_declared_a_person_speaks_for_themselves() -> None:
    assert (LOCAL.speaking_for("ada"), LOCAL.speaking_for("")) == ("ada", "local")
    assert Caller("desk").speaking_for("ada") == "ada via desk"


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"policy_id": ""}, {"policy_id"}),
        ({"author": "a" * 129}, {"author"}),
        ({"rules": []}, {"body.rules"}),
        ({"rules": [{"category": "", "reject_at": 0.5}]}, {"body.rules[0].category"}),
        (
            {"rules": [{"category": "a"}, {"category": "a"}]},
            {"body.rules[1].category"},
        ),
        ({"rules": [{"category": "a", "reject_at": 1.1}]}, {"body.rules[0].reject_at"}),
        ({"rules": [{"category": "a", "reject_at": float("nan")}]}, {"body.rules[0].reject_at"}),
        ({"rules": [{"category": "a", "review_at": -0.1}]}, {"body.rules[0].review_at"}),
        (
            {"rules": [{"category": "a", "reject_at": 0.4, "review_at": 0.5}]},
            {"body.rules[0].review_at"},
        ),
        ({"on_deadline": types.CASE_STATE_APPROVED}, {"body.on_deadline"}),
        ({"on_required_failed": 99}, {"body.on_required_failed"}),
        (
            {"policy_id": "", "author": "a" * 121, "rules": []},
            {"policy_id", "author", "body.rules"},  # 121 and " via rules" are above 128
        ),
    ],
)
async def test_a_policy_that_says_nothing_sensible_is_refused(
    running: Running, change: dict[str, Any], fields: set[str]
) -> None:
    given: dict[str, Any] = {
        "policy_id": "p",
        "author": "ada",
        "rules": [{"category": "*", "reject_at": 0.5}],
        "on_deadline": 0,
        "on_required_failed": 0,
    } | change
    body = pb.PolicyBody(
        rules=[pb.PolicyBody.Rule(**rule) for rule in given["rules"]],
        on_deadline=given["on_deadline"],
        on_required_failed=given["on_required_failed"],
    )
    request = pb.PutPolicyRequest(policy_id=given["policy_id"], body=body, author=given["author"])
    code, _, named = await refused(running.stubs["rules-token"].PutPolicy(request))
    assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, fields)
    listed = await running.desk.ListPolicies(pb.ListPoliciesRequest(policy_id="p"))
    assert list(listed.policies) == []


async def test_declared_policies_are_stored_once_by_whoever_starts_first(world: World) -> None:
    declared = [factories.policy(0.8), factories.policy(0.2, version=2)]
    for _ in range(2):
        await store_policies(world.store, declared)
    listed = await world.core.list_policies("default")
    assert [(p.policy, p.author) for p in listed] == [
        (declared[0], "tests"),
        (declared[1], "settings"),
    ]


async def test_i13_a_declared_version_with_another_body_stops_the_aggregator(world: World) -> None:
    rule = [{"category": "*", "reject_at": 0.1}]
    settings = settings_of(fresh={"rules": rule}, default={"rules": rule})
    app = AggregatorApp(settings, world.environment, world.store, world.wakeups, Authenticator({}))
    with pytest.raises(SettingsError, match=r"policies\.default: version 1 .* raise its version"):
        await app.start()
    await app.stop()
    stored = [each.policy for each in await world.core.list_policies()]
    assert stored == [Policy("default", 1, factories.policy().rules)]
