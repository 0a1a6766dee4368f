"""The intake as a service: it starts as a whole, says how it is, and stops in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kernel.runtime.rpc import Authenticator, open_channel
from kernel.runtime.settings import PolicySettings, RuleSettings, SettingsError
from kernel.runtime.vault import PayloadGoneError
from kernel.runtime.wakeups import InProcessWakeups, ready_topic
from kernel.store import outbox, policies
from services.intake.app import SWEEP_SECONDS, IntakeApp
from services.intake.servicer import SERVICE_NAME
from tests.intake.wire import calling, refusal, serving, text_request
from tests.intake.world import World, open_world

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def health_of(app: IntakeApp) -> AsyncIterator[Any]:
    async with open_channel(app.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        )
        yield watch
        watch.cancel()


async def until(watch: Any, state: Any) -> None:
    async with asyncio.timeout(10):
        async for answer in watch:
            if answer.status == state:
                return


def app_of(world: World, **given: Any) -> IntakeApp:
    settings = world.settings.model_copy(update=given)
    return IntakeApp(
        settings, world.environment, world.store, world.vault, world.wakeups, Authenticator({})
    )


async def test_a_started_intake_serves_on_the_port_it_took_and_says_so(world: World) -> None:
    assert not app_of(world).address.endswith(":0")  # known before the start
    async with serving(world) as app, health_of(app) as watch:
        await until(watch, SERVING)


async def test_a_stopped_intake_says_not_serving_and_refuses_new_calls(world: World) -> None:
    app = app_of(world)
    await app.start()
    async with health_of(app) as watch, calling(app) as stub:
        await until(watch, SERVING)
        stopping = asyncio.create_task(app.stop())
        await until(watch, NOT_SERVING)
        watch.cancel()
        await stopping
        refused = await refusal(stub.SubmitContent(text_request()))
        assert refused.code is grpc.StatusCode.UNAVAILABLE


async def test_a_call_under_way_ends_before_the_stop_does(tmp_path: Path) -> None:
    async with open_world(tmp_path, drain_seconds=10.0) as world:
        entered, go_on = asyncio.Event(), asyncio.Event()
        app = app_of(world)
        inner = app.core._vault.put

        async def held(*args: Any, **kwargs: Any) -> list[str]:
            entered.set()
            await go_on.wait()
            return await inner(*args, **kwargs)

        app.core._vault.put = held  # type: ignore[method-assign]
        await app.start()
        async with calling(app) as stub, health_of(app) as watch:
            await until(watch, SERVING)
            call = asyncio.ensure_future(stub.SubmitContent(text_request()))
            await entered.wait()
            stopping = asyncio.create_task(app.stop())
            await until(watch, NOT_SERVING)
            watch.cancel()
            assert not stopping.done()
            go_on.set()
            assert (await call).case_id
            await stopping
        assert world.counts()[:2] == (1, 2)


async def test_the_relay_wakes_who_waits_for_the_pool_without_any_poll(world: World) -> None:
    wakeups = InProcessWakeups()
    app = IntakeApp(
        world.settings, world.environment, world.store, world.vault, wakeups, Authenticator({})
    )
    await app.start()
    dispatcher = asyncio.create_task(wakeups.wait(frozenset({ready_topic("text")}), 30))
    await world.clock.sleeping(2)  # the relay and the sweep, both idle; the clock stands still
    async with calling(app) as stub:
        await stub.SubmitContent(text_request())
    assert await dispatcher
    await app.stop()


async def test_the_policies_of_the_settings_are_stored_once(world: World) -> None:
    rules = (RuleSettings(category="*", reject_at=0.2),)
    strict = PolicySettings(version=3, rules=rules, on_deadline="FAILED")
    declared = {**world.settings.policies, "strict": strict}
    for _ in range(2):
        app = app_of(world, policies=declared)
        await app.start()
        await app.stop()
    stored = await world.store.read(policies.listed)
    assert [s.policy for s in stored] == [p.policy(name) for name, p in declared.items()]


async def test_a_policy_version_with_another_body_stops_the_start_and_is_named(
    world: World,
) -> None:
    declared = world.settings.policies["default"]
    changed = declared.model_copy(update={"on_deadline": "FAILED"})
    contradicting = app_of(world, policies={"default": changed})
    with pytest.raises(SettingsError, match=r"policies\.default: version 1 .* raise its version"):
        await contradicting.start()
    await contradicting.stop()

    raised = changed.model_copy(update={"version": 2})
    app = app_of(world, policies={"default": raised})
    await app.start()
    await app.stop()
    newest = await world.store.read(policies.newest, "default")
    assert newest is not None
    assert (newest.policy, newest.author) == (raised.policy("default"), "settings")


async def test_expired_payloads_are_swept_every_minute(world: World) -> None:
    (ref,) = await world.vault.put([b"x"], world.ahead(SWEEP_SECONDS))
    async with serving(world):
        await world.clock.sleeping(2)
        assert await world.vault.open(ref) == b"x"
        world.clock.advance(SWEEP_SECONDS)
        await world.clock.sleeping(2)
        with pytest.raises(PayloadGoneError):
            await world.vault.open(ref)


async def test_a_bus_that_is_away_makes_the_intake_unhealthy_until_it_is_back(
    world: World,
) -> None:
    world.wakeups.down.add("sluice.verdicts")
    async with serving(world) as app, health_of(app) as watch:
        await until(watch, SERVING)
        await world.clock.sleeping(2)
        await world.store.write(outbox.append, [("sluice.verdicts", "k", {"id": "k"})])
        world.clock.advance(world.settings.poll_seconds)
        await until(watch, NOT_SERVING)
        async with calling(app) as stub:  # accepting does not depend on the bus
            assert (await stub.SubmitContent(text_request())).case_id
        world.wakeups.down.clear()
        await world.clock.sleeping(2)
        world.clock.advance(20)  # past the back-off and the lease of the row
        await until(watch, SERVING)


async def test_an_address_that_is_taken_stops_the_start(world: World) -> None:
    async with serving(world) as app:
        with pytest.raises(RuntimeError):
            app_of(world, intake_addr=app.address)


async def test_without_declared_callers_only_loopback_is_served(world: World) -> None:
    with pytest.raises(ValueError, match="loopback"):
        app_of(world, intake_addr="0.0.0.0:0")


async def test_reflection_names_the_service(world: World) -> None:
    async with serving(world) as app, open_channel(app.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([asked]))
        answer = await call.read()
        names = [s.name for s in answer.list_services_response.service]
        assert "mesh.v1.IntakeService" in names
        call.cancel()
