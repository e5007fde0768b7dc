"""Questions about the store of measured runs, answered in the server's own process: a worker sees neither the store nor
a network that a PostgreSQL store is behind.

Threads, a few, off the event loop. The store is read and never made or changed (door/live.py), and what a client sends
is a filter or hex digits: never a path, never a part of a statement.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tunecast.web.api.endpoints import USUAL_RUNS
from tunecast.web.asking.questions import given_of, refusal
from tunecast.web.workers import frames
from tunecast.web.workers.pool import BUSY, TOO_LONG, RequestRefused

THREADS = 2
WAITING = 32
"""Questions at once, those that are worked on included."""
ANSWER_S = 30.0
"""On the clock. A thread cannot be ended: one whose store hangs stays taken until the store's own limits end it
(learn/runs_store/session.py)."""
FOLLOWERS = 16
"""Clients that follow live runs at a time."""
LOOK_EVERY_S = 1.0
"""Between two looks at live runs: their journals have a line a second."""
Given = Mapping[str, Any]


def runs(given: Given) -> Any:
    from tunecast.door.live import listed_runs

    asked = dict(given)
    return listed_runs(asked.pop("limit", USUAL_RUNS), **asked)


def run(given: Given) -> Any:
    from tunecast.door.live import run_record

    return run_record(given["id"]).to_dict()


def live(given: Given) -> Any:
    from tunecast.door.live import live_runs

    return [each.to_dict() for each in live_runs()]


def calibration(given: Given) -> Any:
    from tunecast.door.learned import calibration

    return calibration(given.get("gpu")).to_dict()


QUESTIONS: Mapping[str, Callable[[Given], Any]] = {"runs": runs, "run": run, "live": live, "calibration": calibration}


class StoreDesk:
    """Who asks the store for clients, and how many may."""

    def __init__(self, *, seconds: float = ANSWER_S, every_s: float = LOOK_EVERY_S) -> None:
        self.seconds, self.every_s = seconds, every_s
        self.asked = self.followers = 0
        self._threads = ThreadPoolExecutor(THREADS, "tunecast-store")

    async def answer(self, question: str, body: bytes) -> bytes:
        """Raises `RequestRefused`."""
        if self.asked >= WAITING:
            raise RequestRefused.of(429, "busy", BUSY)
        self.asked += 1
        work = self._threads.submit(_answer, question, body)
        work.add_done_callback(self._done(asyncio.get_running_loop()))
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.wrap_future(work)
        except TimeoutError:
            raise RequestRefused.of(422, "limit", TOO_LONG.format(self.seconds)) from None

    def _done(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        """Counted down when its thread is free again, not when its client has gone."""

        def count_down() -> None:
            self.asked -= 1

        def tell(work: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(count_down)

        return tell

    async def follow(self, question: str, body: bytes) -> AsyncGenerator[tuple[bytes, bytes]]:
        """An event `runs` at once, and whenever something of a live run has changed; until whoever reads it goes."""
        if self.followers >= FOLLOWERS:
            raise RequestRefused.of(429, "busy", f"{FOLLOWERS} clients follow live runs, the most that may")
        self.followers += 1
        try:
            before = None
            while True:
                found = await self.answer(question, body)
                told = b'{"event": "runs", "data": %b}' % found
                yield frames.EVENT, told if found != before else ALIVE
                before = found
                await asyncio.sleep(self.every_s)
        finally:
            self.followers -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


ALIVE = b""
"""Nothing changed."""


def _answer(question: str, body: bytes) -> bytes:
    try:
        return json.dumps(QUESTIONS[question](given_of(question, body))).encode()
    except Exception as error:  # as a worker's: whatever it is, the client is told, and the server goes on
        told = refusal(error)
        raise RequestRefused(told.pop("status"), json.dumps(told).encode()) from None
