"""How a library's kernel is called, with values in the place of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import Dtype, Shape


class Ref(NamedTuple):
    """A value in the place of a tensor among a call's arguments."""

    number: int


class LibraryCall(NamedTuple):
    """How a library's kernel is called: with what, and what it makes."""

    name: str
    inputs: tuple[Ref, ...]
    outs: tuple[tuple[Shape, Dtype], ...]
    flops: int
    args: Any
    kwargs: Any


class Own(NamedTuple):
    """An operation of a package's own: run as it is written."""

    function: Callable[[Any], Any]
    given: Ref
