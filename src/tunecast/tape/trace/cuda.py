"""`torch.cuda` and `torch.accelerator` as if the card were there.

Python code asks these modules what the card is, how full it is, and to make streams and events. The answers come
from the `Card` and the recorder; nothing touches a driver.
"""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from tunecast.tape.card import Card, CardBytes
from tunecast.tape.cards import STREAMS_PER_CARD, card_of_stream
from tunecast.tape.trace.devices import (
    Devices,
    Functions,
    accelerator_functions,
    device_functions,
    move_to_current_card,
    native_functions,
)
from tunecast.tape.trace.recorder import Recorder

HOPPER_DETAILS = {  # what a Hopper card answers; code that plans tiles by them only picks among Triton configurations
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "max_threads_per_multi_processor": 2048,
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "regs_per_multiprocessor": 65536,
    "gcnArchName": "",
    "L2_cache_size": 60 << 20,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "uuid": "00000000-0000-0000-0000-000000000000",
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "pci_domain_id": 0,
    "clock_rate": 1980000,
    "memory_clock_rate": 3201000,
}


class Stream:
    """A stream has a number; what is allocated while it is current comes from its own pool."""

    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, *args: Any, number: int | None = None, **kwargs: Any) -> None:
        if number is None:
            card = torch.cuda._utils._get_device_index(device, optional=True)
            number = card * STREAMS_PER_CARD + next(self._numbers)
        self.stream_id = self.cuda_stream = number
        self.device_index, self.device_type, self.priority = card_of_stream(number), 1, 0
        self.device = torch.device("cuda", self.device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else Event()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...


class Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, stream: Any = None) -> None: ...


class Streams:
    """The streams of the traced program, and which of them each thread works on."""

    def __init__(self, recorder: Recorder, devices: Devices) -> None:
        self._recorder, self._devices = recorder, devices
        self._by_number: dict[int, Stream] = {}

    def default(self, device: Any = None) -> Stream:
        return self._numbered(self._devices.number(device) * STREAMS_PER_CARD)

    def current(self, device: Any = None) -> Stream:
        return self._numbered(self._recorder.stream_on(self._devices.number(device)))

    def switch(self, stream: Any) -> None:
        if stream is not None:
            self._by_number[stream.stream_id] = stream
            self._recorder.stream_of_thread[threading.get_ident(), stream.device_index] = stream.stream_id

    def _numbered(self, number: int) -> Stream:
        return self._by_number.setdefault(number, Stream(number=number))

    def context(self) -> type:
        """The class of `with torch.cuda.stream(...)`."""
        streams = self

        class StreamContext:
            def __init__(self, stream: Any) -> None:
                self.stream = stream

            def __enter__(self) -> StreamContext:
                """On the stream's own card, which becomes the current one."""
                if self.stream is not None:
                    self.device = streams._devices.exchange(self.stream.device_index)
                    self.before = streams.current()
                    streams.switch(self.stream)
                return self

            def __exit__(self, *exception: Any) -> None:
                if self.stream is not None:
                    streams.switch(self.before)
                    streams._devices.switch(self.device)

        return StreamContext


def install(card: Card, recorder: Recorder, *, devices: int = 1, local_rank: int = 0) -> None:
    current = Devices(local_rank)
    streams = Streams(recorder, current)
    memory = memory_functions(card, recorder, current)
    shared: Functions = {
        **memory,
        "is_available": constant(True),
        "device_count": constant(devices),
        "synchronize": constant(None),
        # functions, no methods: Dynamo keeps a table of them
        "current_stream": lambda device=None: streams.current(device),
        "set_stream": lambda stream: streams.switch(stream),
    }
    of_cuda = (
        shared
        | constants(CONSTANTS)
        | card_functions(card, recorder)
        | device_functions(current)
        | stream_functions(streams)
    )
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        _replace(module, of_cuda, add=module is torch.cuda)
    of_accelerator = shared | accelerator_functions(current) | {"get_memory_info": memory["mem_get_info"]}
    _replace(torch.accelerator, of_accelerator)
    if hasattr(torch.accelerator, "memory"):
        _replace(torch.accelerator.memory, of_accelerator)
    _replace(
        torch.cuda.nvtx, constants(dict.fromkeys(("mark", "range_push", "range_pop", "range_start", "range_end"), 0))
    )
    if devices > 1:
        move_to_current_card(current)
    torch.version.cuda = torch.version.cuda or "13.0"
    for name, function in native_functions(current, devices).items():
        setattr(torch._C, name, function)


