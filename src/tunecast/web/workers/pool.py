"""The server's side of its workers: who is free, who waits, and what ends when a client goes away.

Two kinds, so that a slow plan never stands in the way of a prediction:

    lanes   as many as there are cores, for questions of a moment; each keeps what it built for the jobs it answered
    once    a process per question that takes long or parses what was uploaded, a few at a time of each `Work`; the rest
            waits its turn, an upload behind uploads and never behind a plan
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Hashable
from typing import Any

from tunecast.records import NamedTuple, dataclass
from tunecast.units import GIB, MIB
from tunecast.web.workers import frames


class PoolLimits(NamedTuple):
    """What all clients together may have."""

    lanes: int
    once: int
    """Children at a time, of each work."""
    waiting: int = 256
    """Questions that wait for a lane."""
    waiting_once: int = 32
    lane_cpu_s: float = 30.0
    """Of one question of a moment. The deepest model there may be, 320 layers under ZeRO with adapters everywhere,
    takes some 10 s (job/model.py)."""
    once_cpu_s: float = 120.0
    """The slowest plan of the catalogue takes 20 s (docs/speed.md)."""
    upload_cpu_s: float = 20.0
    patience: float = 5.0
    """Seconds on the clock per second of CPU time: a busy machine is no reason to refuse what an idle one answers."""
    upload_bytes: int = 1 * GIB


def usual_limits() -> PoolLimits:
    """By the cores of this machine: they are shared by lanes and children, and plans are the ones to wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return PoolLimits(lanes=max(1, min(cores, 8)), once=max(1, min(cores, 8)))


