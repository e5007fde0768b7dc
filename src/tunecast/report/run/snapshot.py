"""The run as `torch.cuda.memory._dump_snapshot` would have saved it, for PyTorch's viewer (pytorch.org/memory_viz).

The addresses are the allocator model's, so the viewer shows where blocks lie in their segments, what is cached and what
is fragmented. `time_us` counts the tape's events: a tape has no clock.

Source   torch 2.11's torch/cuda/memory.py (`_snapshot`) and torch/csrc/cuda/Module.cpp (THCPModule_memorySnapshot) for
         the keys; CUDACachingAllocator.cpp (record_trace) for the sizes: allocations and frees as requested, blocks and
         segments as rounded; torch/utils/viz/MemoryViz.js for what the viewer reads: pickle protocol 2 to 4 without
         objects, and, where events have categories, one called `unknown`, without which it stops.
"""

from __future__ import annotations

import pickle
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, rounded_bytes
from tunecast.records import NamedTuple
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Tape
from tunecast.tape.program import SMALL_BYTES
from tunecast.units import MIB

PROTOCOL = 4
"""The viewer's own unpickler refuses 5."""

_SOURCE = re.compile(r"(.+):([0-9]{1,9})( .*)?", re.DOTALL)
"""`train.py:31`, and what the tracer may add: `train.py:31 (backward)`."""

Frames = list[dict[str, Any]]
Span = tuple[int, int]
"""An address and the one after the last."""


def snapshot(tape: Tape, settings: AllocatorSettings, capacity_bytes: int | None = None) -> dict[str, Any]:
    """The state after the last event, and the history that led there; a run out of memory ends with an `oom` entry."""
    run = _Run(settings, capacity_bytes)
    for position, event in enumerate(tape.events):
        run.time_us = position
        try:
            run.follow(event)
        except OutOfMemory as error:
            run.stop(event, error)
            break
    run.end_phase()
    return {
        "segments": run.segments(),
        "device_traces": [run.trace],
        "allocator_settings": _allocator_settings(settings),
        "external_annotations": run.annotations,
    }


def pickled_snapshot(tape: Tape, settings: AllocatorSettings, capacity_bytes: int | None = None) -> bytes:
    return pickle.dumps(snapshot(tape, settings, capacity_bytes), protocol=PROTOCOL)


class _Block(NamedTuple):
    address: int
    size: int
    requested_size: int
    stream: int
    category: str
    frames: Frames


class _Owner(NamedTuple):
    """Whose allocation made the allocator ask the driver for memory."""

    stream: int
    is_small: bool
    frames: Frames


