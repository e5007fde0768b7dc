"""The card's memory as the trace goes: blocks born and freed, which storage holds which, and the events so far.

A weak reference on a storage tells when its last holder (a Python name, a saved tensor, a gradient buffer) lets go.
Roles and module names are often known only later; they are settled when the tape is made.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import torch

from tunecast.tape.build.event_log import Block
from tunecast.tape.cards import STREAMS_PER_CARD, card_of_stream
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

STREAMS_PER_POOL = 1 << 10
"""Of a card's numbers for streams, each private pool has so many."""


class Ledger:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.guesses: Counter[str] = Counter()
        self.assumptions: Counter[str] = Counter()
        self.untraced: Counter[str] = Counter()
        self.managed_bytes = 0
        self.in_use_bytes: Counter[int] = Counter()
        self.peak_bytes: Counter[int] = Counter()
        """By card."""
        self.stream_of_thread: dict[tuple[int, int], int] = {}
        """By thread and card; a card's default stream where there is none."""
        self.captures_into = 0
        """The private pool of a CUDA graph while it is captured (`graphs.py`); 0: none."""
        self._events: list[Event | int] = []  # an int is the allocation of that block
        self._blocks: dict[int, Block] = {}
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._renamed: dict[int, int] = {}
        self._pending: dict[int, tuple[int, int]] = {}
        self._waiting: dict[int, list[int]] = {}
        """By card: the engine has a thread for each, and they go on side by side."""
        self._workspaces: set[tuple[str, int | str, int]] = set()
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
        return Tape(
            in_order(events, units), counted(self.guesses), counted(self.assumptions), versions, self.managed_bytes,
            tuple(units),
        )  # fmt: skip

    def tape_so_far(self, units: Sequence[Unit], mark: int) -> Tape:
        """What was asked for and freed, and nothing that is settled only at the end: roles, modules, operations.

        `mark`: an event that stays where it is."""
        events: list[Event] = []
        for event in self._events:
            if isinstance(event, int):
                block = self._blocks[event]
                events.append(Alloc(event, block.nbytes, Role.TEMPORARIES, "", block.stream))
            else:
                events.append(event)
        return Tape(in_order(events, units, mark), units=tuple(units))

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
        self.in_use_bytes.clear()
        self.peak_bytes.clear()
        self.managed_bytes = 0
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

    @property
    def allocated_bytes(self) -> int:
        return self.in_use_bytes.total()

    def stream_on(self, card: int) -> int:
        """This thread's on that card."""
        return self.stream_of_thread.get((threading.get_ident(), card), card * STREAMS_PER_CARD)

    def pool_on(self, card: int) -> int:
        """The stream whose blocks this thread gets there; while a graph is captured they are the graph's."""
        return self.stream_on(card) + self.captures_into * STREAMS_PER_POOL

    def allocate(self, nbytes: int, module: str, card: int = 0) -> int:
        """A new block on this thread's stream; the caller frees it."""
        self._announce()
        number = len(self._blocks)
        stream = self.pool_on(card)
        in_forward = self.scopes.in_forward()
        self._blocks[number] = Block(nbytes, module, self.scopes.phase, in_forward, stream)
        self._events.append(number)
        self._grow(self._blocks[number])
        return number

    def free(self, number: int) -> None:
        self._announce()
        block = self._blocks[number]
        block.died_backward = self.scopes.phase is Phase.BACKWARD and not self.scopes.in_forward()
        self._events.append(Free(number))
        self.in_use_bytes[card_of_stream(block.stream)] -= block.nbytes

    def _grow(self, block: Block) -> None:
        card = card_of_stream(block.stream)
        self.in_use_bytes[card] += block.nbytes
        self.peak_bytes[card] = max(self.peak_bytes[card], self.in_use_bytes[card])

    def launched(self, op: Op, card: int = 0) -> None:
        """A kernel that is not an operator of torch."""
        with self._lock:
            self._settle_accumulation({card})
            self._announce()
            module, stream = self.scopes.current() or "", self.stream_on(card)
            by_engine = self.scopes.computes_gradients()
            self._events.append(op._replace(module=module, stream=stream, by_engine=by_engine))

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

    def role_of(self, number: int) -> Role | None:
        """As far as it was said."""
        return self._blocks[number].role

    def set_block_role(self, number: int, role: Role) -> None:
        self._blocks[number].role = role

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
            card = card_of_stream(self._blocks[number].stream)
            if card in self._pending:
                old, new = self._pending[card]
                if number not in (old, new):  # what was added; where the sum is a new block, that came first
                    self._waiting.setdefault(card, []).append(number)
                    return
                if number == old:  # the sum went into the old gradient: no new block was needed
                    self._renamed[new] = old
                del self._pending[card]
                self._free_waiting(card)
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
            role, card = self._blocks[old].role, card_of_stream(self._blocks[old].stream)
            new = self.allocate(nbytes, module, card)  # of nothing: the storage still lives, its death frees nothing
            if self._blocks[old].nbytes:  # after: contents are copied over (aten/src/ATen/native/cuda/Resize.cpp)
                self.free(old)
            self._blocks[new].role = role
            self._watch(storage, new)

    # Gradient accumulation. The engine adds a second gradient into the first one in place when nothing else holds
    # it (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never for tensor subclasses such as
    # fake tensors. So an addition made by the engine waits: if the old gradient dies before the next operation,
    # the real engine would have added in place, and the new block is the old one.

    def _settle_accumulation(self, cards: Collection[int] = ()) -> None:
        """On these cards, or on all."""
        for card in tuple(self._pending):
            if not cards or card in cards:
                _, new = self._pending.pop(card)
                self._events.append(new)
                self._grow(self._blocks[new])
                self._free_waiting(card)

    def _free_waiting(self, card: int) -> None:
        for number in self._waiting.pop(card, ()):
            self.free(number)

    def _defer(self, storage: Any, old: int, module: str) -> None:
        self._announce()
        number = len(self._blocks)
        stream = self._blocks[old].stream
        self._blocks[number] = Block(storage.nbytes(), module, self.scopes.phase, False, stream)
        self._pending[card_of_stream(stream)] = (old, number)
        self._watch(storage, number)


def in_order(events: Sequence[Event], units: Sequence[Unit], mark: int = 0) -> tuple[Event, ...]:
    """With frees in order, inside each unit and between them; none goes past the event with the number `mark`."""
    cuts = sorted([0, mark, *(cut for unit in units for cut in (unit.start, unit.end)), len(events)])
    return tuple(event for cut in pairwise(cuts) for event in with_frees_in_order(events[slice(*cut)]))


def counted(sentences: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in sentences.items())
