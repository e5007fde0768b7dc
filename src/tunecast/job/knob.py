"""A knob: one field of a job. What it may hold, whose default it has, how it is declared and read.

The same `Knob.read` serves a value from YAML, from JSON, from a flag (text) and from Python, so that a job means
the same however it was written. A wrong value raises `Wrong`, which says what is allowed and what comes nearest.

A knob rides in its dataclass field's metadata. Readers, flags, messages and docs/defaults.md are made from these, so a
new field is one declaration.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from tunecast import records
from tunecast.errors import UsageError, nearest
from tunecast.job.names import SAME
from tunecast.records import NamedTuple, dataclass
from tunecast.units import bytes_from

Kind = Literal[
    "bool", "int", "int or choice", "float", "text", "choice", "names", "ints", "ints or text", "id", "bytes",
    "release",
]  # fmt: skip

LONGEST_TEXT = 4096
LONGEST_LIST = 100_000

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBERS = re.compile(r"[0-9 ]+(?:,[0-9 ]+)*")
_RELEASE = re.compile(r"\d{1,6}(\.\d{1,6}){0,4}([+.]?[a-z][+.a-z0-9]{0,30})?", re.ASCII)
_SHORT_SIZE = re.compile(r"[0-9.]{1,15}[kKmMgGtT]")
_NAME = re.compile(r"!?[A-Za-z_*][A-Za-z0-9_.*\-]{0,255}")
_NULLS = frozenset({"null", "none", "~"})
BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
"""As YAML, shells and transformers' HfArgumentParser spell them."""
_SCALED = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kKmMbBgGtT])")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:[,_][0-9]{3})+")
_POWERS = {"k": 1, "m": 2, "b": 3, "g": 3, "t": 4}


class Origin(NamedTuple):
    """Whose default a default is: the package, the name it has there, and the value that stands there."""

    package: str
    name: str = ""
    value: object = None


