"""Receives HTTP requests; hands them to the vendors and their answers to the wire.

What the script does to a connection (cut it, never answer) is done here.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import ValidationError

from kernel.environment import Environment
from vendors.simulator.calls import Answer, read_call, refusal
from vendors.simulator.courier import Courier
from vendors.simulator.script import Do
from vendors.simulator.settings import ManualReceipt, Settings, wrong_fields
from vendors.simulator.vendor import Turn, Vendor

BODY_LIMIT_BYTES = 64 * 1024 * 1024


Shape = TypeVar("Shape", Settings, ManualReceipt)


class RefusalError(Exception):
    """A request that is answered with a refusal instead of being heard."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Server:
    """The HTTP side of all vendors of one process."""

    def __init__(self, environment: Environment, courier: Courier) -> None:
        self._environment = environment
        self._courier = courier
        self._vendors: dict[str, Vendor] = {}

    def application(self) -> web.Application:
        """The routes, ready to be served."""
        application = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[refusing])
        application.add_routes(
            [
                web.post("/v/{vendor}/calls", self.call),
                web.post("/v/{vendor}/batch", self.batch),
                web.get("/v/{vendor}/calls", self.query_by_key),
                web.get("/v/{vendor}/calls/{external_id}", self.query_by_id),
                web.delete("/v/{vendor}/calls/{external_id}", self.cancel),
                web.put("/_control/{vendor}", self.change),
                web.get("/_control/{vendor}", self.show),
                web.delete("/_control/{vendor}", self.forget),
                web.get("/_control/{vendor}/ledger", self.ledger),
                web.get("/_control/{vendor}/statement", self.statement),
                web.post("/_control/{vendor}/receipts", self.send_receipt),
            ]
        )
        return application

    async def call(self, request: web.Request) -> web.Response:
        """`POST /v/{vendor}/calls`: one call, its key in the header Idempotency-Key."""
        vendor = self._vendor(request)
        fields = await _json_object(request)
        met = _meet(vendor, request.headers.get("Idempotency-Key"), fields)
        answers = await self._conduct(request, vendor, [met])
        return _response(answers[0]) if answers else web.Response()

    async def batch(self, request: web.Request) -> web.Response:
        """`POST /v/{vendor}/batch`: many calls, each with its key, answered in their order.

        What closes or delays a connection does so to the whole batch; all else is per call.
        """
        vendor = self._vendor(request)
        calls = (await _json_object(request)).get("calls")
        if not isinstance(calls, list):
            raise RefusalError(refusal(400, "invalid_input", "calls: must be a list"))
        met: list[Turn | Answer] = []
        for fields in calls:
            key = fields.pop("idempotency_key", None) if isinstance(fields, dict) else None
            met.append(_meet(vendor, key, fields))
        answers = await self._conduct(request, vendor, met)
        if answers is None:
            return web.Response()
        results = [
            {"status": each.status, "body": each.body}
            | ({"headers": each.headers} if each.headers else {})
            for each in answers
        ]
        return _response(Answer(200, {"results": results}))

    async def query_by_key(self, request: web.Request) -> web.Response:
        """`GET /v/{vendor}/calls?key=K`."""
        key = request.query.get("key")
        if key is None:
            return _response(refusal(400, "invalid_input", "key: is missing"))
        return _response(self._vendor(request).by_key(key))

    async def query_by_id(self, request: web.Request) -> web.Response:
        """`GET /v/{vendor}/calls/{external_id}`."""
        return _response(self._vendor(request).by_id(request.match_info["external_id"]))

    async def cancel(self, request: web.Request) -> web.Response:
        """`DELETE /v/{vendor}/calls/{external_id}`."""
        return _response(self._vendor(request).cancel(request.match_info["external_id"]))

    async def change(self, request: web.Request) -> web.Response:
        """`PUT /_control/{vendor}`: create the vendor, or replace the fields that are given."""
        name = request.match_info["vendor"]
        given = await _control(request, Settings)
        vendor = self._vendors.get(name)
        if vendor is None:
            vendor = self._vendors[name] = Vendor(self._environment, self._courier)
        vendor.change(given)
        return await self.show(request)

    async def show(self, request: web.Request) -> web.Response:
        """`GET /_control/{vendor}`: the settings, with the receipt secret, and call counts."""
        vendor = self._vendor(request)
        pages = vendor.ledger.pages.values()
        return _response(
            Answer(
                200,
                {
                    "vendor": request.match_info["vendor"],
                    "settings": vendor.settings.model_dump(mode="json", by_alias=True)
                    | {"receipt_secret": vendor.secret},
                    "calls": {
                        "requests": vendor.ledger.requests,
                        "executions": sum(page.executions for page in pages),
                        "charges": len(vendor.ledger.charged),
                        "queries": vendor.ledger.queries,
                        "in_flight": vendor.ledger.in_flight,
                    },
                },
            )
        )

    async def forget(self, request: web.Request) -> web.Response:
        """`DELETE /_control/{vendor}`: forget its settings, books and jobs; 204 in any case."""
        vendor = self._vendors.pop(request.match_info["vendor"], None)
        if vendor is not None:
            await vendor.close()
        return web.Response(status=204)

    async def ledger(self, request: web.Request) -> web.Response:
        """`GET /_control/{vendor}/ledger`."""
        return _response(Answer(200, self._vendor(request).ledger.shown()))

    async def statement(self, request: web.Request) -> web.Response:
        """`GET /_control/{vendor}/statement`: the bill, CSV."""
        bill = self._vendor(request).ledger.statement()
        return web.Response(text=bill, content_type="text/csv")

    async def send_receipt(self, request: web.Request) -> web.Response:
        """`POST /_control/{vendor}/receipts`: one receipt by hand."""
        vendor = self._vendor(request)
        return _response(await vendor.send_by_hand(await _control(request, ManualReceipt)))

    async def close(self) -> None:
        """Cancel everything that still runs, at every vendor."""
        for vendor in self._vendors.values():
            await vendor.close()

    def _vendor(self, request: web.Request) -> Vendor:
        vendor = self._vendors.get(request.match_info["vendor"])
        if vendor is None:
            raise RefusalError(refusal(404, "unknown_vendor", "no such vendor"))
        return vendor

    async def _conduct(
        self, request: web.Request, vendor: Vendor, met: list[Turn | Answer]
    ) -> list[Answer] | None:
        """Play out the calls of one request: their answers, or None where it was cut."""
        entries = [turn.choice.action for turn in met if isinstance(turn, Turn)]
        wished = {entry.do for entry in entries if entry}
        if Do.DROP_BEFORE in wished:
            _cut(request)
            return None
        begun = [turn if isinstance(turn, Answer) else vendor.begin(turn) for turn in met]
        answers = [
            turn if isinstance(turn, Answer) else await vendor.answer(turn, standing)
            for turn, standing in zip(met, begun, strict=True)
        ]
        if Do.HIDE_RESPONSE in wished:
            _cut(request)
            return None
        if Do.HANG in wished:
            await asyncio.Event().wait()  # until the client leaves or the server stops
        if Do.SLOW in wished:
            slowest = max(each.slow_ms for each in entries if each and each.do is Do.SLOW)
            await self._environment.clock.sleep(slowest / 1_000)
        return answers


