"""Which card each thread works on, as `torch.cuda` and `torch.accelerator` set it and tell it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Functions = dict[str, Callable[..., Any]]


class Devices:
    def __init__(self, first: int) -> None:
        self._first = first
        self._of_thread: dict[int, int] = {}

    def current(self) -> int:
        return self._of_thread.get(threading.get_ident(), self._first)

    def switch(self, device: Any) -> None:
        number = self.number(device)
        if number >= 0:
            self._of_thread[threading.get_ident()] = number

    def exchange(self, device: Any) -> int:
        before = self.current()
        self.switch(device)
        return before

    def number(self, device: Any = None) -> int:
        """Of `1`, `"cuda:1"`, a `torch.device`; without a number the current one."""
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self.current() if index is None else int(index)

    def context(self) -> type:
        """The class of `with torch.cuda.device(1):`; code also reads the number it stands for (`idx`)."""
        devices = self

        class DeviceContext:
            def __init__(self, device: Any = None) -> None:
                self.idx, self.prev_idx = devices.number(device), -1

            def __enter__(self) -> None:
                self.prev_idx = devices.exchange(self.idx)

            def __exit__(self, *exception: Any) -> None:
                devices.switch(self.prev_idx)

        return DeviceContext

    def context_of_tensor(self) -> type:
        """`with torch.cuda.device_of(tensor):`; a tensor on the host changes nothing."""
        context = self.context()

        class DeviceOf(context):  # type: ignore[misc, valid-type]
            def __init__(self, tensor: Any) -> None:
                super().__init__(tensor.get_device() if tensor.is_cuda else -1)

        return DeviceOf


def device_functions(devices: Devices) -> Functions:
    """Plain functions, no methods: Dynamo keeps a table of them."""
    random_state = torch.zeros(16, dtype=torch.uint8)
    return {
        "_lazy_call": lambda f, **k: f(),
        "current_device": lambda: devices.current(),
        "set_device": lambda device: devices.switch(device),
        "device": devices.context(),
        "device_of": devices.context_of_tensor(),
        "_exchange_device": lambda device: devices.exchange(device),
        "_maybe_exchange_device": lambda device: devices.exchange(device),
        "get_rng_state": lambda *a, **k: random_state,
        "get_rng_state_all": lambda *a, **k: [random_state],
    }


def accelerator_functions(devices: Devices) -> Functions:
    """What `torch.accelerator` calls by other names than `torch.cuda`."""
    return {
        "current_device_index": lambda: devices.current(),
        "current_device_idx": lambda: devices.current(),
        "set_device_index": lambda device: devices.switch(device),
        "set_device_idx": lambda device: devices.switch(device),
        "device_index": devices.context(),
        "current_accelerator": lambda *a, **k: torch.device("cuda"),
    }


def native_functions(devices: Devices, count: int) -> Functions:
    """Those of `torch._C` that Python code calls directly."""
    answers: dict[str, Any] = {
        "_cuda_getDeviceCount": count,
        "_cuda_isInBadFork": False,
        "_cuda_emptyCache": None,
        "_host_emptyCache": None,
        "_cuda_synchronize": None,
        "_cuda_getCurrentRawStream": 0,
        "_cuda_init": None,
        "_cuda_isCurrentStreamCapturing": False,
        "_cuda_getArchFlags": "",
        "_get_accelerator": torch.device("cuda"),
    }
    return {
        **{name: lambda *a, answer=answer, **k: answer for name, answer in answers.items()},
        "_cuda_getDevice": lambda: devices.current(),
        "_cuda_setDevice": lambda device: devices.switch(device),
        "_cuda_exchangeDevice": lambda device: devices.exchange(device),
        "_cuda_maybeExchangeDevice": lambda device: devices.exchange(device),
    }


def move_to_current_card(devices: Devices) -> None:
    """`tensor.cuda()` and `tensor.to("cuda")` ask C++ for the current card, which answers 0."""
    cuda, to = torch.Tensor.cuda, torch.Tensor.to

    def to_cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cuda(self, devices.number(device), *args, **kwargs)

    def to_any(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return to(self, *map(numbered, args), **{name: numbered(value) for name, value in kwargs.items()})

    def numbered(value: Any) -> Any:
        means_card = isinstance(value, (str, torch.device)) and value in ("cuda", torch.device("cuda"))
        return torch.device("cuda", devices.current()) if means_card else value

    torch.Tensor.cuda, torch.Tensor.to = to_cuda, to_any  # type: ignore[method-assign, assignment]
