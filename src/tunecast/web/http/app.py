"""The application: every request is looked at before anything is done, and every answer has the same headers.

uvicorn ──► Guard (who asks, how often) ──► Starlette's routes ──► a lane, a process of its own, the store, a file
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tunecast import __version__
from tunecast.web.api.endpoints import ENDPOINTS, Endpoint
from tunecast.web.api.openapi import document
from tunecast.web.api.query import query_values
from tunecast.web.asking.stored import StoreDesk
from tunecast.web.http.bodies import body_of, likeness_of
from tunecast.web.http.pages import page_routes
from tunecast.web.safety import HEADERS, MOST_HEADER_BYTES, Access, Denial, RateLimit
from tunecast.web.workers import frames
from tunecast.web.workers.pool import Pool, RequestRefused

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
WRONG_TOKEN_COST = 50.0
"""Requests that a wrong token counts for: at 100 a second two guesses, of 2^128."""
JSON = "application/json"
NAMES = {404: "not_found", 405: "method"}


def application(
    pool: Pool, desk: StoreDesk, access: Access, rate: RateLimit, headers: Mapping[str, str] = HEADERS
) -> Guard:
    routes = [Route(each.path, _endpoint(each, pool, desk), methods=[each.method]) for each in ENDPOINTS]
    routes += [Route("/api/health", _health), Route("/api/openapi.json", _openapi), *page_routes()]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: _not_found}), access, rate, headers)


class Guard:
    """Around the application: nothing that it refuses reaches a route."""

    def __init__(self, app: Any, access: Access, rate: RateLimit, headers: Mapping[str, str]) -> None:
        self.app, self.access, self.rate, self.headers = app, access, rate, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a websocket, of which there is none: the connection is closed
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", ())}
                more = [(name.encode(), text.encode()) for name, text in self.headers.items()]
                left = [each for each in more if each[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *left]}
            await send(message)

        refused = self._refusal(scope, headers)
        await (self.app if refused is None else refused)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Mapping[str, list[str]]) -> Response | None:
        address = (scope.get("client") or ("",))[0]
        wait_s = self.rate.take(address)
        if wait_s:
            told = Denial(429, "rate", f"too many requests. To fix: ask again in {wait_s:.1f} s")
            return _denied(told, {"retry-after": str(int(wait_s) + 1)})
        # what arrives at once h11 takes up to 64 KiB of
        address_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        if address_bytes + sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
            return _denied(Denial(431, "headers", f"allowed: at most {MOST_HEADER_BYTES} bytes of address and headers"))
        denial = self.access.denial(headers, scope["path"], scope["method"])
        if denial is None:
            return None
        if denial.status == 401:
            self.rate.take(address, WRONG_TOKEN_COST)
            return _denied(denial, {"www-authenticate": "Bearer"})
        return _denied(denial)


def _denied(denial: Denial, headers: Mapping[str, str] | None = None) -> Response:
    error = {"code": denial.code, "field": None, "message": denial.message}
    return Response(json.dumps({"error": error}), denial.status, headers, JSON)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = NAMES.get(error.status_code, "request")
    told = Denial(error.status_code, code, f"{request.method} {request.url.path[:200]}: {error.detail}")
    return _denied(told, error.headers)


async def _health(request: Request) -> Response:
    return Response(json.dumps({"status": "ok", "version": __version__}), media_type=JSON)


async def _openapi(request: Request) -> Response:
    return Response(json.dumps(document()), media_type=JSON)


def _endpoint(
    endpoint: Endpoint, pool: Pool, desk: StoreDesk
) -> Callable[[Request], Awaitable[Response | EventStream]]:
    async def answer(request: Request) -> Response | EventStream:
        try:
            if endpoint.method == "GET":
                given = {**query_values(endpoint, request.query_params.multi_items()), **request.path_params}
                body = json.dumps(given).encode()
            else:
                body = await body_of(request, endpoint)
            if endpoint.work == "lane":
                asked = pool.answer(endpoint.question, body, likeness_of(body))
                return Response(await _unless_gone(asked, request), media_type=JSON)
            if endpoint.work == "store":
                return Response(await _unless_gone(desk.answer(endpoint.question, body), request), media_type=JSON)
            if endpoint.work == "follow":
                return await _stream(desk.follow(endpoint.question, body), request)
            work = pool.events(endpoint.question, body, endpoint.work)
            if endpoint.work == "stream":
                return await _stream(work, request)
            return _response(endpoint, await _unless_gone(_last(work), request))
        except RequestRefused as refused:
            headers = {"retry-after": "1"} if refused.status == 429 else None
            return Response(refused.body, refused.status, headers, JSON)

    return answer


def _response(endpoint: Endpoint, answer: bytes) -> Response:
    if endpoint.answers == JSON:
        return Response(answer, media_type=JSON)
    told = json.loads(answer)
    attached = {"content-disposition": f'attachment; filename="{told["name"]}"'}
    return Response(told["text"], headers=attached, media_type=endpoint.answers)


async def _last(work: AsyncGenerator[tuple[bytes, bytes]]) -> bytes:
    every = [found async for kind, found in work if kind != frames.EVENT]
    return every[-1]


async def _unless_gone(work: Awaitable[T], request: Request) -> T:
    """The answer; where the client goes away first, whoever works on it ends, or leaves the queue."""
    asked, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        raise RequestRefused.of(400, "gone", "the client went away")
    finally:
        await _end(asked, gone)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(work: AsyncGenerator[tuple[bytes, bytes]], request: Request) -> EventStream:
    """The first event is waited for, so that what is refused at once has a status of its own."""
    return EventStream(await _unless_gone(anext(work), request), work)


class EventStream:
    """Server-sent events of a process, or of live runs, which end when the client goes away."""

    def __init__(self, first: tuple[bytes, bytes], work: AsyncGenerator[tuple[bytes, bytes]]) -> None:
        self.first, self.work = first, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        writing, gone = asyncio.ensure_future(self._write(send)), asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(writing, gone)
            await self.work.aclose()

    async def _write(self, send: Send) -> None:
        try:
            await self._write_event(send, *self.first)
            async for kind, found in self.work:
                await self._write_event(send, kind, found)
        except RequestRefused as refused:
            told = json.dumps(json.loads(refused.body)["error"])
            await _send_event(send, b"error", told.encode())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_event(self, send: Send, kind: bytes, found: bytes) -> None:
        if not found:  # nothing new: a comment, by which a connection that is gone is noticed
            await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        elif kind == frames.EVENT:
            told = json.loads(found)
            await _send_event(send, told["event"].encode(), json.dumps(told["data"]).encode())
        else:
            await _send_event(send, b"plan", found)


async def _send_event(send: Send, name: bytes, data: bytes) -> None:
    content = b"event: " + name + b"\ndata: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": content, "more_body": True})
