"""The process that workers are forked from: everything is loaded in it, and one small job was predicted.

    server ──socket──► nursery ──fork──► a lane: answers one question after another, and keeps what it built
                                └─fork──► a child for one question: a plan, a fit, an upload; ended with its client

A fork takes milliseconds where starting Python and building the first tape take a second, and what the nursery has
loaded is shared by all. It is a process of its own, so that no worker inherits a client's connection.

Each worker gets its own end of a socket. When the server closes the other, whatever the worker is doing, it ends.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NoReturn

from tunecast.units import GIB, MIB
from tunecast.web.asking import questions
from tunecast.web.asking.questions import Asker
from tunecast.web.workers import frames
from tunecast.web.workers.confined import confine

LANE_RSS_BYTES = 1 * GIB
"""A lane that held more at any time is replaced after its answer. Structures that are kept have at most 4 million rows
of some hundred bytes (tape/build/job_runs.py)."""
MOST_ADDRESSES_BYTES = 4 * GIB
"""Of any worker. A plan of a 405B job holds 0.6 GiB."""
MOST_FILE_BYTES = 32 * MIB
SWEEP_EVERY = 64
"""Workers between two looks for what others left behind."""
GARBAGE_OBJECTS = 100_000
"""As of the command line (cli/main.py)."""
COLLECT_EVERY = 16
"""Answers of a lane between two whole collections of garbage. By the thresholds above the oldest generation is never
looked at, and what answers leave there in cycles stays: 400 mixed ones had grown a process from 329 to 445 MiB, and a
collection then found 263,000 objects in 0.5 s. It comes after the answer is sent."""
SMALL = {"model": "llama-3.2-1b", "method": "lora", "hardware": {"gpu": "rtx-4090"}, "data": {"samples": 1000}}
"""Predicted before anybody asks: what is loaded when it is first needed is then there."""


def main() -> None:
    """`python -m tunecast.web.workers.nursery FD FOLDER HUB`: requests for workers come with a socket each."""
    control = socket.socket(fileno=int(sys.argv[1]))
    folder, hub = sys.argv[2], sys.argv[3] == "hub"
    sys.path[:] = [os.path.abspath(each) for each in sys.path]
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends us, by closing its end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    gc.set_threshold(GARBAGE_OBJECTS, 20)
    load(Asker(hub))
    gc.collect()
    gc.freeze()
    for forked in count():
        if forked % SWEEP_EVERY == SWEEP_EVERY - 1:
            sweep(folder)
        told, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not told or not descriptors:
            return
        request = json.loads(told)
        if os.fork() == 0:
            control.close()
            _live(socket.socket(fileno=descriptors[0]), request, folder, hub)
        os.close(descriptors[0])


def load(asker: Asker) -> None:
    from tunecast.market import store

    store.bundled()
    for question in ("predict", "cards"):
        questions.answer(question, _bytes({"job": SMALL}), asker)


def sweep(folder: str) -> None:
    """Folders of workers that were ended before they removed them."""
    for name in os.listdir(folder):
        if name.isdecimal() and not os.path.exists(f"/proc/{name}"):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _live(to: socket.socket, request: Mapping[str, Any], folder: str, hub: bool) -> NoReturn:
    """What a worker does, to its end."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        own = os.path.join(folder, f"{os.getpid()}")
        os.mkdir(own, 0o700)
        os.chdir(own)
        tempfile.tempdir = own
        end_when_closed(to, lambda: shutil.rmtree(own, ignore_errors=True))
        _limit(request)
        confine(own, request["readable"], network=hub)
        (_answer_all if request["kind"] == frames.LANE else _answer_one)(to, Asker(hub), request["cpu_s"])
        shutil.rmtree(own, ignore_errors=True)
        code = 0
    finally:
        os._exit(code)


def _limit(request: Mapping[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (request.get("memory_bytes") or MOST_ADDRESSES_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))


def _limit_cpu(seconds: float) -> None:
    """Of this question: the limit counts from the start of the process. The kernel ends whoever passes it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def end_when_closed(to: socket.socket, clear: Callable[[], None] = lambda: None) -> None:
    """Once the server's end is closed nobody wants the answer. A thread notices it while the question is worked on."""

    def wait() -> None:
        is_closed(to, None)
        clear()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def is_closed(to: socket.socket, wait_ms: int | None = 0) -> bool:
    """Whether the other end is, or is within that time; None: as long as it takes."""
    watched = select.poll()
    watched.register(to, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(watched.poll(wait_ms))


def _answer_all(to: socket.socket, asker: Asker, cpu_s: float) -> None:
    for answered in count(1):
        found = frames.receive(to)
        if found is None:
            return
        _limit_cpu(cpu_s)
        if not _answer(to, found[1], asker):
            return
        collect(answered)


def collect(answered: int) -> None:
    if answered % COLLECT_EVERY == 0:
        gc.collect()


def _answer_one(to: socket.socket, asker: Asker, cpu_s: float) -> None:
    _limit_cpu(cpu_s)
    gc.disable()  # it keeps what it builds until its end (cli/main.py)
    found = frames.receive(to)
    if found is not None:
        _answer(to, found[1], asker._replace(tell=lambda event: frames.send(to, frames.EVENT, _bytes(event))))


def _answer(to: socket.socket, question: bytes, asker: Asker) -> bool:
    """Whether this worker may go on."""
    name, _, body = question.partition(b"\n")
    try:
        answer, kind = _bytes(questions.answer(name.decode(), body, asker)), frames.ANSWER
    except Exception as error:
        answer, kind = _bytes(questions.refusal(error)), frames.REFUSAL
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LANE_RSS_BYTES
    if grown and kind == frames.ANSWER:
        kind = frames.LAST_ANSWER
    frames.send(to, kind, answer)
    return kind != frames.LAST_ANSWER


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


if __name__ == "__main__":
    main()
