"""The cards and the processes of a run, looked at from outside about twice a second."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from tunecast.learn.inside.nvml import THROTTLES, Nvml, visible

EVERY_S = 0.5
"""NVML's utilisation is an average over a sixth of a second to a second (nvml.h, nvmlUtilization_t)."""


class Sampler:
    """Sums of what was seen, and peaks by phase. Cards are those that the run may use."""

    def __init__(self, nvml: Nvml | None, root: int) -> None:
        self.nvml, self.root = nvml, root
        self.cards = [] if nvml is None else visible(len(nvml.cards))
        self.samples, self.busy, self.throttled = 0, 0.0, 0
        self.reasons: dict[str, int] = {}
        self.power_w, self.power_samples, self.energy_j = 0.0, 0, 0.0
        self.peak_bytes: dict[int, int] = {}
        self.phases_bytes: dict[str, int] = {}
        self.hottest_c: int | None = None
        self._began: dict[int, int] = {}
        self._energy: dict[int, float] = {}
        self._used: set[int] = set()
        self._before: float | None = None
        for index in self.cards if nvml is not None else ():
            first = nvml.sample(index) if nvml is not None else None
            if first is not None:
                self._began[index] = first.used_bytes or 0
                if first.energy_j is not None:
                    self._energy[index] = first.energy_j

    def sample(self, phase: str = "start") -> None:
        """Cards nobody of the run is on do not count, once some process of it is known to be on one."""
        if self.nvml is None:
            return
        now, before = time.monotonic(), self._before
        self._before = now
        family = processes_of(self.root)
        seen = {index: self.nvml.sample(index) for index in self.cards}
        for index, found in seen.items():
            if family & found.by_process.keys() or (found.used_bytes or 0) > self._began.get(index, 0):
                self._used.add(index)
        for index, found in seen.items():
            if self._used and index not in self._used:
                continue
            own = sum(used for pid, used in found.by_process.items() if pid in family)
            more = max(0, (found.used_bytes or 0) - self._began.get(index, 0))
            used = own or more
            self.peak_bytes[index] = max(self.peak_bytes.get(index, 0), used)
            self.phases_bytes[phase] = max(self.phases_bytes.get(phase, 0), used)
            if found.temperature_c is not None:
                self.hottest_c = max(self.hottest_c or 0, found.temperature_c)
            if found.power_w is not None and found.energy_j is None and before is not None:
                self.energy_j += found.power_w * (now - before)
            if phase != "training":
                continue
            self.samples += 1
            self.busy += found.busy_fraction or 0.0
            if found.power_w is not None:
                self.power_w += found.power_w
                self.power_samples += 1
            reasons = {told for bit, told in THROTTLES.items() if found.throttled & bit}
            self.throttled += bool(reasons)
            for told in reasons:
                self.reasons[told] = self.reasons.get(told, 0) + 1

    def summary(self) -> dict[str, Any]:
        """What a line of the journal says of all samples so far."""
        if self.nvml is None:
            return {}
        counters = 0.0
        for index, first in self._energy.items():
            last = self.nvml.sample(index).energy_j if not self._used or index in self._used else None
            counters += max(0.0, (last or first) - first)
        energy = counters or self.energy_j
        card = self.cards[0] if self.cards else None
        limit = None if card is None else self.nvml.power_limit_w(card)
        count = self.samples
        return {
            "device_bytes": max(self.peak_bytes.values(), default=None),
            "by_phase_bytes": dict(self.phases_bytes),
            "busy_fraction": self.busy / count if count else None,
            "throttled_fraction": self.throttled / count if count else None,
            "throttled_by": max(self.reasons, key=lambda told: self.reasons[told], default=None),
            "power_w": self.power_w / self.power_samples if self.power_samples else None,
            "power_limit_w": limit,
            "energy_j": energy or None,
            "hottest_c": self.hottest_c,
            "driver": self.nvml.driver,
            "device": None if card is None else self.nvml.names[card],
            "memory_bytes": None if card is None else self.nvml.memory_bytes[card],
            "cards": len(self._used) or len(self.cards),
        }


def processes_of(root: int) -> set[int]:
    """A process and all it started, by /proc."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                    after = file.read(4096).rpartition(b")")[2].split()
                    parents.setdefault(int(after[1]), []).append(int(name))
    found, ahead = {root}, [root]
    while ahead:
        for child in parents.get(ahead.pop(), ()):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found
