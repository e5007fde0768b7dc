"""How a field of a job is declared: its knob rides in the dataclass field's metadata.

Readers, flags, messages and docs/defaults.md are made from these, so a new field is one declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from tunecast import records
from tunecast.job.knob import Kind, Knob, Origin, Problem, Wrong, raise_if_any

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


def field(default: Any, origin: Origin, help: str, **more: Any) -> Any:
    """A dataclass field and what its knob has beside what its annotation says; `REQUIRED` for one without a default."""
    if origin.value is AS_HERE:
        origin = origin._replace(value=default)
    told = {"default": default, "origin": origin, "help": help, **more}
    return records.field(default=default, metadata={"knob": told})


def section(of: type[Section], help: str) -> Any:
    """A field of a job that holds fields of its own."""
    return records.field(default_factory=of, metadata={"section": of, "help": help})


class Section:
    """A part of a job. Its values are read as a file's would be, so one made in Python is as sound."""

    def __post_init__(self) -> None:
        self._read_fields(f"{type(self).__name__.lower()}.")

    def _read_fields(self, prefix: str) -> None:
        problems = []
        for name, knob in knobs_of(type(self)).items():
            try:
                object.__setattr__(self, name, knob.read(getattr(self, name)))
            except Wrong as wrong:
                problems.append(Problem(prefix + name, str(wrong)))
        raise_if_any(problems)


KINDS: Mapping[str, Kind] = {
    **{"bool": "bool", "int": "int", "float": "float", "str": "text", "str | int": "id"},
    **{"tuple[str, ...]": "names", "str | tuple[str, ...]": "names"},
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
