"""What programs read: values whose JSON has the names of their attributes.

`Result` is the one place where JSON is assembled. A class lists in `KEYS` which attributes its JSON has (default: all
its fields), so `plan.picks["cheapest"].total_usd` and `.picks.cheapest.total_usd` of `tunecast plan --json` are one
thing and cannot drift apart.

A notebook shows a value by `_repr_html_`. What it draws lives in `tunecast.report`, far above the rooms the values live
in; the import by name below is the one place that reaches up, and it happens when a notebook asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar, cast

DRAWN_BY = "tunecast.report.page.notebook"


class Result:
    """A frozen value with `to_dict()`, which is what the command prints with `--json`."""

    KEYS: ClassVar[tuple[str, ...]] = ()
    """Attributes that the JSON has, in its order; empty: every field."""
    FROM: ClassVar[Mapping[str, str]] = {}
    """Where the JSON has less than the attribute of its name: the attribute that it takes instead."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        names: tuple[str, ...] = self.KEYS or getattr(self, "__match_args__", ())
        return {name: json_value(getattr(self, self.FROM.get(name, name))) for name in names}

    def _repr_html_(self) -> str:
        return notebook_html(self)


T = TypeVar("T")


class Alias(Generic[T]):
    """An attribute under another name, or one of an attribute's: `likely.model`; None where there is none to ask."""

    def __init__(self, path: str) -> None:
        self._names = path.split(".")

    def __get__(self, of: Any, owner: type) -> T:
        for name in self._names:
            of = None if of is None else getattr(of, name)
        return cast(T, of)


def notebook_html(value: object) -> str:
    """As a notebook shows it."""
    from importlib import import_module

    html: str = import_module(DRAWN_BY).html(value)
    return html


def json_value(value: Any) -> Any:
    """As `json` writes it, all the way down: records and named tuples by their fields, other tuples as lists."""
    if value is None or isinstance(value, str) or value.__class__ in (bool, int, float):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.name.lower()
    if hasattr(value, "isoformat"):
        return value.isoformat(timespec="seconds") if hasattr(value, "hour") else value.isoformat()
    if isinstance(value, Mapping):
        return {name: json_value(each) for name, each in value.items()}
    if hasattr(value, "_asdict"):
        return {name: json_value(each) for name, each in value._asdict().items()}
    if isinstance(value, (tuple, list)):
        return [json_value(each) for each in value]
    return json_fields(value) if hasattr(value, "__match_args__") else value


def json_fields(record: Any, names: Iterable[str] = ()) -> dict[str, Any]:
    """Of a record; without `names` all its fields."""
    return {name: json_value(getattr(record, name)) for name in names or record.__match_args__}
