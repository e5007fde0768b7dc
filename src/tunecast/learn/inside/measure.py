"""What one process of a training measures of itself. Nothing here waits for the card: steps are timed by its own
events, read once it has passed them; memory is read by the journal's thread, once a second and where a phase ends.

Peaks are never reset, since the program may look at them too. So a phase's peak is known where it is above all before
it, which it is of loading, of the first step and of whichever phase is the fullest; of others nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import Any

FIRST_STEPS = 2
"""Left out of the usual step: the first compiles and allocates, the second may allocate the optimizer's state."""
MOST_TIMES = 2048
"""Step times that are kept, evenly thinned: their quantiles cost the journal's thread 0.2 ms a second."""
MOST_LOSSES = 200
LARGEST_LOSS = 1e12
"""As records bound it; what is larger, or no number, is a training that diverged."""
PENDING = 256
"""Steps whose events the card has not reached. No program queues so many."""


class Clock:
    """Intervals between marks, as the card passes them where there is one, else as the host does."""

    def __init__(self) -> None:
        self._last: Any = None
        self._pending: deque[tuple[Any, Any]] = deque(maxlen=PENDING)
        self._spare: list[Any] = []

    def resume(self) -> None:
        """From here on time counts for the next step."""
        self._last = self._mark()

    def step(self) -> list[float]:
        """The end of a step: seconds of all steps that are known to be over by now."""
        now = self._mark()
        if self._last is not None:
            self._pending.append((self._last, now))
        self._last = now
        return self.finished()

    def finished(self) -> list[float]:
        found = []
        while self._pending:
            began, ended = self._pending[0]
            if isinstance(began, float) or isinstance(ended, float):
                both = isinstance(began, float) and isinstance(ended, float)
                found += [ended - began] if both else []
            elif ended.query():
                found.append(began.elapsed_time(ended) / 1e3)
            else:
                break
            self._pending.popleft()
        return found

    def _mark(self) -> Any:
        torch = loaded_torch()
        if torch is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def loaded_torch() -> Any:
    """torch, where the program has started CUDA with it: nothing is started for it."""
    torch = sys.modules.get("torch")
    try:
        return torch if torch is not None and torch.cuda.is_initialized() else None
    except AttributeError:  # torch is being imported
        return None


class Thinned:
    """As many values as `most`, evenly spread over all that came."""

    def __init__(self, most: int) -> None:
        self.values: list[Any] = []
        self._most, self._every, self._count = most, 1, 0

    def append(self, value: Any) -> None:
        if self._count % self._every == 0:
            self.values.append(value)
            if len(self.values) >= self._most:
                self.values = self.values[::2]
                self._every *= 2
        self._count += 1


class Measures:
    """Everything of one process, as it stands now: `so_far`."""

    def __init__(self, began: float) -> None:
        self.phase, self.phases_s = "load", dict[str, float]()
        self.step = self.of = 0
        self.steps = 0
        self.first_step_s: float | None = None
        self.waited_s = 0.0
        self.tokens: list[int] | None = None
        self.losses = Thinned(MOST_LOSSES)
        self.diverged_at: int | None = None
        self.times = Thinned(MOST_TIMES)
        self.recent: deque[float] = deque(maxlen=20)
        self.memory: dict[str, Any] = {}
        self.by_phase_bytes: dict[str, int] = {}
        self.clock = Clock()
        self._timed = 0
        self._began, self._since = began, began
        self._waited_before = 0.0
        self._training_since: float | None = None

    def enter(self, phase: str, now: float | None = None) -> None:
        """From now on time and memory are of this phase."""
        if phase == self.phase:
            return
        now = time.time() if now is None else now
        self.read_memory()
        self.phases_s[self.phase] = self.phases_s.get(self.phase, 0.0) + max(0.0, now - self._since)
        self.phase, self._since = phase, now
        if phase in ("training", "first_step"):
            self.clock.resume()

    def end_step(self, step: int, of: int) -> None:
        self.step, self.of = step, of
        self.steps += 1
        self._take(self.clock.step())
        if self.phase == "first_step":
            self.enter("training")

    def _take(self, seconds: list[float]) -> None:
        for each in seconds:
            self._timed += 1
            if self._timed == 1:
                self.first_step_s = each
            if self._timed > FIRST_STEPS:
                self.times.append(each)
                self.recent.append(each)

    def count(self, real: int, padding: int) -> None:
        if self.tokens is None:
            self.tokens = [0, 0]
        self.tokens[0] += real
        self.tokens[1] += padding

    def lose(self, step: int, loss: float) -> None:
        """A loss that the training tells. Of the first that is no number its step is kept."""
        if abs(loss) <= LARGEST_LOSS:  # which NaN is not
            self.losses.append([step, loss])
        elif self.diverged_at is None:
            self.diverged_at = step

    def read_memory(self) -> None:
        torch = loaded_torch()
        if torch is None:
            return
        with contextlib.suppress(Exception):  # what a release of torch does not know is not measured
            found = torch.cuda.memory_stats()
            allocated, reserved = found["allocated_bytes.all.peak"], found["reserved_bytes.all.peak"]
            if allocated > self.memory.get("allocated_bytes", 0):
                self.by_phase_bytes[self.phase] = allocated
            if reserved > self.memory.get("reserved_bytes", 0):
                # Where the cache grows a request has just failed in it, so what is in use is near its peak too.
                self.memory["fragmentation_bytes"] = max(0, reserved - allocated)
            free, total = torch.cuda.mem_get_info()
            self.memory |= {
                "allocated_bytes": allocated,
                "reserved_bytes": reserved,
                "retries": found["num_alloc_retries"],
                "used_bytes": total - free,
                "capacity_bytes": total,
            }

    def so_far(self) -> dict[str, Any]:
        """Called by the journal's thread too."""
        self.read_memory()
        now = time.time()
        phases = dict(self.phases_s)
        phases[self.phase] = phases.get(self.phase, 0.0) + max(0.0, now - self._since)
        phases["training"] = max(0.0, phases.get("training", 0.0) + phases.pop("first_step", 0.0) - self.waited_s)
        phases["data"] = self.waited_s
        ordered = sorted(self.times.values)
        return {
            "phase": self.phase,
            "step": self.step,
            "of": self.of,
            "memory": {**self.memory, "by_phase_bytes": dict(self.by_phase_bytes)},
            "time": {
                "steps": self.steps,
                "step_s": quantile(ordered, 0.5),
                "step_quantiles_s": [quantile(ordered, each) for each in (0.1, 0.5, 0.9)] if ordered else None,
                "first_step_s": self.first_step_s,
                "total_s": now - self._began,
                "phases_s": {name: value for name, value in phases.items() if value > 0},
            },
            "recent_s": quantile(sorted(self.recent), 0.5),
            "diverged_at": self.diverged_at,
            "tokens": None if self.tokens is None else {"trained": self.tokens[0], "padding": self.tokens[1]},
        }


def quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def process_began(process: str = "self") -> float:
    """When it was started, by the clock of the wall; now, where nobody says."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - max(0.0, age)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()