WHEN = ("current", "peak")
CONSTANTS: Mapping[str, Any] = {
    "init": None,
    "is_initialized": True,
    "_lazy_init": None,
    "_is_in_bad_fork": False,
    "ipc_collect": None,
    "manual_seed": None,
    "manual_seed_all": None,
    "seed": None,
    "seed_all": None,
    "initial_seed": 0,
    "set_rng_state": None,
    "set_rng_state_all": None,
    "memory_summary": "",
    "memory_snapshot": [],
    "utilization": 0,
    "set_per_process_memory_fraction": None,
    "get_per_process_memory_fraction": 1.0,
    "can_device_access_peer": True,
    "temperature": 40,
    "power_draw": 0,
    "clock_rate": 1980,
}
"""Functions of `torch.cuda` that answer the same on every card."""


def constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def constants(values: Mapping[str, Any]) -> Functions:
    return {name: constant(value) for name, value in values.items()}


def memory_functions(card: Card, recorder: Recorder, devices: Devices) -> Functions:
    """How full a card is, as far as the trace has come."""

    def now(device: Any = None) -> CardBytes:
        return recorder.memory.now(devices.number(device))

    def reset_peak(device: Any = None) -> None:
        recorder.memory.reset_peaks(devices.number(device))

    def memory_stats(device: Any = None) -> dict[str, int]:
        """Active is what is allocated: blocks that wait for another stream are not modelled. Requested is of what was
        traced."""
        held, number = now(device), devices.number(device)
        allocated = held.allocated_bytes, held.peak_allocated_bytes
        kinds = {
            "allocated_bytes": allocated,
            "active_bytes": allocated,
            "reserved_bytes": (held.reserved_bytes, held.peak_reserved_bytes),
            "requested_bytes": (recorder.in_use_bytes[number], recorder.peak_bytes[number]),
        }
        stats = {f"{k}.all.{when}": n for k, both in kinds.items() for when, n in zip(WHEN, both, strict=True)}
        return stats | {"num_alloc_retries": held.retries, "num_ooms": 0}

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        recorder.asked.add("memory")
        return max(0, card.total_bytes - recorder.memory.used_bytes(devices.number(device))), card.total_bytes

    def allocated(device: Any = None) -> int:
        return now(device).allocated_bytes

    def reserved(device: Any = None) -> int:
        return now(device).reserved_bytes

    def peak_allocated(device: Any = None) -> int:
        return now(device).peak_allocated_bytes

    def peak_reserved(device: Any = None) -> int:
        return now(device).peak_reserved_bytes

    return {
        "empty_cache": lambda *a, **k: recorder.empty_cache(),
        "memory_stats": memory_stats,
        "mem_get_info": mem_get_info,
        "memory_allocated": allocated,
        "memory_reserved": reserved,
        "memory_cached": reserved,
        "max_memory_allocated": peak_allocated,
        "max_memory_reserved": peak_reserved,
        "max_memory_cached": peak_reserved,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": constant(None),
    }


class Properties(types.SimpleNamespace):
    """What `get_device_properties` answers; what is read of it that no kernel depends on is noted in `asked`."""

    asked: ClassVar[set[str]] = set()
    NOTED: ClassVar[Mapping[str, str]] = {"total_memory": "memory", "name": "name"}

    def __getattribute__(self, name: str) -> Any:
        if name in Properties.NOTED:
            Properties.asked.add(Properties.NOTED[name])
        return super().__getattribute__(name)


def card_functions(card: Card, recorder: Recorder) -> Functions:
    """What the card is."""
    major, minor = card.capability
    Properties.asked = recorder.asked

    def get_device_name(*args: Any, **kwargs: Any) -> str:
        recorder.asked.add("name")
        return card.name

    properties = Properties(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.total_bytes,
        multi_processor_count=card.sm_count,
        **HOPPER_DETAILS,
    )
    return {"get_device_name": get_device_name} | constants(
        {
            "get_device_properties": properties,
            "get_device_capability": card.capability,
            "get_arch_list": [f"sm_{major}{minor}"],
            "is_bf16_supported": card.capability >= (8, 0),
            "is_tf32_supported": card.capability >= (8, 0),
        }
    )


def stream_functions(streams: Streams) -> Functions:
    context = streams.context()
    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "stream": context,
        "StreamContext": context,
        "default_stream": lambda device=None: streams.default(device),
    }


def _replace(module: Any, names: Mapping[str, Any], add: bool = False) -> None:
    for name, value in names.items():
        if add or hasattr(module, name):
            setattr(module, name, value)
