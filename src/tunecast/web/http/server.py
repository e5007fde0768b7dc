"""Starts the server: its socket, its folder, its workers; and ends them."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from tunecast.errors import NotResolved
from tunecast.web.asking.stored import StoreDesk
from tunecast.web.http.app import application
from tunecast.web.http.slow import PatientProtocol
from tunecast.web.safety import MOST_HEADER_BYTES, RateLimit, access_for, headers_for
from tunecast.web.workers.pool import Pool, usual_limits

KEEP_ALIVE_S = 15
END_S = 3
BACKLOG = 512


def serve(
    host: str,
    port: int,
    token: str | None,
    *,
    hub: bool,
    ready: Callable[[str], None],
    framed_by: Sequence[str] = (),
) -> None:
    """Until it is interrupted. `ready` is told the URL once connections are taken; the first waits for the workers."""
    access = access_for(host, token, (socket.gethostname(), socket.getfqdn()), framed_by)
    with (
        listening(host, port) as listener,
        tempfile.TemporaryDirectory(prefix="tunecast-serve-", ignore_cleanup_errors=True) as folder,
        closing_pool(Pool(folder, usual_limits(), hub=hub)) as pool,
        contextlib.closing(StoreDesk()) as desk,
    ):
        named = f"[{host}]" if ":" in host else host
        ready(f"http://{named}:{listener.getsockname()[1]}/")
        config = uvicorn.Config(
            application(pool, desk, access, RateLimit(), headers_for(framed_by)),
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=END_S,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        uvicorn.Server(config).run(sockets=[listener])


@contextlib.contextmanager
def closing_pool(pool: Pool) -> Iterator[Pool]:
    try:
        yield pool
    finally:
        pool.end()


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Raises `NotResolved` where the address is not this machine's, or taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            told = (error.strerror if isinstance(error, OSError) else None) or "not an address of this machine"
            message = f"{host} port {port}: {told}. To fix: --port with another number, or 0 for any that is free"
            raise NotResolved(message, field="--port") from None
        yield listener
