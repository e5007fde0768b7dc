"""What a machine notes of its host's own work: Python between operations, which only time asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.event_log import EventLog
from tunecast.tape.op import CALLS, CHECKPOINT, HOOK, NODES, RECOMPUTE, SYNCHRONIZE, TENSORS, Op

if TYPE_CHECKING:
    from tunecast.tape.build.compiler.record import Tracer


class HostNotes(EventLog):
    def __init__(self, keeps_ops: bool, priced_from: int) -> None:
        super().__init__(keeps_ops, priced_from)
        self.graph: Tracer | None = None
        """While a compiler looks at the program: who writes down its operations (`compiler/record.py`)."""
        self._host_ops: dict[tuple[str, str, int], Op] = {}
        self.calls = self.nodes = self.tensors = self.saved = self.redone = 0
        """Since the operation before: `op.CALLS`, `NODES`, `TENSORS`, `CHECKPOINT`, `RECOMPUTE`."""

    def repeated(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensors, those of layers that stand for others as often as they do."""
        raise NotImplementedError

    def hook(self) -> None:
        """Python is called about a saved tensor."""
        self.of_host(HOOK)

    def synchronize(self) -> None:
        """The host waits for the card."""
        self.mark(Op(SYNCHRONIZE, self.module, kernels=0))

    def of_host(self, name: str) -> None:
        """A piece of work, here."""
        if self.writes_ops() and self.graph is None:
            self.announce()
            self.events.append(self._host_op(name, 0))

    def mark(self, *ops: Op) -> None:
        """Operations that only time asks for."""
        if self.writes_ops():
            self.announce()
            self.events += ops

    def go_over(self, tensors: Sequence[Any], times: int = 1) -> None:
        """Python goes over a list of tensors of many modules, so many times."""
        self.tensors += times * len(self.repeated(tensors))

    def note_python(self) -> None:
        """What the host has done since the operation before. It is noted with the next, so that it stands where that
        does: between them tensors go that belong to the one before."""
        done = {
            CHECKPOINT: self.saved, RECOMPUTE: self.redone, CALLS: self.calls, NODES: self.nodes, TENSORS: self.tensors
        }  # fmt: skip
        self.events += [self._host_op(name, count) for name, count in done.items() if count]
        self.forget_python()

    def has_notes(self) -> bool:
        return bool(self.calls or self.nodes or self.tensors or self.saved or self.redone)

    def forget_python(self) -> None:
        self.calls = self.nodes = self.tensors = self.saved = self.redone = 0

    def _host_op(self, name: str, count: int) -> Op:
        """0: what is not counted."""
        found = self._host_ops.get((name, self.module, count))
        if found is None:
            found = Op(name, self.module, kernels=0, shapes=((count,),) if count else ())
            self._host_ops[name, self.module, count] = found
        return found
