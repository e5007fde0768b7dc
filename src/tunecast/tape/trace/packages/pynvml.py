"""pynvml (nvidia-ml-py): NVIDIA's management library, answered by the card that is not there."""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tunecast.tape.trace.nvidia_smi import CUDA, DRIVER, uuid_of
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    after_import("pynvml", functools.partial(answer_for, recorder))


def answer_for(recorder: Recorder, module: ModuleType) -> None:
    card = recorder.card
    handles = [SimpleNamespace(index=number) for number in range(torch.cuda.device_count())]

    def used(handle: Any) -> int:
        return recorder.allocated_bytes if handle.index == 0 else 0

    def memory(handle: Any, version: Any = None) -> SimpleNamespace:
        total = card.total_bytes
        return SimpleNamespace(total=total, used=used(handle), free=total - used(handle), reserved=0, version=version)

    functions = {
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown", "_LoadNvmlLibrary"), lambda *a: None),
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: int(float(CUDA) * 1000),
        "nvmlDeviceGetCount": lambda: len(handles),
        "nvmlDeviceGetHandleByIndex": lambda index: handles[int(index)],
        "nvmlDeviceGetHandleByUUID": lambda uuid: handles[0],
        "nvmlDeviceGetHandleByPciBusId": lambda bus: handles[0],
        "nvmlDeviceGetIndex": lambda handle: handle.index,
        "nvmlDeviceGetName": lambda handle: card.name,
        "nvmlDeviceGetUUID": lambda handle: uuid_of(handle.index),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetTemperature": lambda handle, sensor=0: 40,
        "nvmlDeviceGetPowerUsage": lambda handle: 100_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 0,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: card.capability,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
    }  # fmt: skip
    for name, function in functions.items():
        if hasattr(module, name):
            setattr(module, name, function)
