"""One request to a server that is not trusted: bounded in bytes and in time, the token for its own host only."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import urlsplit

from tunecast.errors import NotResolved
from tunecast.records import NamedTuple

MOST_REDIRECTS = 5
CHUNK_BYTES = 64 * 1024
_AUTHORIZATION = "Authorization"


class NoReply(Exception):
    """Why there is no usable reply, in words fit to print."""


class Reply(NamedTuple):
    status: int
    content: bytes
    error_code: str = ""
    """The Hub's own name for an error (`GatedRepo`, `EntryNotFound`, …), where it gives one it is known by."""


def content_of(url: str, most_bytes: int, timeout_s: float, json: bytes | None = None) -> bytes:
    """All of a plain reply, asked for without a token. Raises `NotResolved`."""
    try:
        reply = request(url, None, most_bytes, timeout_s, json=json)
    except NoReply as error:
        raise NotResolved(f"{url}: {error}") from None
    if reply.status != 200:
        raise NotResolved(f"{url}: answered {reply.status}")
    return reply.content


def request(
    url: str, token: str | None, most_bytes: int, timeout_s: float, *, part: bool = False, json: bytes | None = None
) -> Reply:
    """The reply to a GET, or to a POST of `json`; with `part` only the first `most_bytes`. Raises `NoReply`.

    The whole exchange runs in a thread of its own: a socket's timeout covers neither the look-up of the host's
    name nor a server that sends one byte at a time.
    """
    outcome: list[Reply | NoReply] = []

    def run() -> None:
        try:
            outcome.append(_exchange(url, token, most_bytes, timeout_s, part, json))
        except NoReply as error:
            outcome.append(error)
        except Exception as error:  # whatever a hostile reply provokes in http.client; the type is safe to print
            outcome.append(NoReply(f"an answer that cannot be read ({type(error).__name__})"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * timeout_s)
    if not outcome:
        raise NoReply(f"no answer within {2 * timeout_s:.0f} s")
    if isinstance(outcome[0], NoReply):
        raise outcome[0]
    return outcome[0]


def _exchange(url: str, token: str | None, most_bytes: int, timeout_s: float, part: bool, json: bytes | None) -> Reply:
    asked = urllib.request.Request(url, json, headers={"User-Agent": "tunecast", "Accept-Encoding": "identity"})
    if json is not None:
        asked.add_header("Content-Type", "application/json")
    if token:
        # unredirected: urllib itself copies it to no other request
        asked.add_unredirected_header(_AUTHORIZATION, f"Bearer {token}")
    if part:
        asked.add_header("Range", f"bytes=0-{most_bytes - 1}")
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(asked, timeout=timeout_s) as response:
            return Reply(response.status, _content(response, most_bytes, part))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, b"", _known(error.headers.get("X-Error-Code")))
    except urllib.error.URLError as error:
        raise NoReply(_reason(error.reason)) from None
    except TimeoutError:
        raise NoReply(f"no answer within {timeout_s:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise NoReply(_reason(error)) from None


def _content(response: Any, most_bytes: int, part: bool) -> bytes:
    length = response.headers.get("Content-Length") or ""
    expected = int(length) if length.isdecimal() and len(length) <= 30 else None
    if expected is not None and expected > most_bytes and not part:
        raise NoReply(f"{expected} bytes long; at most {most_bytes} are read")
    if response.status == 206 and not str(response.headers.get("Content-Range", "")).startswith("bytes 0-"):
        raise NoReply("a part of the file that was not asked for")
    content = bytearray()
    while len(content) <= most_bytes and (chunk := response.read1(CHUNK_BYTES)):
        content += chunk
    if len(content) > most_bytes and not part:
        raise NoReply(f"more than {most_bytes} bytes long, the most that is read")
    if expected is not None and len(content) < min(expected, most_bytes):
        raise NoReply(f"cut off after {len(content)} of {expected} bytes")
    return bytes(content[:most_bytes])


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MOST_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
            raise NoReply("a redirect away from https")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get(_AUTHORIZATION)
        if request is not None and token and _origin(old) == _origin(new):
            request.add_unredirected_header(_AUTHORIZATION, token)
        return request


def _origin(url: Any) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port


def _known(code: str | None) -> str:
    known = ("GatedRepo", "RepoNotFound", "EntryNotFound", "RevisionNotFound")
    return code if code in known else ""


def _reason(reason: object) -> str:
    """Words of our own for what is common; of the rest only the type, as its text may be the server's."""
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError):
        return f"cannot be reached ({reason.strerror or type(reason).__name__})"
    return f"an answer that cannot be read ({type(reason).__name__})"
