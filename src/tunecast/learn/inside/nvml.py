"""NVIDIA's management library (libnvidia-ml.so.1), by ctypes: what the cards say of themselves, from outside a program.

Structs and numbers  nvml.h of CUDA 12 (NVML API r550)
Where it is absent, `load` says why and gives None; all else works.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

LIBRARY, PATH = "libnvidia-ml.so.1", "TUNECAST_NVML"
"""`TUNECAST_NVML`: where the library is, on machines whose loader does not find it (WSL: /usr/lib/wsl/lib)."""
MOST_PROCESSES = 256
THROTTLES = {
    0x4: "its power limit",
    0x8: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "a power brake",
}
"""nvmlClocksEventReason…: SwPowerCap, HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. Left out:
idle (1), clocks set by hand (2), sync boost (0x10), display clocks (0x100)."""


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlRates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class NvmlProcess(ctypes.Structure):
    """nvmlProcessInfo_t (v2, and v3 as of driver 510)."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class CardSample(NamedTuple):
    """What one card says now; None: it does not say."""

    used_bytes: int | None
    by_process: Mapping[int, int]
    """Of processes that the driver names here; in a container it may name none."""
    busy_fraction: float | None
    power_w: float | None
    energy_j: float | None
    """Since the driver was loaded."""
    throttled: int
    """Bits of `THROTTLES`."""
    temperature_c: int | None


class Nvml:
    def __init__(self, library: Any) -> None:
        self._library = library
        self.driver = self._text("nvmlSystemGetDriverVersion")
        self.cards = [self._handle(index) for index in range(self._count())]
        self.names = [self._text("nvmlDeviceGetName", card) for card in self.cards]
        self.memory_bytes = [found.total if (found := self._memory(card)) else None for card in self.cards]

    def _call(self, name: str, *arguments: Any) -> bool:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return False
        return int(function(*arguments)) == 0

    def _count(self) -> int:
        count = ctypes.c_uint()
        return count.value if self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)) else 0

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _text(self, name: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(96)
        done = self._call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode("ascii", "replace") if done else None

    def _number(self, name: str, card: Any, kind: Any, *arguments: Any) -> int | None:
        value = kind()
        return int(value.value) if self._call(name, card, *arguments, ctypes.byref(value)) else None

    def _memory(self, card: Any) -> NvmlMemory | None:
        found = NvmlMemory()
        return found if self._call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(found)) else None

    def _by_process(self, card: Any) -> dict[int, int]:
        count, infos = ctypes.c_uint(MOST_PROCESSES), (NvmlProcess * MOST_PROCESSES)()
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            if self._call(name, card, ctypes.byref(count), infos):
                whole = 1 << 63  # NVML_VALUE_NOT_AVAILABLE is all ones
                return {each.pid: each.used for each in infos[: count.value] if each.used < whole}
        return {}

    def sample(self, index: int) -> CardSample:
        card, rates = self.cards[index], NvmlRates()
        memory = self._memory(card)
        busy = rates.gpu / 100 if self._call("nvmlDeviceGetUtilizationRates", card, ctypes.byref(rates)) else None
        power = self._number("nvmlDeviceGetPowerUsage", card, ctypes.c_uint)
        energy = self._number("nvmlDeviceGetTotalEnergyConsumption", card, ctypes.c_ulonglong)
        return CardSample(
            None if memory is None else int(memory.used),
            self._by_process(card),
            busy,
            None if power is None else power / 1e3,
            None if energy is None else energy / 1e3,
            self._number("nvmlDeviceGetCurrentClocksThrottleReasons", card, ctypes.c_ulonglong) or 0,
            self._number("nvmlDeviceGetTemperature", card, ctypes.c_uint, ctypes.c_uint(0)),
        )

    def power_limit_w(self, index: int) -> float | None:
        found = self._number("nvmlDeviceGetEnforcedPowerLimit", self.cards[index], ctypes.c_uint)
        return None if found is None else found / 1e3


def load(environ: Mapping[str, str] = os.environ) -> tuple[Nvml | None, str]:
    """The library, started; else None and why."""
    try:
        library = ctypes.CDLL(environ.get(PATH) or LIBRARY)
        status = int(library.nvmlInit_v2())
    except (OSError, AttributeError):
        return None, f"no {LIBRARY} on this machine: nothing is measured of the card from outside"
    if status:
        return None, f"{LIBRARY} does not start (error {status}): nothing is measured of the card from outside"
    found = Nvml(library)
    return (found, "") if found.cards else (None, "NVIDIA's driver knows no card here")


def visible(count: int, environ: Mapping[str, str] = os.environ) -> list[int]:
    """Cards that a program may use, by NVML's numbers. A list by UUID, or of parts of cards, counts as all of them."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(range(count))
    words = [word.strip() for word in given.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        return list(range(count))
    return [int(word) for word in words if int(word) < count]
