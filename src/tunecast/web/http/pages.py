"""The page's own files. All are read when the server starts: no request ever becomes a path."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INDEX = "index.html"
LASTING = "public, max-age=31536000, immutable"
"""Of files whose names change with what they hold (Vite's assets/)."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}


def static_files() -> dict[str, bytes]:
    """By their path below static/."""
    return dict(_below(files("tunecast.web") / "static"))


def _below(folder: Any, before: str = "") -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{before}{each.name}/")
        elif each.name != "__init__.py":
            yield before + each.name, each.read_bytes()


def page_routes() -> list[Route]:
    found = static_files()
    routes = [Route(f"/{name}", _file(name, content)) for name, content in found.items()]
    return [*routes, Route("/", _file(INDEX, found[INDEX]))]


def _file(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    ending = "." + name.rpartition(".")[2]
    kind = TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"cache-control": LASTING if name.startswith("assets/") else "no-cache"}

    async def answer(request: Request) -> Response:
        return Response(content, headers=headers, media_type=kind)

    return answer
