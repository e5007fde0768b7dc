"""What a client sends, as far as the server itself looks at it: its kind, its size, and that it arrives."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import ClientDisconnect, Request

from tunecast.web.api.endpoints import Endpoint
from tunecast.web.workers.pool import RequestRefused

BODY_S = 20.0
"""Until all of a body has to be there."""
_LIKE = re.compile(rb'"(model|method|stack)"\s*:\s*"([^"\\]{1,100})"')


async def body_of(request: Request, endpoint: Endpoint) -> bytes:
    """The whole body. Raises `RequestRefused` where it is not JSON, is compressed, too large or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what a form of another site can send is not it
        raise RequestRefused.of(415, "content_type", "allowed: Content-Type: application/json", "content-type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused.of(415, "content_encoding", "allowed: a body that is not compressed", "content-encoding")
    most = endpoint.most_bytes
    length = request.headers.get("content-length", "")
    too_large = RequestRefused.of(413, "too_large", f"allowed: at most {most} bytes")
    if length.isdecimal() and (len(length) > 15 or int(length) > most):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except ClientDisconnect:
        raise RequestRefused.of(400, "gone", "the client went away") from None
    except TimeoutError:
        raise RequestRefused.of(408, "too_slow", f"the body did not arrive within {BODY_S:g} s") from None
    return bytes(body)


def likeness_of(body: bytes) -> tuple[tuple[bytes, ...], ...]:
    """By what a question is given to the process that answered its like: not more than a hint."""
    return tuple(sorted(_LIKE.findall(body[:4096])))
