"""Sizes that are not yet numbers: a program built on paper once, for a batch and a length, and used for others.

A `Symbol` is a number that remembers how it came about: a polynomial in whole numbers from 2 on (the batch, the length)
and in expressions. Arithmetic makes symbols, or plain numbers where all else cancels; code that needs the number itself
(a comparison, an index, the end of a loop) gets it, and `Guards` records the question and its answer. What was built on
symbols holds for all values that answer every question alike, with its sizes computed anew. Nothing has to be known
about the code in between: all it can do with a symbol is to compute with it, or to ask. What a symbol cannot do, such
as being the key of a table, raises `NumberNeeded`.

The same polynomial is the same object, which knows what became of it: a tape does the same with the same sizes over and
over, so nearly all arithmetic is looking up.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any


class NumberNeeded(TypeError, AttributeError):
    """Code wants of a symbol what only a number can do: the same code has to run on plain numbers."""


class Guards:
    """The questions that code asked of symbols, as expressions, and the answer to each."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.answers: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        """The places of distinct expressions."""
        self._places: dict[Any, int] = {}
        self.calls: dict[Any, str] = {}
        """What functions that are asked as a whole go by."""
        self.asked: dict[Any, Any] = {}
        self.computed: dict[Any, Symbol] = {}
        """What `ask` and `compute` found before."""
        self._made: dict[Any, Symbol] = {}
        """Every symbol, by its terms. It lives as long as the questions, so symbols may go by their `id`."""

    def symbol(self, name: str, value: int) -> Any:
        """A whole number from 1 on. It passes for an int wherever one is computed with.

        1 is itself: dimensions of 1 are dropped and merged, so a program without them is another one.
        """
        if value == 1:
            self.answers[name] = 1
            return 1
        self.answers[f"{name}>1"] = True
        self.names.add(name)
        return self.of(value, {(name,): 1})

    def count(self, name: str, value: int) -> Any:
        """A whole number from 0 on, which is itself: code leaves out what there is none of."""
        if value == 0:
            self.answers[name] = 0
            return 0
        return self.symbol(name, value)

    def fact(self, name: str, value: Any) -> Any:
        """What is no size, and only compared."""
        return Fact(self, name, value)

    def of(self, value: Any, terms: Terms) -> Symbol:
        key = next(iter(terms.items())) if len(terms) == 1 else frozenset(terms.items())
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Symbol(self, value, terms)
        return found

    def place(self, size: Any) -> int:
        """Of a number among the expressions to be computed."""
        key = size if type(size) is int else ("symbol", id(size))
        found = self._places.get(key)
        if found is None:
            told = repr(max(0, size)) if type(size) is int else size.code
            found = self._places[key] = self.sizes.setdefault(told, len(self.sizes))
        return found

    def compile(self, codes: Iterable[str], names: str) -> Callable[..., tuple[Any, ...]]:
        """The values of expressions, as a function of the symbols' values. All expressions are made in this module."""
        calls = {name: partial(*call) for call, name in self.calls.items()}
        text = "".join(f"{code}, " for code in codes)
        made: Callable[..., tuple[Any, ...]] = eval(f"lambda {names}: ({text})", calls)
        return made


def expression(value: Any) -> str:
    if type(value) is Symbol or type(value) is Fact:
        return value.code
    return f"({''.join(f'{expression(part)}, ' for part in value)})" if type(value) is tuple else repr(value)


