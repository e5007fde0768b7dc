"""`torch.cuda` and `torch.accelerator` as if the card were there.

Python code asks these modules what the card is, how full it is, and to make streams and events. The answers come
from the `Card` and the recorder; nothing touches a driver.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from tunecast.tape.card import Card
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

    def __init__(self, *args: Any, number: int | None = None, **kwargs: Any) -> None:
        self.stream_id = self.cuda_stream = next(self._numbers) if number is None else number
        self.device = torch.device("cuda", 0)
        self.device_index, self.device_type, self.priority = 0, 1, 0

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


class DeviceContext:
    """`with torch.cuda.device(1):`; code also reads the number it stands for (`idx`)."""

    def __init__(self, device: Any) -> None:
        numbered = device if isinstance(device, int) else getattr(torch.device(device or "cuda"), "index", None)
        self.idx, self.prev_idx = numbered or 0, -1

    def __enter__(self) -> None: ...
    def __exit__(self, *exception: Any) -> None: ...


class Streams:
    """The streams of the traced program, and which of them each thread works on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.default = Stream(number=0)
        self._by_number: dict[int, Stream] = {0: self.default}

    def current(self) -> Stream:
        return self._by_number[self._recorder.stream_of_thread.get(threading.get_ident(), 0)]

    def switch(self, stream: Any) -> None:
        if stream is not None:
            self._by_number[stream.stream_id] = stream
            self._recorder.stream_of_thread[threading.get_ident()] = stream.stream_id

    def context(self) -> type:
        """The class of `with torch.cuda.stream(...)`."""
        streams = self

        class StreamContext:
            def __init__(self, stream: Any) -> None:
                self.stream = stream

            def __enter__(self) -> StreamContext:
                self.before = streams.current()
                streams.switch(self.stream)
                return self

            def __exit__(self, *exception: Any) -> None:
                streams.switch(self.before)

        return StreamContext


def install(card: Card, recorder: Recorder, *, devices: int = 1, local_rank: int = 0) -> None:
    streams = Streams(recorder)
    memory = memory_functions(card, recorder)
    shared: Functions = {
        **memory,
        "is_available": constant(True),
        "device_count": constant(devices),
        "synchronize": constant(None),
        "current_stream": lambda *a, **k: streams.current(),  # functions, no methods: Dynamo keeps a table of them
        "set_stream": lambda stream: streams.switch(stream),
    }
    of_cuda = (
        shared
        | constants(CONSTANTS)
        | card_functions(card, recorder)
        | device_functions(local_rank)
        | stream_functions(streams)
    )
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        _replace(module, of_cuda, add=module is torch.cuda)
    of_accelerator = shared | accelerator_functions(local_rank) | {"get_memory_info": memory["mem_get_info"]}
    _replace(torch.accelerator, of_accelerator)
    if hasattr(torch.accelerator, "memory"):
        _replace(torch.accelerator.memory, of_accelerator)
    _replace(
        torch.cuda.nvtx, constants(dict.fromkeys(("mark", "range_push", "range_pop", "range_start", "range_end"), 0))
    )
    torch.version.cuda = torch.version.cuda or "13.0"
    for name, function in native_functions(devices, local_rank).items():
        setattr(torch._C, name, function)


Functions = dict[str, Callable[..., Any]]
CONSTANTS: Mapping[str, Any] = {
    "init": None,
    "is_initialized": True,
    "_lazy_init": None,
    "_is_in_bad_fork": False,
    "is_current_stream_capturing": False,
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


@contextlib.contextmanager
def nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def memory_functions(card: Card, recorder: Recorder) -> Functions:
    """How full the card is, as far as the trace has come."""

    def reset_peak(*args: Any, **kwargs: Any) -> None:
        recorder.peak_bytes = recorder.allocated_bytes

    def memory_stats(*args: Any, **kwargs: Any) -> dict[str, int]:
        now, peak = recorder.allocated_bytes, recorder.peak_bytes
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        stats = {f"{kind}.all.{when}": n for kind in kinds for when, n in (("current", now), ("peak", peak))}
        return stats | {"num_alloc_retries": 0, "num_ooms": 0}

    def mem_get_info(*args: Any, **kwargs: Any) -> tuple[int, int]:
        recorder.asked.add("memory")
        return card.total_bytes - recorder.allocated_bytes, card.total_bytes

    return {
        "empty_cache": lambda *a, **k: recorder.empty_cache(),
        "memory_stats": memory_stats,
        "mem_get_info": mem_get_info,
        "memory_allocated": lambda *a, **k: recorder.allocated_bytes,
        "memory_reserved": lambda *a, **k: recorder.allocated_bytes,
        "memory_cached": lambda *a, **k: recorder.allocated_bytes,
        "max_memory_allocated": lambda *a, **k: recorder.peak_bytes,
        "max_memory_reserved": lambda *a, **k: recorder.peak_bytes,
        "max_memory_cached": lambda *a, **k: recorder.peak_bytes,
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


def device_functions(local_rank: int) -> Functions:
    """Which card is meant; there is one, and every process believes it is its own."""
    random_state = torch.zeros(16, dtype=torch.uint8)
    return {
        "_lazy_call": lambda f, **k: f(),
        "current_device": constant(local_rank),
        "set_device": constant(None),
        "device": DeviceContext,
        "device_of": nothing,
        "_exchange_device": constant(local_rank),
        "_maybe_exchange_device": constant(local_rank),
        "get_rng_state": constant(random_state),
        "get_rng_state_all": constant([random_state]),
    }


def stream_functions(streams: Streams) -> Functions:
    context = streams.context()
    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "stream": context,
        "StreamContext": context,
        "default_stream": constant(streams.default),
    }


def accelerator_functions(local_rank: int) -> Functions:
    """What `torch.accelerator` calls by other names than `torch.cuda`."""
    return {
        "current_device_index": constant(local_rank),
        "current_device_idx": constant(local_rank),
        "set_device_index": constant(None),
        "set_device_idx": constant(None),
        "device_index": nothing,
        "current_accelerator": constant(torch.device("cuda")),
    }


def native_functions(devices: int, local_rank: int) -> Functions:
    """Those of `torch._C` that Python code calls directly."""
    return constants(
        {
            "_cuda_getDevice": local_rank,
            "_cuda_setDevice": None,
            "_cuda_exchangeDevice": local_rank,
            "_cuda_maybeExchangeDevice": local_rank,
            "_cuda_getDeviceCount": devices,
            "_cuda_isInBadFork": False,
            "_cuda_emptyCache": None,
            "_cuda_synchronize": None,
            "_cuda_getCurrentRawStream": 0,
            "_cuda_init": None,
            "_cuda_isCurrentStreamCapturing": False,
            "_cuda_getArchFlags": "",
            "_get_accelerator": torch.device("cuda"),
        }
    )


def _replace(module: Any, names: Mapping[str, Any], add: bool = False) -> None:
    for name, value in names.items():
        if add or hasattr(module, name):
            setattr(module, name, value)
