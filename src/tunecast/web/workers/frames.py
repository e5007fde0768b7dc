"""How the server and its worker processes talk: a byte that says what comes, its length, and JSON.

Nothing that a worker sends is executed or unpickled by the server, whatever an upload made of the worker.
"""

from __future__ import annotations

import socket
import struct

from tunecast.units import MIB

HEAD = struct.Struct(">cI")
MOST_FRAME_BYTES = 64 * MIB
"""The largest answer seen is a plan of 2 MB; a frame beyond this is a fault of the worker."""

LANE, ONCE = "lane", "once"
"""Kinds of workers (pool.py)."""
QUESTION = b"q"
EVENT = b"e"
"""Something on the way to an answer."""
ANSWER = b"a"
LAST_ANSWER = b"l"
"""An answer, after which this worker ends: it grew too large, and another takes its place."""
REFUSAL = b"x"
"""`{"status", "error": {...}}`."""


def send(to: socket.socket, kind: bytes, content: bytes) -> None:
    to.sendall(HEAD.pack(kind, len(content)) + content)


def receive(of: socket.socket) -> tuple[bytes, bytes] | None:
    """The next frame; None where the other side is gone."""
    head = _exactly(of, HEAD.size)
    if head is None:
        return None
    kind, length = HEAD.unpack(head)
    content = _exactly(of, length) if length <= MOST_FRAME_BYTES else None
    return None if content is None else (kind, content)


def _exactly(of: socket.socket, nbytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < nbytes:
        part = of.recv(min(nbytes - len(parts), MIB))
        if not part:
            return None
        parts += part
    return bytes(parts)