class RequestRefused(Exception):
    """A worker's refusal: the status, and JSON."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status, self.body = status, body

    @classmethod
    def of(cls, status: int, code: str, message: str, field: str | None = None) -> RequestRefused:
        return cls(status, json.dumps({"error": {"code": code, "field": field, "message": message}}).encode())


BUSY = "all of the server's processes are busy, and as many questions wait as may. To fix: ask again in a moment"
TOO_LONG = "not answered within {0:g} s, the most that a request may take. To fix: ask for less at once"
GONE = "the process that worked on this ended: it needs more memory or time than a request may have"


class Line:
    """Questions that wait for one of a few places."""

    def __init__(self, places: int, most_waiting: int) -> None:
        self._free = asyncio.Semaphore(places)
        self._most, self._waiting = most_waiting, 0

    async def enter(self) -> None:
        """Raises `RequestRefused` where as many wait as may."""
        if self._waiting >= self._most:
            raise RequestRefused.of(429, "busy", BUSY)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        self._free.release()


class Worker:
    """One process, by its socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.likeness: Hashable = None
        """What its last question was about."""

    async def ask(self, question: str, body: bytes) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Events, then the answer. Raises `RequestRefused`."""
        content = question.encode() + b"\n" + body
        self.writer.write(frames.HEAD.pack(frames.QUESTION, len(content)) + content)
        await self.writer.drain()
        while True:
            kind, length = frames.HEAD.unpack(await self.reader.readexactly(frames.HEAD.size))
            if length > frames.MOST_FRAME_BYTES:
                raise ConnectionError("a frame too large")
            found = await self.reader.readexactly(length)
            if kind == frames.REFUSAL:
                told = json.loads(found)
                raise RequestRefused(told.pop("status"), json.dumps(told).encode())
            yield kind, found
            if kind != frames.EVENT:
                return

    def end(self) -> None:
        """The process notices, and ends."""
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.transport.abort()


@dataclass(frozen=True, eq=False)
class Nursery:
    """The process workers are forked from."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    async def worker(self, kind: str, **limits: Any) -> Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                told = json.dumps({"kind": kind, "readable": _data_folders(), **limits}).encode()
                socket.send_fds(self.control, [told], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        return Worker(*await asyncio.open_connection(sock=ours, limit=MIB))

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def python_environment() -> dict[str, str]:
    """For a Python of ours, wherever it is started: with this package."""
    import tunecast

    package = os.path.dirname(os.path.dirname(os.path.abspath(tunecast.__file__)))
    paths = [package, *(os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def start_nursery(folder: str, *, hub: bool) -> Nursery:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = python_environment()
    if not hub:  # nothing is looked up, and nothing that was looked up before is read
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": os.path.join(folder, "no-cache")}
    with theirs:
        words = [sys.executable, "-P", "-m", "tunecast.web.workers.nursery", str(theirs.fileno()), folder]
        process = subprocess.Popen(
            [*words, "hub" if hub else "offline"],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Nursery(process, ours)


class Pool:
    def __init__(self, folder: str, limits: PoolLimits, *, hub: bool = False) -> None:
        self.folder, self.limits, self.hub = folder, limits, hub
        self._nursery = start_nursery(folder, hub=hub)
        self._free: list[Worker] = []
        self._lanes = Line(limits.lanes, limits.waiting)
        self._once = {work: Line(limits.once, limits.waiting_once) for work in ("once", "stream", "upload")}
        self._asked: set[asyncio.Future[bytes]] = set()

    async def answer(self, question: str, body: bytes, likeness: Hashable) -> bytes:
        """By a lane. Raises `RequestRefused`."""
        await self._lanes.enter()
        # A client that goes away does not take the lane's answer with it: the lane would have to be thrown away.
        asked = asyncio.ensure_future(self._by_lane(question, body, likeness))
        self._asked.add(asked)
        asked.add_done_callback(self._forget)
        return await asyncio.shield(asked)

    def _forget(self, asked: asyncio.Future[bytes]) -> None:
        """Whoever asked may be gone: then nobody else looks at what was raised."""
        self._asked.discard(asked)
        if not asked.cancelled():
            asked.exception()

    async def _by_lane(self, question: str, body: bytes, likeness: Hashable) -> bytes:
        lane: Worker | None = None
        try:
            lane = await self._lane(likeness)
            async with asyncio.timeout(self.limits.lane_cpu_s * self.limits.patience):
                kind, found = await anext(lane.ask(question, body))
            if kind == frames.ANSWER:
                self._free.append(lane)
                lane = None
            return found
        except RequestRefused:
            if lane is not None:
                self._free.append(lane)
                lane = None
            raise
        except TimeoutError:
            raise RequestRefused.of(
                422, "limit", TOO_LONG.format(self.limits.lane_cpu_s * self.limits.patience)
            ) from None
        except (asyncio.IncompleteReadError, OSError):
            raise RequestRefused.of(422, "limit", GONE) from None
        finally:
            if lane is not None:
                lane.end()
            self._lanes.leave()

    async def _lane(self, likeness: Hashable) -> Worker:
        """Of those that are free, the one that answered its like last."""
        if not self._free:
            lane = await self._worker(frames.LANE, cpu_s=self.limits.lane_cpu_s)
        else:
            lane = next((each for each in self._free if each.likeness == likeness), self._free[0])
            self._free.remove(lane)
        lane.likeness = likeness
        return lane

    async def events(self, question: str, body: bytes, work: str) -> AsyncGenerator[tuple[bytes, bytes]]:
        """By a process of its own, which ends with whoever reads this. Raises `RequestRefused`. `work` is one of
        `Work` that is done so (api/endpoints.py)."""
        limits, line, uploaded = self.limits, self._once[work], work == "upload"
        await line.enter()
        cpu_s = limits.upload_cpu_s if uploaded else limits.once_cpu_s
        seconds = cpu_s * limits.patience
        worker: Worker | None = None
        try:
            memory = {"memory_bytes": limits.upload_bytes} if uploaded else {}
            worker = await self._worker(frames.ONCE, cpu_s=cpu_s, **memory)
            end_s = asyncio.get_running_loop().time() + seconds
            answers = worker.ask(question, body)
            while True:
                async with asyncio.timeout_at(end_s):
                    kind, found = await anext(answers)
                yield kind, found
                if kind != frames.EVENT:
                    return
        except TimeoutError:
            raise RequestRefused.of(422, "limit", TOO_LONG.format(seconds)) from None
        except (asyncio.IncompleteReadError, OSError):
            raise RequestRefused.of(422, "limit", GONE) from None
        finally:
            if worker is not None:
                worker.end()
            line.leave()

    async def _worker(self, kind: str, **limits: Any) -> Worker:
        if not self._nursery.is_alive:
            self._nursery = start_nursery(self.folder, hub=self.hub)
        return await self._nursery.worker(kind, **limits)

    def end(self) -> None:
        for lane in self._free:
            lane.end()
        self._nursery.end()


def _data_folders() -> list[str]:
    """What `tunecast calibrate`, `offers update` and `offers add` keep."""
    from tunecast.learn.store import path_of
    from tunecast.market.store import folder

    return [str(folder()), str(path_of("any").parent)]