class _Run:
    """A replay that writes down its history."""

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None) -> None:
        self.time_us = 0
        self.trace: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self._settings = settings
        self._capacity_bytes = capacity_bytes
        self._allocator = CachingAllocator(settings, capacity_bytes)
        self._live: dict[int, _Block] = {}
        self._spans: list[Span] = []
        self._held = (0, 0)
        self._owners: dict[int, _Owner] = {}
        self._op: Op | None = None
        self._phase = ""
        self._frames: dict[tuple[Op | None, str, str], Frames] = {}

    def follow(self, event: Event) -> None:
        if isinstance(event, Op):
            self._op = event
        elif isinstance(event, Alloc):
            self._alloc(event)
        elif isinstance(event, Free):
            self._free(event)
        elif isinstance(event, Begin):
            self.end_phase()
            self._phase = "load" if event.phase is Phase.LOAD else f"{event.phase.value} of step {event.step}"
            self._op = None
            self._annotate("START")
        else:
            assert isinstance(event, EmptyCache)
            self._allocator.empty_cache()
            self._note_segments(_Owner(0, False, []))

    def end_phase(self) -> None:
        if self._phase:
            self._annotate("END")

    def stop(self, event: Event, error: OutOfMemory) -> None:
        """The allocator has given back what it could before it gave up."""
        assert isinstance(event, Alloc)
        frames = self._frames_of(event.module)
        self._note_segments(_Owner(event.stream, False, frames))
        self.trace.append(
            {
                "action": "oom",
                "device_free": max(0, (self._capacity_bytes or 0) - error.reserved_bytes),
                "size": error.segment_bytes,
                "stream": event.stream,
                "time_us": self.time_us,
                "frames": frames,
            }
        )

    def segments(self) -> list[dict[str, Any]]:
        """What the driver gave, each stretch as its blocks in use and the gaps between them."""
        blocks = sorted(self._live.values())
        segments = []
        at = 0
        for start, end in sorted(self._spans):
            while at < len(blocks) and blocks[at].address < start:
                at += 1
            first = at
            while at < len(blocks) and blocks[at].address < end:
                at += 1
            used = blocks[first:at]
            owner = self._owner(start)
            segments.append(
                {
                    "device": 0,
                    "address": start,
                    "total_size": end - start,
                    "allocated_size": sum(block.size for block in used),
                    "active_size": sum(block.size for block in used),
                    "requested_size": sum(block.requested_size for block in used),
                    "stream": owner.stream,
                    "segment_type": "small" if owner.is_small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": self._settings.expandable_segments,
                    "frames": owner.frames,
                    "blocks": list(_blocks(used, start, end)),
                }
            )
        return segments

    def _alloc(self, event: Alloc) -> None:
        frames = self._frames_of(event.module)
        self._allocator.malloc(event.block, event.nbytes, event.stream)
        address, size = self._allocator.place(event.block)
        if not size:
            return
        held = (self._allocator.reserved_bytes, self._allocator.retries)
        if held != self._held or not self._is_known(address, size):
            self._held = held
            is_small = rounded_bytes(event.nbytes, self._settings.roundup_power2_divisions) <= SMALL_BYTES
            self._note_segments(_Owner(event.stream, is_small, frames))
        block = _Block(address, size, event.nbytes, event.stream, event.role.value, frames)
        self._live[event.block] = block
        self._record("alloc", address, event.nbytes, event.stream, frames, block.category)

    def _free(self, event: Free) -> None:
        self._allocator.free(event.block)
        block = self._live.pop(event.block, None)
        if block is not None:
            for action in ("free_requested", "free_completed"):
                self._record(action, block.address, block.requested_size, block.stream, block.frames, block.category)

    def _is_known(self, address: int, size: int) -> bool:
        index = bisect_right(self._spans, (address, 1 << 62)) - 1
        return index >= 0 and address + size <= self._spans[index][1]

    def _note_segments(self, owner: _Owner) -> None:
        """Write down what the allocator gave back to the driver and what it got since the last look."""
        before, self._spans = self._spans, driver_spans(self._allocator)
        pages = self._settings.expandable_segments
        gave, got = ("segment_unmap", "segment_map") if pages else ("segment_free", "segment_alloc")
        for start, end in _without(before, self._spans):
            self._record(gave, start, end - start, self._owner(start).stream, owner.frames)
        for start, end in _without(self._spans, before):
            self._owners[start] = owner
            self._record(got, start, end - start, owner.stream, owner.frames)

    def _owner(self, address: int) -> _Owner:
        """Expandable memory grows upwards from where it begins, so the nearest beginning below is the same pool's."""
        starts = sorted(self._owners)
        return self._owners[starts[bisect_right(starts, address) - 1]]

    def _record(
        self, action: str, address: int, size: int, stream: int, frames: Frames, category: str = "unknown"
    ) -> None:
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": self.time_us,
                "frames": frames,
                "category": category,
            }
        )

    def _annotate(self, stage: str) -> None:
        self.annotations.append({"name": self._phase, "stage": stage, "device": 0, "time_us": self.time_us})

    def _frames_of(self, module: str) -> Frames:
        """Innermost first, as torch has them: the operation at the user's line, its module, the phase.

        Equal ones are one object, which the pickle then holds once.
        """
        key = (self._op, module, self._phase)
        if key not in self._frames:
            op = self._op or Op("")
            place = _SOURCE.fullmatch(op.source)
            filename, line = (place[1], int(place[2])) if place else ("line not known", 0)
            frames = [_frame(op.name or "allocated", filename, line)]
            if module or op.module:
                frames.append(_frame(module or op.module, "module", 0))
            self._frames[key] = [*frames, _frame(self._phase, "phase", 0)]
        return self._frames[key]


def _frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


def _blocks(used: list[_Block], start: int, end: int) -> Iterator[dict[str, Any]]:
    for block in used:
        if start < block.address:
            yield _inactive(start, block.address)
        yield {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested_size,
            "state": "active_allocated",
            "frames": block.frames,
        }
        start = block.address + block.size
    if start < end:
        yield _inactive(start, end)


def _inactive(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


def driver_spans(allocator: CachingAllocator) -> list[Span]:
    """The stretches of memory the allocator holds from the driver, lowest first: segments, or runs of mapped pages."""
    expandable = allocator._expandable
    if expandable is None:
        return sorted((address, address + size) for address, size in allocator._segments.items())
    ranges = [(start, start + length) for start, length in expandable._ranges.items()]
    holes = [(start, start + length) for start, length in expandable._holes.items()]
    return _without(sorted(ranges), sorted(holes))


def _without(spans: Iterable[Span], others: list[Span]) -> list[Span]:
    """The parts of `spans` that no span of `others` covers. Both are in order and disjoint."""
    parts = []
    at = 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        over = at
        while over < len(others) and others[over][0] < end:
            if start < others[over][0]:
                parts.append((start, others[over][0]))
            start = max(start, others[over][1])
            over += 1
        if start < end:
            parts.append((start, end))
    return parts


def _allocator_settings(settings: AllocatorSettings) -> dict[str, Any]:
    """Under torch's names; -1 is its way to say that there is no limit."""
    split_bytes = settings.max_split_size_bytes
    asked = ["expandable_segments:True"] if settings.expandable_segments else []
    if split_bytes is not None:
        asked.append(f"max_split_size_mb:{split_bytes // MIB}")
    if settings.garbage_collection_threshold:
        asked.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold}")
    divisions = settings.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": ",".join(asked),
        "max_split_size": -1 if split_bytes is None else split_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << power): steps for power, steps in enumerate(divisions)},
    }
