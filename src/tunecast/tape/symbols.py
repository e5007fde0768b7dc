"""Sizes that are not yet numbers: a program built on paper once, for a batch and a length, and used for others.

A `Symbol` is a number that remembers how it came about. Arithmetic makes symbols; what needs the number itself (a
comparison, an index, the end of a loop) gets it, and `Asked` keeps the question and its answer. What was built on
symbols holds for all values that answer every question alike, with its sizes computed anew. Nothing has to be known
about the code in between: all it can do with a symbol is to compute with it, or to ask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any


class Asked:
    """The questions, as expressions, and what each came to."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        """The places of distinct expressions."""
        self.calls: dict[Any, str] = {}
        """What functions that are asked as a whole go by."""

    def symbol(self, name: str, value: int) -> Any:
        """It passes for an int wherever one is computed with."""
        return Symbol(value, name, self)

    def place(self, size: Any) -> int:
        return self.sizes.setdefault(size.code if type(size) is Symbol else str(max(0, size)), len(self.sizes))

    def computed(self, codes: Iterable[str], names: str) -> Callable[..., tuple[Any, ...]]:
        """What expressions come to, as a function of the symbols' values. They are all of this module's making."""
        calls = {name: partial(*call) for call, name in self.calls.items()}
        text = "".join(f"{code}, " for code in codes)
        made: Callable[..., tuple[Any, ...]] = eval(f"lambda {names}: ({text})", calls)
        return made


def ask(function: Callable[..., Any], about: Hashable, numbers: Sequence[Any]) -> Any:
    """`function(about, *numbers)` as one question: it may compare a lot for an answer that is mostly the same."""
    asked = next((number.asked for number in numbers if type(number) is Symbol), None)
    plain = [number.value if type(number) is Symbol else number for number in numbers]
    answer = function(about, *plain)
    if asked is not None:
        name = asked.calls.setdefault((function, about), f"call_{len(asked.calls)}")
        codes = [number.code if type(number) is Symbol else repr(number) for number in numbers]
        asked.answers[f"{name}({', '.join(codes)})"] = answer
    return answer


class Symbol:
    __slots__ = ("asked", "code", "value")
    __hash__ = None  # type: ignore[assignment]  # a cache would hand what is known of one run to another

    def __init__(self, value: Any, code: str, asked: Asked) -> None:
        self.value, self.code, self.asked = value, code, asked

    def number(self) -> Any:
        """The number itself is asked for."""
        self.asked.answers[self.code] = self.value
        return self.value

    def __index__(self) -> int:
        return operator.index(self.number())

    def __int__(self) -> int:
        return int(self.number())

    def __float__(self) -> float:
        return float(self.number())

    def __repr__(self) -> str:
        return repr(self.number())

    def bit_length(self) -> int:
        return int(self).bit_length()

    def __bool__(self) -> bool:
        return bool(self.__ne__(0))

    def __neg__(self) -> Symbol:
        return Symbol(-self.value, f"-{self.code}", self.asked)


def _computing(sign: str, of: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def with_right(self: Symbol, other: Any) -> Any:
        if type(other) is Symbol:
            return Symbol(of(self.value, other.value), f"({self.code}{sign}{other.code})", self.asked)
        if type(other) is int or type(other) is float:
            return Symbol(of(self.value, other), f"({self.code}{sign}{other!r})", self.asked)
        return of(self.number(), other)

    def with_left(self: Symbol, other: Any) -> Any:
        if type(other) is int or type(other) is float:
            return Symbol(of(other, self.value), f"({other!r}{sign}{self.code})", self.asked)
        return of(other, self.number())

    return with_right, with_left


def _asking(sign: str, of: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def compared(self: Symbol, other: Any) -> Any:
        if type(other) is Symbol:
            if self.code == other.code:
                return of(0, 0)
            code, answer = f"{self.code}{sign}{other.code}", of(self.value, other.value)
        elif type(other) is int or type(other) is float:
            code, answer = f"{self.code}{sign}{other!r}", of(self.value, other)
        else:
            return of(self.number(), other)
        self.asked.answers[code] = answer
        return answer

    return compared


for _name, _sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%"), ("truediv", "/")):
    _right, _left = _computing(_sign, getattr(operator, _name))
    setattr(Symbol, f"__{_name}__", _right)
    setattr(Symbol, f"__r{_name}__", _left)
for _name, _sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")):
    setattr(Symbol, f"__{_name}__", _asking(_sign, getattr(operator, _name)))

