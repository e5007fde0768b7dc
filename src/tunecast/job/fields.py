"""How a field of a job is declared: its knob rides in the dataclass field's metadata.

Readers, flags, messages and docs/defaults.md are made from these, so a new field is one declaration.
"""

from __future__ import annotations

from typing import Any

from tunecast import records
from tunecast.job.knob import Kind, Knob, Origin, Problem, Wrong, raise_if_any


def trl(name: str, value: object) -> Origin:
    return Origin("TRL", name, value)


def transformers(name: str, value: object) -> Origin:
    return Origin("transformers", name, value)


def peft(name: str, value: object) -> Origin:
    return Origin("PEFT", name, value)


def accelerate(name: str, value: object) -> Origin:
    return Origin("accelerate", name, value)


OURS = Origin("tunecast")


REQUIRED: Any = records.MISSING


def field(kind: Kind, default: Any, origin: Origin, help: str, **more: Any) -> Any:
    """A dataclass field with its knob; `REQUIRED` for one without a default."""
    return records.field(default=default, metadata={"knob": Knob(kind, help, default, origin, **more)})


def release_field(package: str, example: str) -> Any:
    text = f"release of {package} whose code runs, such as {example}; null: the newest that is followed"
    return field("release", None, OURS, text, nullable=True)


class Section:
    """A part of a job. Its values are read as a file's would be, so one made in Python is as sound."""

    def _read_fields(self, prefix: str) -> None:
        problems = []
        for name, knob in knobs_of(type(self)).items():
            try:
                object.__setattr__(self, name, knob.read(getattr(self, name)))
            except Wrong as wrong:
                problems.append(Problem(prefix + name, str(wrong)))
        raise_if_any(problems)


def knobs_of(section: type) -> dict[str, Knob]:
    return {f.name: f.metadata["knob"] for f in records.fields(section) if "knob" in f.metadata}
