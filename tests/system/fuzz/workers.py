"""Inputs in forked processes, each bounded: 10 s of CPU time (30 s for a search), 1 GiB beyond what the program holds.

What a process finds is in memory it shares with its parent, an outcome an input, so that one that is ended in the
middle loses nothing but the input that ended it. What hung or took too much memory is asked again alone, in a process
of its own, and counts only if it does so there: what came before it in the same process may have filled its caches.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import signal
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any, NamedTuple

from tunecast.cli.main import GARBAGE_OBJECTS

from .outcomes import ENDED, FAILURES, HANG, MEMORY, OUTCOMES, Input, outcome_of

MOST_CPU_S = 10
MOST_BYTES = 2**30
MOST_WAITING_S = 240.0
"""Of an input that sleeps instead of working. One that works has its CPU time, however long that takes to come by."""
PROCESSES = 2
_HEAD = struct.Struct("qdd")
"""The input under way, the seconds of the slowest, and which that was."""


class Door(NamedTuple):
    name: str
    share: float
    """Of all inputs."""
    at_once: int
    """Inputs a process takes."""
    make: Callable[[Random, int], Input]
    most_cpu_s: int = MOST_CPU_S
    """For one input."""


class Part(NamedTuple):
    door: Door
    numbers: range
    seed: int
    alone: bool = False


class Failure(NamedTuple):
    door: str
    number: int
    outcome: str
    place: str
    input: str


class Done(NamedTuple):
    door: str
    outcomes: Counter[str]
    failures: list[Failure]
    cpu_s: float
    slowest_s: float
    slowest: int
    peak_bytes: int


def the_input(door: Door, number: int, seed: int) -> Input:
    return door.make(Random(f"{seed}/{door.name}/{number}"), number)


def _cpu_ticks_unless_asleep(pid: int) -> int | None:
    """The CPU time a process has spent so far (man proc_pid_stat); None of one that is runnable or gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12]) if fields[0] in "ST" else None


class _Worker:
    def __init__(self, part: Part) -> None:
        self.part = part
        self.shared = mmap.mmap(-1, _HEAD.size + len(part.numbers))
        _HEAD.pack_into(self.shared, 0, part.numbers.start, 0.0, part.numbers.start)
        self.folder = Path(tempfile.mkdtemp(prefix="tunecast-fuzz-"))
        self.told = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  closed in `done`
        self.seen: tuple[int, int | None] = (-1, None)
        self.since = self.looked_s = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self._run()
                status = 0
            finally:
                os._exit(status)

    def _run(self) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        gc.freeze()  # what the test run holds is none of the command's work
        gc.set_threshold(GARBAGE_OBJECTS, 20)  # as a command of its own has it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        enter_empty_room(self.folder)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_bytes() + MOST_BYTES, hard))
        slowest_s, slowest = 0.0, self.part.numbers.start
        for place, number in enumerate(self.part.numbers):
            _HEAD.pack_into(self.shared, 0, number, slowest_s, slowest)
            asked = the_input(self.part.door, number, self.part.seed)
            before_s = time.process_time()
            resource.setrlimit(
                resource.RLIMIT_CPU, (ceil(before_s) + self.part.door.most_cpu_s, resource.RLIM_INFINITY)
            )
            found = outcome_of(asked)
            took_s = time.process_time() - before_s
            if took_s > slowest_s:
                slowest_s, slowest = took_s, number
            if took_s > self.part.door.most_cpu_s:
                found = found._replace(name=HANG, place=f"{took_s:.1f} s of CPU time")
            if found.name in FAILURES:
                row = Failure(self.part.door.name, number, found.name, found.place, asked.shown)
                self.told.write(json.dumps(row) + "\n")
                self.told.flush()
            self.shared[_HEAD.size + place] = 1 + OUTCOMES.index(found.name)
        _HEAD.pack_into(self.shared, 0, self.part.numbers.stop, slowest_s, slowest)

    def ended(self) -> tuple[int, Any] | None:
        """Its status and account; None while it runs. One that waits for something that does not come is ended."""
        pid, status, account = os.wait4(self.pid, os.WNOHANG)
        if pid:
            return status, account
        now_s = time.monotonic()
        if now_s - self.looked_s > 1.0:
            number, progress = _HEAD.unpack_from(self.shared)[0], _cpu_ticks_unless_asleep(self.pid)
            if progress is None or (number, progress) != self.seen:
                self.seen, self.since = (number, progress), now_s
            elif now_s - self.since > MOST_WAITING_S:
                os.kill(self.pid, signal.SIGXCPU)
            self.looked_s = now_s
        return None

    def done(self, status: int, account: Any) -> tuple[Done, list[Part]]:
        """What it found, and what is left to do."""
        part = self.part
        number, slowest_s, slowest = _HEAD.unpack_from(self.shared)
        codes = self.shared[_HEAD.size :]
        outcomes = Counter(OUTCOMES[code - 1] for code in codes if code)
        self.told.seek(0)
        failures = [Failure(*json.loads(line)) for line in self.told]
        left: list[Part] = []
        if status and number < part.numbers.stop:
            code = os.waitstatus_to_exitcode(status)
            name = HANG if code in (-signal.SIGXCPU, -signal.SIGKILL) else ENDED
            failures.append(Failure(part.door.name, number, name, f"the process ended with {code}", ""))
            outcomes[name] += 1
            if number + 1 < part.numbers.stop:
                left.append(part._replace(numbers=range(number + 1, part.numbers.stop)))
        if not part.alone:
            for row in [row for row in failures if row.outcome in (HANG, MEMORY, ENDED)]:
                failures.remove(row)
                outcomes[row.outcome] -= 1
                left.append(Part(part.door, range(row.number, row.number + 1), part.seed, alone=True))
        failures = [row if row.input else row._replace(input=_shown(part, row.number)) for row in failures]
        cpu_s = account.ru_utime + account.ru_stime
        self.told.close()
        self.shared.close()
        rmtree(self.folder, ignore_errors=True)
        peak_bytes = account.ru_maxrss * 1024
        return Done(part.door.name, +outcomes, failures, cpu_s, slowest_s, slowest, peak_bytes), left


def _shown(part: Part, number: int) -> str:
    try:
        return the_input(part.door, number, part.seed).shown
    except Exception as error:
        return f"could not be made: {error!r}"


def run(parts: Iterable[Part], processes: int = PROCESSES) -> Iterator[Done]:
    """As they end."""
    waiting = iter(parts)
    extra: list[Part] = []
    under_way: list[_Worker] = []
    try:
        while True:
            while len(under_way) < processes:
                part = extra.pop() if extra else next(waiting, None)
                if part is None:
                    break
                under_way.append(_Worker(part))
            if not under_way:
                return
            for worker in list(under_way):
                end = worker.ended()
                if end is not None:
                    under_way.remove(worker)
                    done, left = worker.done(*end)
                    extra += left
                    yield done
            time.sleep(0.002)
    finally:
        for worker in under_way:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
            rmtree(worker.folder, ignore_errors=True)


def enter_empty_room(folder: Path) -> None:
    """A folder of its own, an environment that says nothing, and no network."""
    from .rooms import furnish

    os.chdir(folder)
    kept = {name: os.environ[name] for name in ("PATH", "TUNECAST_NATIVE") if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, HOME=str(folder), XDG_DATA_HOME=str(folder / "data"), HF_HUB_OFFLINE="1", LANG="C.UTF-8")
    furnish(folder)


def _address_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE
