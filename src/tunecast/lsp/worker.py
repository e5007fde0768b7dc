"""The warm process that reads and predicts, and the children it forks for what takes longer.

    server ──socket per question──► worker: `look`, and what it built stays for the next question
                                        └─fork──► a child with all of that: details, plan, fit, launch

Whoever no longer wants an answer closes the socket: a child notices and ends, the worker drops what it found and takes
the next question. Nothing here reaches the network.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NoReturn

from tunecast.errors import TunecastError
from tunecast.lsp import answers
from tunecast.lsp.reading import Reading
from tunecast.units import GIB
from tunecast.web.asking.questions import refusal
from tunecast.web.workers import frames
from tunecast.web.workers.confined import CONNECTING
from tunecast.web.workers.nursery import COLLECT_EVERY, GARBAGE_OBJECTS, SMALL, end_when_closed, is_closed

MOST_RSS_BYTES = 1 * GIB
"""A worker that held more at any time ends after its answer, and another takes its place."""
MOST_ADDRESSES_BYTES = 6 * GIB
CHILD_CPU_S = 120
NICENESS = 5
"""Of children: what somebody typed last comes first."""


def main() -> None:
    """`python -m tunecast.lsp.worker FD`: a socket for each question comes over FD."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends us, by closing its end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES_BYTES, MOST_ADDRESSES_BYTES))
    sys.addaudithook(stay_here)
    gc.set_threshold(GARBAGE_OBJECTS, 20)
    load()
    gc.collect()
    gc.freeze()
    for answered in count(1):
        told, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not told or not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as to:
            _answer(to, control)
        if answered % COLLECT_EVERY == 0:
            gc.collect()
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_RSS_BYTES:
            return


def stay_here(event: str, values: tuple[Any, ...]) -> None:
    if event in CONNECTING:
        raise PermissionError(f"{event}: not of this process")


def load() -> None:
    """What is loaded when it is first needed is then there."""
    from tunecast.door.predict import predict
    from tunecast.market import store

    store.bundled()
    found = predict(SMALL, engine="analytic")
    answers.time_and_price(found)


def _answer(to: socket.socket, control: socket.socket) -> None:
    found = frames.receive(to)
    if found is None or is_closed(to):
        return
    question = json.loads(found[1])
    read = Reading(answers.NOTHING)
    try:
        if question["kind"] in answers.IN_PLACE:
            read = answers.read_asked(question)
            _send(to, frames.EVENT, ["look", read.look.to_dict()])
            if question["kind"] == "look" and (read.prediction is None or is_closed(to)):
                _send(to, frames.ANSWER, None)
                return
    except OSError:  # nobody wants it any more
        return
    except Exception as error:
        _refuse(to, error)
        return
    if os.fork() == 0:
        control.close()
        _live(to, question, read)


def _live(to: socket.socket, question: Mapping[str, Any], read: Reading) -> NoReturn:
    """What a child does, to its end."""
    try:
        end_when_closed(to)
        os.nice(NICENESS)
        gc.disable()
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + CHILD_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        _tell(to, answers.further(question, read))
    except Exception as error:
        _refuse(to, error)
    finally:
        os._exit(0)


def _tell(to: socket.socket, events: Iterable[answers.Event]) -> None:
    for name, content in events:
        _send(to, frames.EVENT, [name, content])
    _send(to, frames.ANSWER, None)


def _send(to: socket.socket, kind: bytes, content: Any) -> None:
    frames.send(to, kind, json.dumps(content, separators=(",", ":")).encode())


def _refuse(to: socket.socket, error: Exception) -> None:
    told = refusal(error)["error"]
    try:
        _send(to, frames.REFUSAL, {**told, "expected": isinstance(error, TunecastError)})
    except OSError:
        return


if __name__ == "__main__":
    main()
