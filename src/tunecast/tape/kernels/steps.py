"""How one operation on the card allocates: its outputs and what its kernels borrow, in the order of the C++ code.

A rule is a function that writes a `Script`. Most operations need none: their outputs come in order and nothing is
borrowed. `workspaces.py` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.kernels.shapes import Shaped


class Make(NamedTuple):
    """An output comes to life: its place among the operation's output tensors. One never made is not on the card."""

    output: int
    nbytes: int = 0
    """Where the real block is larger than the fake kernel's; 0: as large."""
    into: int | None = None
    """The argument whose block it takes over: the real code writes in place where the traced code must not."""


class Borrow(NamedTuple):
    nbytes: int


class Return(NamedTuple):
    """The buffer borrowed as the `borrowed`-th of this operation (from 0) is given back."""

    borrowed: int


Step = Make | Borrow | Return


class KernelCall(NamedTuple):
    """One operation: what went in, and the fake tensors that came out."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Shaped]
    card: Card
    by_engine: bool = False
    """No Python stands between the autograd engine and this call."""

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)


class Script:
    """Collects steps. What is still borrowed at the end goes back last in, first out, as C++ destroys locals."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._held: list[int] = []
        self._borrowed = 0

    def make(self, *outputs: int) -> None:
        self._steps += [Make(output) for output in outputs]

    def make_of(self, output: int, nbytes: int) -> None:
        self._steps.append(Make(output, nbytes))

    def make_into(self, output: int, argument: int) -> None:
        self._steps.append(Make(output, into=argument))

    def borrow(self, nbytes: int) -> int:
        """The buffer's number for `give_back`. An allocation of nothing is none."""
        number = self._borrowed
        if nbytes:
            self._steps.append(Borrow(nbytes))
            self._held.append(number)
            self._borrowed += 1
            return number
        return -1

    def give_back(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._held:
                self._held.remove(number)
                self._steps.append(Return(number))

    def touch(self, nbytes: int) -> None:
        """Borrowed and given back at once."""
        self.give_back(self.borrow(nbytes))

    def steps(self) -> tuple[Step, ...]:
        self.give_back(*reversed(self._held))
        return tuple(self._steps)


Rule = Callable[[KernelCall, Script], None]


def nbytes(tensor: Shaped) -> int:
    return tensor.numel() * tensor.element_size()


def up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)