class Problem(NamedTuple):
    """What is wrong with one field. Several are told at once, a line each."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Wrong(ValueError):
    """A value a knob cannot hold; its text says what is allowed and the nearest right value."""


@dataclass(frozen=True)
class Knob:
    kind: Kind
    help: str
    default: Any
    origin: Origin
    choices: tuple[str, ...] = ()
    """Of a `choice`: all it may be. Of `names`: the words that stand for a set of names. Of an `int or choice`: the
    words it may be instead of a number."""
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False
    """`low` itself is not allowed."""
    nullable: bool = False
    null_is: Any = None
    """What null stands for, where that is a value of the field's own kind."""
    aka: tuple[str, ...] = ()
    """What other tools call it, with the same values: flags, --set and --to take these names too; files are told."""
    kilo: int = 0
    """What k stands for: 1024 of lengths (4k is 4096), 1000 of amounts (20M samples); 0 where none does."""
    flag: str = ""
    """Of the command line, where the field's own name would not do."""

    def allowed(self) -> str:
        what = {
            "bool": "true or false",
            "int": f"a whole number from {_number(self.low)} to {_number(self.high)}",
            "int or choice": (
                f"a whole number from {_number(self.low)} to {_number(self.high)}, {', '.join(self.choices)}"
            ),
            "bytes": f"bytes from {_number(self.low)} to {_number(self.high)}, or a size such as 2GiB or 2GB",
            "float": f"a number {'above' if self.above_low else 'from'} {_number(self.low)} to {_number(self.high)}",
            "text": f"text of 1 to {LONGEST_TEXT} printable characters",
            "id": "text or a whole number",
            "release": 'a release such as 5.17.0, in a file in quotes ("5.20" without is the number 5.2)',
            "choice": ", ".join(self.choices),
            "names": ", ".join((*self.choices, "a list of names")) if self.default is None else self._list_of_choices(),
            "ints": f"a list of whole numbers from {_number(self.low)} to {_number(self.high)}",
            "ints or text": f"a list of whole numbers from {_number(self.low)} to {_number(self.high)}, or text",
        }[self.kind]
        return f"{what} or null" if self.nullable else what

    def _list_of_choices(self) -> str:
        return f"a list of any of {', '.join(self.choices)}"

    def read(self, given: object) -> Any:
        """The value the field holds when this was given. Raises `Wrong`."""
        if given is None or (isinstance(given, str) and given.lower() in _NULLS and given not in self.choices):
            if self.nullable or self.null_is is not None:
                return self.null_is
            raise self._wrong(given)
        return _READERS[self.kind](self, given)

    def _wrong(self, given: object, near: str | None = None) -> Wrong:
        hint = f"; nearest: {near}" if near is not None else ""
        return Wrong(f"got {shown(given)}; allowed: {self.allowed()}{hint}")

    def _bool(self, given: object) -> bool:
        if isinstance(given, bool):
            return given
        text = given.strip().lower() if isinstance(given, str) else shown(given)
        if isinstance(given, (str, int)) and text in BOOLS:
            return BOOLS[text]
        raise self._wrong(given, nearest(text[:64], ("true", "false")))

    def _int(self, given: object) -> int:
        number = _whole(given)
        if number is None and isinstance(given, str):
            number = _scaled(given[:64].strip(), self.kilo)
        if number is None:
            raise self._wrong(given, _rounded(given, self.low, self.high))
        return int(self._bounded(given, number))

    def _int_or_choice(self, given: object) -> int | str:
        word = self._word(given)
        return self._int(given) if word is None else word

    def _bytes(self, given: object) -> int:
        size = bytes_from(given) if isinstance(given, str) and len(given) <= 64 else None
        number = _whole(given) if size is None else size
        if number is None:
            near = f"{given.strip()}iB" if isinstance(given, str) and _SHORT_SIZE.fullmatch(given.strip()) else None
            raise self._wrong(given, near)
        return int(self._bounded(given, number))

    def _float(self, given: object) -> float:
        number = _real(given)
        if number is None:
            raise self._wrong(given)
        return float(self._bounded(given, number))

    def _bounded(self, given: object, number: float) -> float:
        if number < self.low or (self.above_low and number == self.low):
            raise self._wrong(given, None if self.above_low else _number(self.low))
        if number > self.high:
            raise self._wrong(given, _number(self.high))
        return number

    def _text(self, given: object) -> str:
        if not isinstance(given, str) or not 0 < len(given) <= LONGEST_TEXT or not given.isprintable():
            raise self._wrong(given)
        if not given.strip():
            raise self._wrong(given)
        return given

    def _release(self, given: object) -> str:
        if not isinstance(given, str) or not _RELEASE.fullmatch(given):
            raise self._wrong(given)
        return given

    def _id(self, given: object) -> str | int:
        if isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63:
            return given
        return self._text(given)

    def _choice(self, given: object) -> str:
        word = self._word(given)
        if word is not None:
            return word
        raise self._wrong(given, nearest(shown(given).strip("'"), self.choices))

    def _word(self, given: object) -> str | None:
        """One of the choices, in any case, with - or _, or by another name of `SAME`."""
        if not isinstance(given, str):
            return None
        if given in self.choices:
            return given
        spelled = given.strip().lower().replace("-", "_").removeprefix("torch.")
        named = SAME.get(spelled, spelled)
        return next((choice for choice in self.choices if choice.replace("-", "_") in (spelled, named)), None)

    def _names(self, given: object) -> str | tuple[str, ...]:
        """Names in a list, or separated by commas as in a flag, or (where null is the default) one of the words."""
        closed = self.default is not None
        if isinstance(given, str):
            word = self._word(given)
            if not closed and word is not None:
                return word
            near = nearest(given[:64], self.choices)
            if not closed and "," not in given and near is not None:
                raise self._wrong(given, near)
            given = [part.strip() for part in given.split(",")] if given.strip() else []
        names = [(self._word(name) if closed else None) or name for name in self._listed(given)]
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self._wrong(name)
            if closed and name not in self.choices:
                raise self._wrong(name, nearest(name, self.choices))
        if not names and not closed:
            raise self._wrong(given)
        return tuple(dict.fromkeys(names))

    def _ints(self, given: object) -> tuple[int, ...]:
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",")]
        numbers = self._listed(given)
        if not numbers:
            raise self._wrong(given)
        return tuple(self._int(number) for number in numbers)

    def _ints_or_text(self, given: object) -> tuple[int, ...] | str:
        """Numbers in a list, or separated by commas as in a flag; anything else is text."""
        if isinstance(given, str) and not _NUMBERS.fullmatch(given):
            return self._text(given)
        return self._ints(given)

    def _listed(self, given: object) -> Sequence[Any]:
        if not isinstance(given, (list, tuple)):
            raise self._wrong(given)
        if len(given) > LONGEST_LIST:
            raise Wrong(f"got a list of {len(given)}; allowed: at most {LONGEST_LIST}")
        return given


_READERS = {
    "bool": Knob._bool,
    "int": Knob._int,
    "int or choice": Knob._int_or_choice,
    "bytes": Knob._bytes,
    "float": Knob._float,
    "text": Knob._text,
    "id": Knob._id,
    "release": Knob._release,
    "choice": Knob._choice,
    "names": Knob._names,
    "ints": Knob._ints,
    "ints or text": Knob._ints_or_text,
}


def raise_if_any(problems: Iterable[Problem]) -> None:
    """One `UsageError` that tells every problem, a line each, and names the first field."""
    found = list(problems)
    if found:
        raise UsageError("\n".join(str(problem) for problem in found), field=found[0].field)


