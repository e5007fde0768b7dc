"""Whom the server answers: the page it served itself, and programs that say where they ask.

Another site that is open in the same browser can send requests here, and a name that it owns can be made to mean
127.0.0.1 (DNS rebinding). Both give themselves away: the browser sends the name it was asked for as `Host`, and the
site that asks as `Origin` and `Sec-Fetch-Site`, which no script can change. Programs send no Origin.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address

from tunecast.errors import NotResolved, UsageError
from tunecast.records import NamedTuple
from tunecast.units import KIB

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LEAST_TOKEN = 32
"""Characters: 16 bytes in hexadecimal."""
MOST_TOKEN = 4096
MOST_HEADER_BYTES = 16 * KIB
"""Of a request before its body: its address and all headers."""
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?)\.?(?::([0-9]{1,5}))?")
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
"""Of every answer. Charts set styles on what they draw, so these may be inline; scripts may not."""
_NO_FRAMES = "frame-ancestors 'none'"
_ORIGIN = re.compile(
    r"(https?|vscode-webview|vscode-file)://([a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?|\[::1\])(:[0-9]{1,5})?"
)
"""What VS Code and its kin call their windows (`vscode-file:`) and the frames in them (`vscode-webview:`), which no
site on the network can be called; and an editor in a browser by its address."""


class Denial(NamedTuple):
    status: int
    code: str
    message: str


class Access(NamedTuple):
    """Who may ask: by which names the server is called, and with which token."""

    names: frozenset[str]
    """Hosts, without ports."""
    any_address: bool = False
    """Any numeric address is a name too: those of a machine are many, and no DNS answer leads to one."""
    token: str | None = None

    def denial(self, headers: Mapping[str, list[str]], path: str, method: str) -> Denial | None:
        """Why a request is not answered; None where it is."""
        hosts = headers.get("host", [])
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self.is_own(host):
            told = f"this server is called {', '.join(sorted(self.names))}, and by no other name"
            return Denial(403, "host", told)
        if not self.is_same_origin(headers, hosts[0].lower(), is_page=not path.startswith("/api") and method == "GET"):
            return Denial(403, "origin", "asked from another site, which may not")
        if self.token is not None and path.startswith("/api") and path != "/api/health":
            given = headers.get("authorization", [])
            if len(given) != 1 or not is_token(given[0], self.token):
                return Denial(401, "token", "a token is needed. To fix: Authorization: Bearer TOKEN")
        return None

    def is_own(self, host: str) -> bool:
        return host in self.names or (self.any_address and _is_address(host))

    def is_same_origin(self, headers: Mapping[str, list[str]], host: str, *, is_page: bool) -> bool:
        """`is_page`: a link on another site may lead to the page itself, which holds nothing."""
        origins = headers.get("origin", [])
        if any(origin.lower() not in (f"http://{host}", f"https://{host}") for origin in origins):
            return False
        sites = headers.get("sec-fetch-site", [])
        return is_page or all(site in ("same-origin", "none") for site in sites)


def headers_for(framed_by: Sequence[str] = ()) -> Mapping[str, str]:
    """Of every answer, where the pages at these origins, and no others, may show this one in a frame."""
    if not framed_by:
        return HEADERS
    kept = {name: text for name, text in HEADERS.items() if name != "x-frame-options"}  # which knows no origins
    policy = HEADERS["content-security-policy"].replace(_NO_FRAMES, f"frame-ancestors {' '.join(framed_by)}")
    return {**kept, "content-security-policy": policy}


def editor_origins(given: Iterable[str]) -> tuple[str, ...]:
    """Each once, checked: they become part of a header."""
    found = tuple(dict.fromkeys(each.lower().removesuffix("/") for each in given))
    for each in found:
        if not _ORIGIN.fullmatch(each):
            told = "an origin: http://HOST:PORT, https://HOST, vscode-webview://NAME or vscode-file://NAME"
            raise UsageError(f"--framed-by: got {each[:100]!r}; allowed: {told}", field="--framed-by")
    return found


def host_of(header: str) -> str | None:
    """The name in a Host header, without its port; None where it is none."""
    found = _HOST.fullmatch(header.lower())
    return None if found is None else found[1].strip("[]")


def is_token(header: str, token: str) -> bool:
    """Compared in a time that does not tell how much of it was right."""
    scheme, _, given = header.partition(" ")
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()) and scheme.lower() == "bearer"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def access_for(host: str, token: str | None, names: Iterable[str], framed_by: Iterable[str] = ()) -> Access:
    """`names`: of this machine, where others may ask. An editor in a browser asks in its own name: it passes on."""
    origins = [found for each in framed_by if (found := _ORIGIN.fullmatch(each)) is not None]
    editors = {found[2].strip("[]") for found in origins if found[1] in ("http", "https")}
    if is_loopback(host):
        return Access(frozenset({*LOOPBACK, host, *editors}), token=token)
    if token is None:
        raise UsageError(
            f"--host {host}: others could ask this server. To fix: --token-file FILE, with a token in it "
            "(python3 -c 'import secrets; print(secrets.token_hex(32))' > FILE; chmod 600 FILE)",
            field="--host",
        )
    own = {name.lower() for name in names if name} | {*LOOPBACK, *editors}
    return Access(frozenset(own if _is_address(host) else {*own, host.lower()}), any_address=True, token=token)


def token_in(path: str) -> str:
    """The token of a file that nobody else may read."""
    import os
    import stat

    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_TOKEN + 2).strip()
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise NotResolved(f"--token-file: {path}: {told}", field="--token-file") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError(f"--token-file: {path} can be read by others. To fix: chmod 600 {path}", field="--token-file")
    if not LEAST_TOKEN <= len(text) <= MOST_TOKEN or not re.fullmatch(r"[!-~]+", text):
        told = f"{LEAST_TOKEN} to {MOST_TOKEN} letters, digits and signs in one line"
        raise UsageError(f"--token-file: {path} holds no token; allowed: {told}", field="--token-file")
    return text


class RateLimit:
    """Requests of each address: so many at once, and as many again per second as `per_s` says. A wrong token counts as
    many."""

    def __init__(
        self,
        burst: float = 500,
        per_s: float = 100,
        *,
        addresses: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.burst, self.per_s, self.addresses, self.clock = burst, per_s, addresses, clock
        self._left: dict[str, tuple[float, float]] = {}
        """What an address may still ask, and as of when; the one that asked last is the last."""

    def take(self, address: str, cost: float = 1.0) -> float:
        """Seconds until it may ask again; 0: it may now."""
        now_s = self.clock()
        left, since_s = self._left.pop(address, (self.burst, now_s))
        left = min(self.burst, left + (now_s - since_s) * self.per_s)
        may = left >= 1.0
        self._left[address] = (max(left - cost, -self.burst) if may else left), now_s
        if len(self._left) > self.addresses:
            del self._left[next(iter(self._left))]
        return 0.0 if may else (1.0 - left) / self.per_s