@web.middleware
async def refusing(request: web.Request, handler: Any) -> web.StreamResponse:
    """Turn refusals into answers."""
    try:
        response: web.StreamResponse = await handler(request)
    except RefusalError as refused:
        return _response(refused.answer)
    return response


def _meet(vendor: Vendor, key: object, fields: object) -> Turn | Answer:
    if not isinstance(fields, dict):
        return refusal(400, "invalid_input", "a call must be a JSON object")
    if not isinstance(key, str) or not key:
        return refusal(400, "invalid_input", "the idempotency key is missing")
    try:
        return vendor.meet(read_call(key, fields))
    except ValidationError as error:
        names = sorted({name.partition(".")[0] for name, _ in wrong_fields(error)})
        return refusal(400, "invalid_input", f"not acceptable: {', '.join(names)}")


def _cut(request: web.Request) -> None:
    """Close the connection without an answer; what is written afterwards goes nowhere."""
    if request.transport is not None:
        request.transport.abort()


def _response(answer: Answer) -> web.Response:
    body = answer.body if isinstance(answer.body, str) else orjson.dumps(answer.body)
    return web.Response(
        status=answer.status,
        body=body,
        headers=answer.headers,
        content_type="application/json",
    )


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusalError(refusal(413, "too_large", "a body may have 64 MiB")) from None


async def _json_object(request: web.Request) -> dict[str, Any]:
    try:
        fields = orjson.loads(await _read(request))
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise RefusalError(refusal(400, "invalid_input", "the body must be a JSON object"))
    return fields


async def _control(request: web.Request, shape: type[Shape]) -> Shape:
    try:
        return shape.model_validate_json(await _read(request))
    except ValidationError as error:
        wrong = wrong_fields(error)
        answer = refusal(400, "invalid_settings", "; ".join(f"{at}: {why}" for at, why in wrong))
        raise RefusalError(answer) from None
