"""Frozen dataclasses and named tuples that cost next to nothing to declare.

`dataclasses.dataclass(frozen=True)` writes and compiles six functions a class, 0.7 ms, and loads `inspect` to do so:
nearly half of a command that is to answer in a tenth of a second. Here a class compiles its `__init__` once it has made
many records and shares the rest; all else is the same: defaults, `__post_init__`, comparison, hash, repr, and that
nothing changes. To a type checker these *are* the standard library's, and its functions (`dataclasses.fields`,
`replace`, `asdict`) take these records; tests/unit/test_records.py compares the two. `NamedTuple` is the same of
`typing`'s, of which a prediction loads a hundred, 0.1 ms each.

Left out  what nobody here needs: classes that are not frozen, `order`, `slots`, `kw_only`, `InitVar`, `init=False`.
"""

from __future__ import annotations

from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

Record = TypeVar("Record")


def replace_unchecked(record: Record, **changes: Any) -> Record:
    """`replace` without `__post_init__`: for values that stand for numbers (tape/symbols.py), which no check knows."""
    other = copy(record)
    for name, value in changes.items():
        object.__setattr__(other, name, value)
    return other


if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    MISSING = object()
    _SET = object.__setattr__
    OFTEN = 100
    """Records of a class before it compiles what makes them, which takes 0.1 to 0.2 ms: as long as making so many takes
    longer without. Of the 120 classes that a prediction makes records of, ten reach it."""
    _made_so_far = {}

    class Field:
        """One field, as far as this module and its callers ask."""

        __slots__ = ("compare", "default", "default_factory", "metadata", "name", "repr")

        def __init__(self, default, default_factory, compare, repr, metadata):
            self.name = ""
            self.default, self.default_factory = default, default_factory
            self.compare, self.repr, self.metadata = compare, repr, metadata

    def field(*, default=MISSING, default_factory=MISSING, compare=True, repr=True, metadata=None):
        return Field(default, default_factory, compare, repr, {} if metadata is None else metadata)

    def fields(of):
        """Of a record or its class."""
        if not hasattr(of, "_fields_by_name"):
            return _standard().fields(of)
        return tuple(of._fields_by_name.values())

    def replace(record, /, **changes):
        """The record with other values, made as any is."""
        if not hasattr(record, "_fields_by_name"):
            return _standard().replace(record, **changes)
        for name in record._fields_by_name:
            if name not in changes:
                changes[name] = getattr(record, name)
        return record.__class__(**changes)

    def _standard():
        import dataclasses

        return dataclasses

    def dataclass(*, frozen, eq=True):
        """`@dataclass(frozen=True)`."""
        assert frozen, "what changes is the standard library's"
        return _with_values if eq else _made

    def _with_values(cls):
        compared = [name for name, each in _made(cls)._fields_by_name.items() if each.compare]
        if len(compared) > 1:
            cls._values = property(attrgetter(*compared))
        else:
            cls._values = property(lambda self: tuple(getattr(self, name) for name in compared))
        cls.__eq__, cls.__hash__ = _eq, _hash
        return cls

    def _made(cls):
        found = {}
        for base in reversed(cls.__mro__[1:]):
            found |= base.__dict__.get("_fields_by_name", {})
        for name, kind in cls.__annotations__.items():
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            given = cls.__dict__.get(name, MISSING)
            one = given if isinstance(given, Field) else field(default=given)
            one.name = name
            found[name] = one
            if one.default is not MISSING:
                setattr(cls, name, one.default)
            elif given is not MISSING:
                delattr(cls, name)
        cls._fields_by_name = found
        cls.__match_args__ = tuple(found)
        cls.__dataclass_fields__ = _StandardFields(cls)
        cls.__init__ = _init_to_be(cls)
        cls.__setattr__, cls.__delattr__ = _refused, _refused
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _repr
        return cls

    def _init_to_be(cls):
        fields_, check = cls._fields_by_name, getattr(cls, "__post_init__", None)

        def __init__(self, *values, **named):
            found = None if _is_made_often(cls) else _filled(fields_, values, named)
            if found is None:
                cls.__init__ = made = _init(cls)
                made(self, *values, **named)
                return
            self.__dict__.update(found)
            if check is not None:
                self.__post_init__()

        return __init__

    def _is_made_often(cls):
        _made_so_far[cls] = count = _made_so_far.get(cls, 0) + 1
        return count > OFTEN

    def _filled(of, values, named):
        """The value of every field, by name; None where these are not the right ones: the compiled one refuses them."""
        found = dict(zip(of, values, strict=False))
        left = len(named)
        for name, each in of.items():
            if name in found:
                continue
            if name in named:
                found[name] = named[name]
                left -= 1
            elif each.default is not MISSING:
                found[name] = each.default
            elif each.default_factory is not MISSING:
                found[name] = each.default_factory()
            else:
                return None
        return None if left or len(values) > len(of) else found

    def _init(cls):
        """Compiled, for it is what runs often: `def __init__(self, a, b=b_): set(self, 'a', a); ...`."""
        names, taken, body = {"_set": _SET, "_missing": MISSING}, [], []
        for name, each in cls._fields_by_name.items():
            default = ""
            if each.default is not MISSING:
                names[f"_{name}_"], default = each.default, f"=_{name}_"
            elif each.default_factory is not MISSING:
                names[f"_{name}_"], default = each.default_factory, "=_missing"
                body.append(f"  if {name} is _missing: {name} = _{name}_()")
            taken.append(name + default)
            body.append(f"  _set(self, {name!r}, {name})")
        if hasattr(cls, "__post_init__"):
            body.append("  self.__post_init__()")
        text = "\n".join([f"def __init__({', '.join(['self', *taken])}):", *body, "  return None"])
        exec(text, names)
        made = names["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        return made

    def _eq(self, other):
        return self._values == other._values if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(self._values)

    def _repr(self):
        shown = (f"{name}={getattr(self, name)!r}" for name, each in self._fields_by_name.items() if each.repr)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    def _refused(self, name, *value):
        raise _standard().FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")

    class _StandardFields:
        """`__dataclass_fields__` for the standard library's functions, made when one of them asks."""

        def __init__(self, cls):
            self.cls = cls

        def __get__(self, record, owner=None):
            dataclasses = _standard()

            def standard(each):
                told = {"compare": each.compare, "repr": each.repr, "metadata": each.metadata}
                if each.default is not MISSING:
                    return dataclasses.field(default=each.default, **told)
                if each.default_factory is not MISSING:
                    return dataclasses.field(default_factory=each.default_factory, **told)
                return dataclasses.field(**told)

            kinds = [(name, Any, standard(each)) for name, each in self.cls._fields_by_name.items()]
            found = dataclasses.make_dataclass(self.cls.__name__, kinds, frozen=True, eq=False).__dataclass_fields__
            self.cls.__dataclass_fields__ = found
            return found

    class _NamedTupleType(type):
        """As `typing.NamedTuple` has it, which compiles a function for every class: here once many were made."""

        def __new__(mcs, name, bases, own):
            if bases == (tuple,) or hasattr(bases[0], "_fields"):
                return super().__new__(mcs, name, bases, own)
            names = tuple(own.get("__annotations__", ()))
            defaults = {each: own.pop(each) for each in names if each in own}
            fields_ = {each: _tuplegetter(place, None) for place, each in enumerate(names)}
            own |= {"__slots__": (), "_fields": names, "_field_defaults": defaults, "__match_args__": names, **fields_}
            return super().__new__(mcs, name, bases, own)

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        __slots__ = ()

        def __new__(cls, /, *values, **named):
            if not _is_made_often(cls):
                if len(values) == len(cls._fields) and not named:
                    return tuple.__new__(cls, values)
                rest, given = cls._fields[len(values) :], {**cls._field_defaults, **named}
                if rest and named.keys() <= set(rest) <= given.keys():
                    return tuple.__new__(cls, (*values, *[given[name] for name in rest]))
            cls.__new__ = made = _new(cls)
            return made(cls, *values, **named)

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            other = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return other

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            shown = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{self.__class__.__name__}({', '.join(shown)})"

        def __getnewargs__(self):
            return tuple(self)

    def _new(cls):
        """`def __new__(cls, a, b=b_): return tuple_new(cls, (a, b))`."""
        names = {"_new": tuple.__new__, **{f"_{name}_": value for name, value in cls._field_defaults.items()}}
        taken = [f"{name}=_{name}_" if name in cls._field_defaults else name for name in cls._fields]
        values = "".join(f"{name}," for name in cls._fields)
        text = f"def __new__({', '.join(['_cls', *taken])}): return _new(_cls, ({values}))"
        exec(text, names)
        made = names["__new__"]
        made.__qualname__ = f"{cls.__qualname__}.__new__"
        return made
