"""One process of a training, from its first sight to its end: what it measures, and the journal of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from tunecast.learn.inside.export import export
from tunecast.learn.inside.journal import SCHEMA, Journal, utc
from tunecast.learn.inside.live import Live, line, warnings
from tunecast.learn.inside.machine import card, host, place_of, software
from tunecast.learn.inside.measure import Measures, process_began
from tunecast.learn.inside.merge import OOM, merge
from tunecast.learn.inside.nvml import load
from tunecast.learn.inside.sampler import Sampler
from tunecast.learn.inside.telling import Told

FOLDER = "TUNECAST_RUN"
"""The folder of the run that this process is part of, where something outside watches it: every rank has its journal
there."""
STOP, STOP_AT = "stop", "stop_at"
"""In that folder: what outside asks for, and the step at which all ranks do it."""
LOOK_EVERY_S = 0.2
AHEAD = 3
"""Steps between a request to stop and the stop, of several ranks: each step they wait for each other, so that none is
more than one ahead, and all have seen the number by then."""
OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
MOST_MESSAGE = 2000
THE_PROCESS = "_tunecast_process"
"""An attribute of `sys`: a program may have these files twice, installed and beside the job."""


class WatchedProcess:
    """`finished` takes the record, where nothing outside does; then this one also says how it goes, to `told`, against
    what was `expected`."""

    def __init__(
        self,
        folder: str,
        source: str,
        *,
        alone: bool,
        described: dict[str, Any] | None = None,
        expected: Mapping[str, Any] | None = None,
        told: TextIO | None = None,
        finished: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.folder, self.alone, self._number = folder, alone, os.getpid()
        self.place = place_of()
        self.began = process_began()
        self.measures = Measures(self.began)
        self.loss: tuple[int, Any] | None = None
        self.stopped_at: int | None = None
        self.over = False
        self.state = "failed"
        self._exported: list[str] = []
        self._expected, self._say = expected or {}, Told(told, shares=True)
        self._finished = finished
        self._looked = 0.0
        self._stop_at: int | None = None
        self._head = head(source, self.began, described)
        name = "run.jsonl" if alone else f"rank-{self.place['rank']}-{os.getpid()}.jsonl"
        self._sampler = Sampler(load()[0] if alone else None, os.getpid())
        self.journal = Journal(os.path.join(folder, name), self._line)
        self.journal.begin({"event": "begin", "at": time.time(), **self.place, "record": self._described()})
        atexit.register(self.end, None)
        self._before = sys.excepthook
        sys.excepthook = self._excepthook

    def _described(self) -> dict[str, Any]:
        hardware = {**self._head["hardware"], **host(), **card()}
        hardware |= {"gpus": self.place["per_node"], "nodes": self.place["nodes"]}
        return {**self._head, "hardware": hardware, "software": software()}

    def _line(self) -> dict[str, Any] | None:
        """Asked for by the journal's thread, which may wait for the card; the training does not."""
        self.read_loss()
        found = {"event": "steps", "at": time.time(), **self.measures.so_far()}
        if self.alone:
            self._sampler.sample(self.measures.phase)
            found["outside"] = self._sampler.summary()
            found |= self._line_and_warnings(found)
        if self.measures.losses.values:
            found["loss"] = self.measures.losses.values[-1]
        return found

    def _line_and_warnings(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """As `tunecast watch` says it of a program from outside."""
        live = Live(self._expected, found, found["outside"], found["at"] - self.began)
        warned, told = warnings(live), line(live)
        for about, text in warned.items():
            self._say.once(about, text)
        if live.step_s is not None and not self.over:
            self._say.now(told)
        return {"line": told, "warnings": list(warned.values())}

    def read_loss(self) -> None:
        """A loss on the card is read here, once a second, and not where the training says it."""
        told, self.loss = self.loss, None
        if told is not None:
            with contextlib.suppress(Exception):
                self.measures.lose(int(told[0]), float(told[1]))

    def stops(self, step: int) -> bool:
        """Whether the training is to save and end after this step. All ranks answer the same of a step."""
        if self.alone or self.stopped_at is not None:
            return self.stopped_at is not None
        several = self.place["world"] > 1
        if self._stop_at is None and several:
            self._stop_at = number_in(os.path.join(self.folder, STOP_AT))
        if self._stop_at is None and self.place["rank"] == 0 and self._is_asked():
            self._stop_at = step + (AHEAD if several else 0)
            if several:
                write_whole(os.path.join(self.folder, STOP_AT), str(self._stop_at))
        if self._stop_at is None or step < self._stop_at:
            return False
        self.stopped_at = step
        self.journal.append({"event": "stop", "at": time.time(), "step": step})
        return True

    def _is_asked(self) -> bool:
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return False
        self._looked = now
        return os.path.exists(os.path.join(self.folder, STOP))

    def trained(self) -> None:
        """Training is over, the program perhaps not."""
        self.state = "stopped" if self.stopped_at is not None else "done"
        self.measures.enter("end")
        self.tell_trackers()
        if self.alone:
            self.end(self.state)

    def tell_trackers(self) -> None:
        """Once."""
        if self.place["rank"] == 0 and not self._exported:
            self._exported = export(self._merged(self.state))

    def _merged(self, state: str) -> dict[str, Any]:
        self.read_loss()
        inside = {**self.place, **self.measures.so_far(), "losses": self.measures.losses.values}
        return merge(self._described(), [inside], self._sampler.summary(), state, time.time())

    def failed(self, error: BaseException | None) -> None:
        """Of an exception its kind is kept."""
        if keep_out_of_memory(self.folder, error):
            self.state = "oom"
        else:
            self.state = "killed" if isinstance(error, KeyboardInterrupt) else "failed"
        self.end(self.state)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        with contextlib.suppress(Exception):
            self.failed(error)
        self._before(kind, error, trace)

    def end(self, state: str | None) -> None:
        """Once; None: the program ends, and training ended as it did or not at all."""
        if self.over or os.getpid() != self._number:
            return
        self.over = True
        state = state or self.state
        record = self._merged(state)
        last = {"event": "end", "at": time.time(), "state": state, **self.place, **self.measures.so_far()}
        self.journal.end({**last, "losses": self.measures.losses.values, "record": record})
        if getattr(sys, THE_PROCESS, None) is self:
            delattr(sys, THE_PROCESS)
        if self._finished is not None:
            self._finished(record)


def head(source: str, began: float, described: dict[str, Any] | None = None) -> dict[str, Any]:
    """A record of which nothing is measured yet."""
    return {
        "schema": SCHEMA,
        "id": secrets.token_hex(16),
        "source": source,
        "state": "running",
        "began": utc(began),
        "ended": None,
        "job": None,
        "model_shape": None,
        "hardware": {},
        "software": {},
        **dict.fromkeys(("memory", "time", "tokens", "utilization", "energy_j", "loss", "predicted", "note")),
        **(described or {}),
    }


def the_process(make: Callable[[], WatchedProcess]) -> WatchedProcess:
    """The one of this process; it is made where there is none, or the last one is over."""
    found: WatchedProcess | None = getattr(sys, THE_PROCESS, None)
    if found is None:
        found = make()
        setattr(sys, THE_PROCESS, found)
    return found


def watched_from_outside() -> WatchedProcess | None:
    """By `tunecast watch`, or a launch: in its folder."""
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder):
        return None
    return the_process(lambda: WatchedProcess(folder, "watch", alone=False))


def keep_out_of_memory(folder: str, error: BaseException | None) -> bool:
    """Whether a program ended for lack of memory on the card. Its message, which holds sizes alone, is kept in the
    run's folder."""
    found = OUT_OF_MEMORY.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is not None:
        write_whole(os.path.join(folder, OOM), str(error)[found.start() :][:MOST_MESSAGE])
    return found is not None or type(error).__name__ == "OutOfMemoryError"


def number_in(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(20)
        return int(text) if text.isdecimal() else None
    except (OSError, ValueError):
        return None


def write_whole(path: str, text: str) -> None:
    """Nobody reads half of it, though ranks, and machines that share the folder, write the same at once."""
    beside = f"{path}.{secrets.token_hex(8)}"
    with contextlib.suppress(OSError):
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)
