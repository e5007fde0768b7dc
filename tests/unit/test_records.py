"""Our frozen dataclasses beside the standard library's, declared alike."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest

from tunecast import records


def declared(by: ModuleType) -> Any:
    class Plain:
        def described(self) -> str:
            return f"{self}"

    @by.dataclass(frozen=True)
    class Base(Plain):
        width: int
        kind: str = "large"
        KINDS: ClassVar[tuple[str, ...]] = ("large", "small")

    @by.dataclass(frozen=True)
    class Part(Base):
        names: dict[str, int] = by.field(default_factory=dict, compare=False)
        note: str = by.field(default="", repr=False, metadata={"help": "free text"})
        kind: str = "small"

        def __post_init__(self) -> None:
            if self.width < 0:
                raise ValueError("width")
            object.__setattr__(self, "kind", self.kind.lower())

        @cached_property
        def area(self) -> int:
            return self.width**2

    return Part


OURS, THEIRS = declared(records), declared(dataclasses)
BOTH = pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])


@dataclasses.dataclass(frozen=True)
class Theirs:
    one: int


@records.dataclass(frozen=True)
class Ours:
    one: int


@records.dataclass(frozen=True, eq=False)
class ByIdentity:
    one: int = 1


@pytest.mark.parametrize("given", [(3,), (3, "A"), (3, "A", {"b": 1}, "note")])
def test_made_and_shown_alike(given: tuple[Any, ...]) -> None:
    ours, theirs = OURS(*given), THEIRS(*given)
    assert repr(ours) == repr(theirs)
    assert vars(ours) == vars(theirs)
    assert hash(ours) == hash(theirs)
    assert ours.described() == theirs.described()


@pytest.mark.parametrize("named", [{}, {"width": 1, "other": 2}, {"width": 1, "names": 3, "kinds": 0}])
def test_what_is_missing_or_too_much_is_refused_alike(named: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as theirs:
        THEIRS(**named)
    with pytest.raises(TypeError) as ours:
        OURS(**named)
    assert str(ours.value) == str(theirs.value)


@BOTH
def test_equal_by_what_is_compared(made: Any) -> None:
    assert made(3, names={"a": 1}) == made(3)
    assert made(3) != made(4)
    assert made(3) != made(3, note="other")
    assert made(3) != (3, "small", "")


def test_another_class_is_another_value() -> None:
    assert Ours(1) != Theirs(1)
    assert Ours(1) == Ours(1)
    assert hash(Ours(1)) == hash(Theirs(1))
    assert ByIdentity() != ByIdentity()


@BOTH
def test_nothing_changes_but_what_is_cached(made: Any) -> None:
    value = made(3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'width'"):
        value.width = 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'width'"):
        del value.width
    assert (value.width, value.area) == (3, 9)


@BOTH
@pytest.mark.parametrize("replace", [records.replace, dataclasses.replace], ids=["ours", "theirs"])
def test_replaced_values_are_checked_again(made: Any, replace: Any) -> None:
    if made is THEIRS and replace is records.replace:
        return
    value = made(3, "A", {"b": 1}, "note")
    other = replace(value, width=5, kind="LARGE")
    assert (other.width, other.kind, other.names, other.note) == (5, "large", {"b": 1}, "note")
    with pytest.raises(ValueError, match="width"):
        replace(value, width=-1)
    with pytest.raises(TypeError):
        replace(value, wide=1)


@BOTH
def test_the_standard_library_takes_them(made: Any) -> None:
    value = made(3, names={"b": 1})
    assert dataclasses.is_dataclass(made)
    assert dataclasses.asdict(value) == {"width": 3, "kind": "small", "names": {"b": 1}, "note": ""}
    told = [(f.name, f.default, f.compare, f.repr, dict(f.metadata)) for f in dataclasses.fields(value)]
    assert told == [(f.name, f.default, f.compare, f.repr, dict(f.metadata)) for f in dataclasses.fields(THEIRS)]


@pytest.mark.parametrize("times", [1, records.OFTEN + 1])
def test_made_often_and_made_once_alike(times: int) -> None:
    made, pair = declared(records), named(records.NamedTuple)
    for _ in range(times):
        value, point = made(3, kind="A"), pair(1)
    assert (vars(value), list(vars(value))) == (vars(THEIRS(3, kind="A")), list(vars(THEIRS(3, kind="A"))))
    assert (point, pair(1, right="s"), pair(right="s", left=1)) == ((1, "r"), (1, "s"), (1, "s"))
    for wrong in (lambda: made(), lambda: made(1, width=1), lambda: made(1, "a", {}, "", 5), lambda: made(-1)):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    for wrong in (lambda: pair(), lambda: pair(1, left=1), lambda: pair(1, "r", right="r"), lambda: pair(1, 2, 3)):
        with pytest.raises(TypeError):
            wrong()
    assert made(4).width == 4 and pair(2).left == 2


def test_own_fields_are_told_in_order() -> None:
    assert [each.name for each in records.fields(OURS)] == [each.name for each in dataclasses.fields(THEIRS)]
    assert records.fields(OURS)[3].metadata == {"help": "free text"}


@BOTH
def test_factories_make_a_new_value_each_time(made: Any) -> None:
    assert made(1).names is not made(1).names


def test_copied_and_sent_to_another_process() -> None:
    assert copy.copy(Ours(2)) == Ours(2)
    assert pickle.loads(pickle.dumps(Ours(2))) == Ours(2)
    match Ours(2):
        case Ours(found):
            assert found == 2


def named(by: Any) -> Any:
    class Pair(by):  # type: ignore[misc,valid-type]
        """Two of a kind."""

        left: int
        right: str = "r"

        @property
        def both(self) -> str:
            return f"{self.left}{self.right}"

    return Pair


class Empty(records.NamedTuple):
    pass


class Point(records.NamedTuple):
    x: int
    y: int = 2


@pytest.mark.parametrize("made", [named(records.NamedTuple), named(NamedTuple)], ids=["ours", "theirs"])
def test_named_tuples(made: Any) -> None:
    pair = made(1)
    assert (pair, pair.left, pair.both, repr(pair)) == ((1, "r"), 1, "1r", "Pair(left=1, right='r')")
    assert hash(pair) == hash((1, "r")) and made(1, right="r") == pair and made(2) > pair
    assert pair._replace(left=3)._asdict() == {"left": 3, "right": "r"}
    assert (made._fields, made._field_defaults, made.__match_args__) == (
        ("left", "right"),
        {"right": "r"},
        ("left", "right"),
    )
    assert made._make([1, 2]) == (1, 2) and copy.copy(pair) == pair and made.__doc__ == "Two of a kind."
    for wrong in (lambda: made(), lambda: made(1, 2, 3), lambda: made(1, other=2), lambda: made._make([1])):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="other"):
        pair._replace(other=1)
    with pytest.raises(AttributeError):
        pair.left = 2


def test_named_tuples_go_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 2) and Empty() == ()