def listed(numbers: Iterable[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Each of them once, in order; before that, which is where. Long lists of sizes hold few."""
    places: dict[Any, int] = {}
    found: list[Any] = []
    order = []
    for number in numbers:
        key = number if type(number) is int else ("symbol", id(number))
        place = places.get(key)
        if place is None:
            place = places[key] = len(found)
            found.append(number)
        order.append(place)
    return tuple(order), found


def starts(end: Any, step: Any) -> Iterator[Any]:
    """`range(0, end, step)`, asking only how many they are."""
    start = 0
    while start < end:
        yield start
        start = start + step


def ask(function: Callable[..., Any], about: Hashable, numbers: Sequence[Any]) -> Any:
    """`function(about, *numbers)` as one question: it may compare a lot for an answer that is mostly the same."""
    guards, values = _valued(numbers)
    if guards is None:
        return function(about, *values)
    key = function, about, *_named(numbers)
    if key not in guards.asked:
        answer = guards.asked[key] = function(about, *values)
        name = guards.calls.setdefault((function, about), f"call_{len(guards.calls)}")
        guards.answers[f"{name}{expression(tuple(numbers))}"] = answer
    return guards.asked[key]


def _named(numbers: Sequence[Any]) -> list[Any]:
    """Numbers, and by what tells them apart symbols and facts, which do not last."""
    return [
        ("symbol", id(each)) if type(each) is Symbol else ("fact", each.code) if type(each) is Fact else each
        for each in numbers
    ]


def _valued(numbers: Sequence[Any]) -> tuple[Guards | None, list[Any]]:
    """Who hears of symbols and facts among them, if there are any; and what all of them are."""
    guards: Guards | None = None
    values = []
    for number in numbers:
        if type(number) is Symbol or type(number) is Fact:
            guards, number = number.guards, number.value
        values.append(number)
    return guards, values


def compute(function: Callable[..., int], about: Hashable, numbers: Sequence[Any]) -> Any:
    """`function(about, *numbers)` as one more number: it may ask a lot on the way to a size."""
    guards, values = _valued(numbers)
    if guards is None:
        return function(about, *values)
    key = function, about, *_named(numbers)
    found = guards.computed.get(key)
    if found is None:
        answer = function(about, *values)
        name = guards.calls.setdefault((function, about), f"call_{len(guards.calls)}")
        found = guards.computed[key] = guards.of(answer, {(f"{name}{expression(tuple(numbers))}",): 1})
    return found


Powers = tuple[str, ...]
"""What is multiplied, sorted: `("batch", "length", "length")`."""
Terms = dict[Powers, int]
"""And how often it is added."""


class _Guarded:
    """A value whose comparisons are questions: `_compared` answers one and records it."""

    __slots__ = ()
    guards: Guards
    value: Any

    @property
    def code(self) -> str:
        """Its expression."""
        raise NotImplementedError

    def _refuse(self, *_: Any) -> Any:
        raise NumberNeeded(f"{type(self).__name__} is not a number")

    __hash__ = _refuse  # a table would not find it
    __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = __round__ = _refuse
    __getattr__ = _refuse

    def number(self) -> Any:
        """The value itself, which from here on the program depends on."""
        self.guards.answers[self.code] = self.value
        return self.value

    def __repr__(self) -> str:
        return repr(self.number())

    def __format__(self, spec: str) -> str:
        return format(self.number(), spec)

    def _compared(self, sign: str, of: Callable[[Any, Any], bool], other: Any) -> bool:
        raise NotImplementedError

    def __lt__(self, other: Any) -> bool:
        return self._compared("<", operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compared("<=", operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compared(">", operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(">=", operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return self._compared("==", operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return self._compared("!=", operator.ne, other)


class Symbol(_Guarded):
    __hash__ = _Guarded.__hash__
    __slots__ = (
        "_above", "_code", "_equals", "_found", "_more", "_products", "_sums", "_times", "_unequals", "guards", "terms",
        "value",
    )  # fmt: skip

    def __init__(self, guards: Guards, value: Any, terms: Terms) -> None:
        self.guards, self.value, self.terms = guards, value, terms
        self._code = ""
        self._times: dict[int, Any] = {}
        self._products: dict[int, Any] = {}
        self._sums: dict[int, Any] = {}
        """By the other's `id`."""
        self._more: dict[int, Any] = {}
        """What it comes to with a number added."""
        self._equals: dict[int, bool] = {}
        self._unequals: dict[int, bool] = {}
        self._above: dict[int, bool] = {}
        self._found: dict[tuple[str, int], Any] = {}
        """What else was computed or asked: by sign, and the other number, or of a symbol `~id`."""

    @property
    def code(self) -> str:
        if not self._code:
            told = ["*".join((str(factor), *powers)) for powers, factor in sorted(self.terms.items())]
            self._code = f"({'+'.join(told)})"
        return self._code

    def __index__(self) -> int:
        return operator.index(self.number())

    def __int__(self) -> int:
        return int(self.number())

    def __float__(self) -> float:
        return float(self.number())

    def __bool__(self) -> bool:
        return bool(self.__ne__(0))

    def bit_length(self) -> int:
        """How many bits is asked for, not the number itself: sorting asks, and twice the rows are one bit more."""
        found: int = self.value.bit_length()
        self.guards.answers[f"{self.code}.bit_length()"] = found
        return found

    def _made(self, value: Any, terms: Terms) -> Any:
        """A plain number where everything else cancels."""
        terms = {powers: factor for powers, factor in terms.items() if factor}
        return value if not terms.keys() - {()} else self.guards.of(value, terms)

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if type(other) is int:
            found = self._times.get(other)
            if found is None:
                found = self._times[other] = self._times_number(other)
            return found
        if type(other) is Symbol:
            found = self._products.get(id(other))
            if found is None:
                found = self._products[id(other)] = self._times_symbol(other)
            return found
        return _expression(operator.mul, "*", self, other)

    __rmul__ = __mul__

    def _times_number(self, other: int) -> Any:
        if other in (0, 1):
            return self if other else 0
        return self.guards.of(self.value * other, {powers: n * other for powers, n in self.terms.items()})

    def _times_symbol(self, other: Symbol) -> Any:
        terms: Terms = {}
        for mine, factor in self.terms.items():
            for theirs, times in other.terms.items():
                powers = tuple(sorted(mine + theirs))
                terms[powers] = terms.get(powers, 0) + factor * times
        return self._made(self.value * other.value, terms)

    def _once(self, sign: str, other: Any, of: Callable[[Symbol, Any], Any]) -> Any:
        """`of(self, other)`, computed the first time."""
        if type(other) is int:
            key = sign, other
        elif type(other) is Symbol:
            key = sign + "symbol", id(other)
        else:
            return of(self, other)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = of(self, other)
        return found

    def __add__(self, other: Any) -> Any:
        if type(other) is int:
            known, key = self._more, other
        elif type(other) is Symbol:
            known, key = self._sums, id(other)
        else:
            return self._plus(other)
        found = known.get(key)
        if found is None:
            found = known[key] = self._plus(other)
        return found

    __radd__ = __add__

    def _plus(self, other: Any) -> Any:
        if type(other) is int:
            return self._made(self.value + other, {**self.terms, (): self.terms.get((), 0) + other})
        if type(other) is Symbol:
            terms = dict(self.terms)
            for powers, factor in other.terms.items():
                terms[powers] = terms.get(powers, 0) + factor
            return self._made(self.value + other.value, terms)
        return _expression(operator.add, "+", self, other)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __floordiv__(self, other: Any) -> Any:
        return self._once("//", other, Symbol._divided)

    def _divided(self, other: Any) -> Any:
        whole = self._over(other)
        return _expression(operator.floordiv, "//", self, other) if whole is None else whole

    def __rfloordiv__(self, other: Any) -> Any:
        return _expression(operator.floordiv, "//", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._once("%", other, Symbol._left_over)

    def _left_over(self, other: Any) -> Any:
        return _expression(operator.mod, "%", self, other) if self._over(other) is None else 0

    def __rmod__(self, other: Any) -> Any:
        return _expression(operator.mod, "%", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _expression(operator.truediv, "/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _expression(operator.truediv, "/", other, self)

    def _over(self, other: Any) -> Any:
        """The quotient, where nothing is left over whatever the values are."""
        if type(other) is int and other:
            times, powers = other, ()  # type: tuple[int, Powers]
        elif type(other) is Symbol and len(other.terms) == 1:
            ((powers, times),) = other.terms.items()
        else:
            return None
        if not self.guards.names.issuperset(powers):
            return None
        terms: Terms = {}
        for mine, factor in self.terms.items():
            left = list(mine)
            for base in powers:
                if base not in left:
                    return None
                left.remove(base)
            if factor % times:
                return None
            terms[tuple(left)] = factor // times
        return self._made(self.value // (other.value if type(other) is Symbol else other), terms)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is not int:
            return self._compared("==", operator.eq, other)
        found = self._equals.get(other)
        if found is None:
            found = self._equals[other] = self._answer("==", operator.eq, other)
        return found

    def __ne__(self, other: object) -> bool:
        if other is self:
            return False
        if type(other) is not int:
            return self._compared("!=", operator.ne, other)
        found = self._unequals.get(other)
        if found is None:
            found = self._unequals[other] = self._answer("!=", operator.ne, other)
        return found

    def __gt__(self, other: Any) -> bool:
        if type(other) is not int:
            return self._compared(">", operator.gt, other)
        found = self._above.get(other)
        if found is None:
            found = self._above[other] = self._answer(">", operator.gt, other)
        return found

    def _compared(self, sign: str, of: Callable[[Any, Any], bool], other: Any) -> bool:
        if type(other) is int:
            key = sign, other
        elif type(other) is Symbol:
            key = sign + "symbol", id(other)
        else:
            return of(self.number(), other)
        found: bool | None = self._found.get(key)
        if found is None:
            found = self._found[key] = self._answer(sign, of, other)
        return found

    def _answer(self, sign: str, of: Callable[[Any, Any], bool], other: Any) -> bool:
        if type(other) is int and len(self.terms) == 1:  # a size against a small number: mostly it is clear
            ((powers, factor),) = self.terms.items()
            if factor > 0 and other < factor << len(powers) and self.guards.names.issuperset(powers):
                return of(1, 0)
        difference = self - other
        if type(difference) is not Symbol:
            return of(difference, 0)
        known = difference._sign()
        if known:
            return of(known, 0)
        answer = of(self.value, other.value if type(other) is Symbol else other)
        self.guards.answers[f"{difference.code}{sign}0"] = answer
        return answer

    def _sign(self) -> int:
        """1 or -1 where it is so whatever the values are; else 0. Named numbers are 2 or more."""
        least: float = 0
        most: float = 0
        for powers, factor in self.terms.items():
            if not self.guards.names.issuperset(powers):
                return 0
            least += factor << len(powers) if factor > 0 or not powers else -inf
            most += factor << len(powers) if factor < 0 or not powers else inf
        return 1 if least > 0 else -1 if most < 0 else 0


def _expression(of: Callable[[Any, Any], Any], sign: str, left: Any, right: Any) -> Any:
    """What does not simplify counts as one more number."""
    sides = [side.value if type(side) is Symbol else side for side in (left, right)]
    guards: Guards = next(side.guards for side in (left, right) if type(side) is Symbol)
    if not all(type(side) in (Symbol, int, float) for side in (left, right)):
        return of(*(side.number() if type(side) is Symbol else side for side in (left, right)))
    return guards.of(of(*sides), {(f"({expression(left)}{sign}{expression(right)})",): 1})


class Fact(_Guarded):
    """A value that is no size, such as a card's capability: it may be compared and taken apart, and each time that is a
    question."""

    __slots__ = ("_code", "guards", "value")

    def __init__(self, guards: Guards, code: str, value: Any) -> None:
        self.guards, self._code, self.value = guards, code, value

    @property
    def code(self) -> str:
        return self._code

    def __getitem__(self, place: int) -> Fact:
        return Fact(self.guards, f"{self.code}[{place}]", self.value[place])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.number())

    def _compared(self, sign: str, of: Callable[[Any, Any], bool], other: Any) -> bool:
        answer = of(self.value, other)
        self.guards.answers[f"{self.code}{sign}{other!r}"] = answer
        return answer
