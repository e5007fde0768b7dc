"""Clients that never finish what they begin: headers that arrive a byte at a time, connections nobody uses.

uvicorn waits for a request's headers as long as the connection is open, and answers 503 beyond a number of connections.
Here a connection is closed that has not sent its headers in time, and one beyond the limit at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0
"""From the connection, or the request before, to the end of the headers."""
MOST_CONNECTIONS = 800
"""Below the 1,024 files that a process usually may have open: each worker has one too."""


class PatientProtocol(H11Protocol):  # type: ignore[misc]
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits: asyncio.TimerHandle | None = None
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._begin_to_wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waits is None and not self.transport.is_closing():
            self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _begin_to_wait(self) -> None:
        self._waits = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