def shown(value: object) -> str:
    """A value as a message may show it: as YAML would write it, short, with nothing a terminal would act on."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= 64 else value[:61] + "...")
    try:
        return _SHORT.repr(value)
    except Exception:  # an integer too long to print, or an object whose repr fails: its type is enough
        return f"a value of type {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 4
_SHORT.maxlevel = 2


def _number(value: float) -> str:
    return f"{int(value)}" if math.isfinite(value) and value == int(value) else f"{value}"


def _real(given: object) -> float | None:
    """The finite number given, also as text: PyYAML reads 1e-4 as text."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    if isinstance(given, str) and len(given) > 64:
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(given: object) -> int | None:
    """The whole number given, also as text or as 2048.0 or 2e7 (exact below 2**53)."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        return int(given)
    number = _real(given)
    if number is None or not number.is_integer() or abs(number) >= 2**53:
        return None
    return int(number)


def _scaled(text: str, kilo: int) -> int | None:
    """`4k`, `1.5B` (`kilo` says what k is), `20,000`: a whole number, None where it is none."""
    if _THOUSANDS.fullmatch(text):
        return int(text.replace(",", "").replace("_", ""))
    found = _SCALED.fullmatch(text) if kilo else None
    if found is None:
        return None
    number = float(found[1]) * kilo ** _POWERS[found[2].lower()]
    return int(number) if number.is_integer() and number < 2**53 else None


def _rounded(given: object, low: float, high: float) -> str | None:
    number = _real(given)
    if number is None:
        return None
    return _number(min(max(round(number), low), high))


AS_HERE: Any = object()
"""Of an origin: the value that stands there is the field's own default."""


def trl(name: str, value: object = AS_HERE) -> Origin:
    return Origin("TRL", name, value)


def transformers(name: str, value: object = AS_HERE) -> Origin:
    return Origin("transformers", name, value)


def peft(name: str, value: object = AS_HERE) -> Origin:
    return Origin("PEFT", name, value)


def accelerate(name: str, value: object = AS_HERE) -> Origin:
    return Origin("accelerate", name, value)


OURS = Origin("tunecast")


REQUIRED: Any = records.MISSING


def field(
    default: Any, origin: Origin, help: str, *, within: tuple[float, float] = (-math.inf, math.inf), aka: str = "",
    **more: Any,
) -> Any:  # fmt: skip
    """A dataclass field and what its knob has beside what its annotation says; `REQUIRED` for one without a default.
    `within`: the least and the most of a number; `aka`: what other tools call it, a word each."""
    origin = origin._replace(value=default) if origin.value is AS_HERE else origin
    told = {"default": default, "origin": origin, "help": help, "low": within[0], "high": within[1], **more}
    return records.field(default=default, metadata={"knob": told | {"aka": tuple(aka.split())}})


def release_field(package: str, example: str) -> Any:
    text = f"release of {package}, such as {example}; null: the one followed for the stack"
    return field(None, OURS, text, kind="release")


def section(of: type[Section], help: str) -> Any:
    """A field of a job that holds fields of its own."""
    return records.field(default_factory=of, metadata={"section": of, "help": help})


class Section:
    """A part of a job. Its values are read as a file's would be, so one made in Python is as sound."""

    within: ClassVar[str] = ""
    """The section it is a part of."""

    def __post_init__(self) -> None:
        self._read_fields(f"{self.within}{type(self).__name__.lower()}.")

    def _read_fields(self, prefix: str) -> None:
        kind: type = type(self)
        problems = []
        for name, knob in knobs_of(kind).items():
            try:
                object.__setattr__(self, name, knob.read(getattr(self, name)))
            except Wrong as wrong:
                problems.append(Problem(prefix + name, str(wrong)))
        raise_if_any(problems)


KINDS: Mapping[str, Kind] = {
    **{"bool": "bool", "int": "int", "float": "float", "str": "text", "str | int": "id"},
    **{"int | str": "int or choice", "tuple[str, ...]": "names", "str | tuple[str, ...]": "names"},
    **{"tuple[int, ...]": "ints", "tuple[int, ...] | str": "ints or text"},
}
"""What a field's annotation says of its knob; text of which there are only some is a choice."""


@cache
def knobs_of(section: type) -> Mapping[str, Knob]:
    """Every field that is read, by name."""
    told = {f.name: f.metadata["knob"] for f in records.fields(section) if "knob" in f.metadata}
    return {name: _knob(str(section.__annotations__[name]), more) for name, more in told.items()}


def _knob(annotation: str, more: Mapping[str, Any]) -> Knob:
    plain = annotation.removesuffix(" | None")
    kind = "choice" if plain == "str" and "choices" in more else KINDS[plain]
    return Knob(**{"kind": kind, "nullable": plain != annotation, **more})
