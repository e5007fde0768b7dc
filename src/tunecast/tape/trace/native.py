"""Let C++ autograd accept `cuda` tensors on a machine without a GPU.

Three facts of the C++ core stand in the way, each cured once, in process memory only:

1. A CPU-only build registers no CUDA device guard, and autograd aborts the process on the first `cuda` tensor.
   A stub guard is registered whose every method returns the same number.
2. torch itself then replaces a CUDA guard that counts 0 devices by a no-op one
   (torch/csrc/Module.cpp, `_ensureCUDADeviceGuardSet`, written for fake tensors). A torch that does not know this yet
   (2.8) gets the stub in place of its own guard.
3. The accelerator hooks answer "not built" (CPU-only build) or raise "invalid device" (CUDA build without a card)
   when the autograd engine asks for the device's context (torch/csrc/autograd/engine.cpp, `set_device`).
   Two entries of a private copy of their method table are replaced
   (aten/src/ATen/detail/AcceleratorHooksInterface.h: two destructors, isBuilt, isAvailable, hasPrimaryContext).

`check.py` proves at start-up that the result works before anything relies on it.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

CUDA_DEVICE_TYPE = 1  # c10/core/DeviceType.h
REGISTER_GUARD = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
GUARD_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
CUDA_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
IS_BUILT_SLOT, HAS_PRIMARY_CONTEXT_SLOT = 2, 4
HOOK_SLOTS = 48
DEVICE_COUNT_SLOT = 14  # torch 2.8, c10/core/impl/DeviceGuardImplInterface.h
MOST_CARDS = 16
"""The autograd engine has a thread for each."""

_kept_alive: list[Any] = []  # C++ holds raw pointers into these for the life of the process


def accept_cuda_without_gpu() -> None:
    if _kept_alive:
        return
    replaces = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    _register_stub_guard(over_a_real_one=replaces is None)
    if replaces is not None:
        replaces()
    _answer_accelerator_hooks()


def _library(name: str) -> ctypes.CDLL:
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"{prefix}{name}{suffix}"))


def _address(callback: Any) -> int:
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return address


def _register_stub_guard(over_a_real_one: bool) -> None:
    c10 = _library("c10")
    registry = (ctypes.c_void_p * (CUDA_DEVICE_TYPE + 1)).in_dll(c10, GUARD_REGISTRY)
    if registry[CUDA_DEVICE_TYPE] and not over_a_real_one:
        return
    # Over a real guard the answers count: 1 is the type CUDA, the device cuda:0, yes.
    answer = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: int(over_a_real_one))
    cards = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: MOST_CARDS)
    methods = (ctypes.c_void_p * 64)(*[_address(answer)] * 64)
    if over_a_real_one:
        methods[DEVICE_COUNT_SLOT] = _address(cards)
    guard = (ctypes.c_void_p * 8)(ctypes.addressof(methods))
    _kept_alive.extend((answer, cards, methods, guard))
    register = getattr(c10, REGISTER_GUARD, None)
    if (
        register is None
    ):  # torch 2.8 has no such function yet; it is this assignment (c10/core/impl/DeviceGuardImplInterface.cpp)
        registry[CUDA_DEVICE_TYPE] = ctypes.addressof(guard)
        return
    register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
    register(CUDA_DEVICE_TYPE, ctypes.addressof(guard))


def _answer_accelerator_hooks() -> None:
    hooks_of = getattr(_library("torch_cpu"), CUDA_HOOKS)
    hooks_of.argtypes, hooks_of.restype = [], ctypes.c_void_p
    method_table = ctypes.c_void_p.from_address(hooks_of())
    assert method_table.value is not None
    # An Itanium C++ method table carries two words (offset, type) before its first method.
    word = ctypes.sizeof(ctypes.c_void_p)
    layout = ctypes.c_void_p * (HOOK_SLOTS + 2)
    copy = layout(*layout.from_address(method_table.value - 2 * word))
    built = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda hooks: 1)
    no_context = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(lambda hooks, device: 0)
    copy[2 + IS_BUILT_SLOT] = _address(built)
    copy[2 + HAS_PRIMARY_CONTEXT_SLOT] = _address(no_context)
    _kept_alive.extend((built, no_context, copy))
    method_table.value = ctypes.addressof(copy) + 2 * word
