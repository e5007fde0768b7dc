"""The card's memory as the trace goes: blocks born and freed, which storage holds which, and the events so far.

A weak reference on a storage tells when its last holder (a Python name, a saved tensor, a gradient buffer) lets go.
Roles and module names are often known only later; they are settled when the tape is made.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from tunecast.tape.build.event_log import Block
from tunecast.tape.op import (
    Alloc,
    Begin,
    EmptyCache,
    Event,
    Free,
    Op,
    Phase,
    Role,
    Tape,
    Unit,
    name_clip_phases,
    with_frees_in_order,
)
from tunecast.tape.trace.scopes import Scopes


class Ledger:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.guesses: Counter[str] = Counter()
        self.assumptions: Counter[str] = Counter()
        self.untraced: Counter[str] = Counter()
        self.allocated_bytes = self.peak_bytes = self.managed_bytes = 0
        self.stream_of_thread: dict[int, int] = {}
        self._events: list[Event | int] = []  # an int is the allocation of that block
        self._blocks: dict[int, Block] = {}
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._renamed: dict[int, int] = {}
        self._pending: tuple[int, int] | None = None
        self._waiting: list[int] = []
        self._workspaces: set[tuple[str, int, int]] = set()
        self._announced: Begin | None = None
        self._op_of_block: dict[int, int] = {}
        """Operations outside any module (loading, optimizer), by their place in the events: whose block they work on.
        A parameter learns its module's name only when the model first runs, so this is looked up at the end."""
        self._became: dict[int, int] = {}
        """While loading: which block an unnamed one was copied into; it takes that one's module."""
        self._summed: dict[int, int] = {}
        """Which block the engine added this one into: a part of a gradient is a gradient."""
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ events

    def tape(self, versions: dict[str, str], units: Sequence[Unit] = ()) -> Tape:
        self._settle_accumulation()
        for number, copy in reversed(self._became.items()):
            self._blocks[number].module = self._blocks[number].module or self._blocks[copy].module
        for number, total in self._summed.items():
            if self._blocks[total].role is Role.GRADIENTS:
                self._blocks[number].role = Role.GRADIENTS
        events: list[Event] = []
        for place, event in enumerate(self._events):
            if isinstance(event, Op) and place in self._op_of_block:
                events.append(event._replace(module=self._blocks[self._op_of_block[place]].module))
            elif isinstance(event, int):
                block = self._blocks[event]
                role = block.role or block.role_by_life(self.scopes.is_head(block.module))
                events.append(Alloc(event, block.nbytes, role, block.module, block.stream))
            else:
                events.append(event)
        name_clip_phases(events)
        cuts = [0, *(cut for unit in units for cut in (unit.start, unit.end)), len(events)]
        ordered = [event for cut in pairwise(cuts) for event in with_frees_in_order(events[slice(*cut)])]
        return Tape(
            tuple(ordered), counted(self.guesses), counted(self.assumptions), versions, self.managed_bytes, tuple(units)
        )

    def forget_all(self) -> None:
        """Start from an empty card; nothing traced so far may be alive."""
        for values in (
            self._events,
            self._blocks,
            self._storages,
            self._renamed,
            self._workspaces,
            self._op_of_block,
            self._became,
            self._summed,
        ):
            values.clear()
        self.guesses.clear()
        self.assumptions.clear()
        self.untraced.clear()
        self.allocated_bytes = self.peak_bytes = self.managed_bytes = 0
        self._announced = None
        self.scopes.restart()

    def _announce(self) -> None:
        now = Begin(self.scopes.phase, self.scopes.step)
        if now != self._announced:
            self._announced = now
            self._events.append(now)

    def empty_cache(self) -> None:
        with self._lock:
            self._settle_accumulation()
            self._announce()
            self._events.append(EmptyCache())

    def allocate(self, nbytes: int, module: str) -> int:
        """A new block on this thread's stream; the caller frees it."""
        self._announce()
        number = len(self._blocks)
        stream = self.stream_of_thread.get(threading.get_ident(), 0)
        in_forward = self.scopes.in_forward()
        self._blocks[number] = Block(nbytes, module, self.scopes.phase, in_forward, stream)
        self._events.append(number)
        self._grow(nbytes)
        return number

    def free(self, number: int) -> None:
        self._announce()
        block = self._blocks[number]
        block.died_backward = self.scopes.phase is Phase.BACKWARD and not self.scopes.in_forward()
        self._events.append(Free(number))
        self.allocated_bytes -= block.nbytes

    def _grow(self, nbytes: int) -> None:
        self.allocated_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def launched(self, op: Op) -> None:
        """A kernel that is not an operator of torch."""
        with self._lock:
            self._settle_accumulation()
            self._announce()
            stream = self.stream_of_thread.get(threading.get_ident(), 0)
            self._events.append(op._replace(module=self.scopes.current() or "", stream=stream))

    # ------------------------------------------------------------------ storages

    def block_of(self, tensor: torch.Tensor) -> int | None:
        entry = self._storages.get(tensor.untyped_storage()._cdata)
        if entry is None or entry[1]() is None:
            return None
        return self._renamed.get(entry[0], entry[0])

    def set_role(self, tensor: torch.Tensor, role: Role, module: str | None = None) -> None:
        number = self.block_of(tensor)
        if number is None or self._blocks[number].role is role:
            return  # shared by several modules (tied weights, a table of codes): the first keeps it
        self._blocks[number].role = role
        if module is not None:
            self._blocks[number].module = module

    def module_of(self, tensor: torch.Tensor) -> str:
        number = self.block_of(tensor)
        return "" if number is None else self._blocks[number].module

    def _watch(self, storage: Any, number: int) -> None:
        key = storage._cdata

        def died(reference: weakref.ref[Any]) -> None:
            self._storage_died(key, number, reference)

        self._storages[key] = (number, weakref.ref(storage, died))

    def _is_new(self, storage: Any) -> bool:
        entry = self._storages.get(storage._cdata)
        return entry is None or entry[1]() is None

    def _storage_died(self, key: int, number: int, reference: weakref.ref[Any]) -> None:
        with self._lock:
            current = self._storages.get(key)
            if current is not None and current[1] is reference:
                del self._storages[key]
            number = self._renamed.pop(number, number)
            if self._pending is not None:
                old, new = self._pending
                if number not in (old, new):  # what was added; where the sum is a new block, that came first
                    self._waiting.append(number)
                    return
                if number == old:  # the sum went into the old gradient: no new block was needed
                    self._renamed[new] = old
                self._pending = None
                self._free_waiting()
                return
            self.free(number)

    def resized(self, storage: Any, nbytes: int) -> None:
        """`storage.resize_`: FSDP frees and refills gathered parameters this way."""
        with self._lock:
            entry = self._storages.get(storage._cdata)
            if entry is None or entry[1]() is None:
                return
            old = self._renamed.pop(entry[0], entry[0])
            module = self._blocks[old].module
            role = self._blocks[old].role
            new = self.allocate(nbytes, module) if nbytes else self._empty_block(module)
            if self._blocks[old].nbytes:  # after: contents are copied over (aten/src/ATen/native/cuda/Resize.cpp)
                self.free(old)
            self._blocks[new].role = role
            self._watch(storage, new)

    def _empty_block(self, module: str) -> int:
        """A storage resized to nothing still lives; its death must free nothing."""
        return self.allocate(0, module)

    # Gradient accumulation. The engine adds a second gradient into the first one in place when nothing else holds
    # it (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never for tensor subclasses such as
    # fake tensors. So an addition made by the engine waits: if the old gradient dies before the next operation,
    # the real engine would have added in place, and the new block is the old one.

    def _settle_accumulation(self) -> None:
        if self._pending is not None:
            _, new = self._pending
            self._pending = None
            self._events.append(new)
            self._grow(self._blocks[new].nbytes)
            self._free_waiting()

    def _free_waiting(self) -> None:
        for number in self._waiting:
            self.free(number)
        self._waiting.clear()

    def _defer(self, storage: Any, old: int, module: str) -> None:
        self._announce()
        number = len(self._blocks)
        stream = self._blocks[old].stream
        self._blocks[number] = Block(storage.nbytes(), module, self.scopes.phase, False, stream)
        self._pending = (old, number)
        self._watch(storage, number)


def counted(sentences: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in sentences.items())
