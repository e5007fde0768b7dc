"""A job in JSON: one object a file. `Found` is what every reader finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tunecast.errors import TunecastError, UsageError
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import MOST_FILE_BYTES, MOST_NODES, bounded_text, check_shape
from tunecast.records import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Found(NamedTuple):
    where: str
    """`jobs.jsonl line 7`: put before every message about it."""
    content: object | TunecastError


def documents(path: Path) -> Iterator[Found]:
    yield Found(str(path), parsed(bounded_text(path, MOST_FILE_BYTES), str(path)))


def parsed(
    text: str, where: str, *, non_finite: bool = False, most_values: int = MOST_NODES, one_line: bool = False
) -> Any:
    """The value a JSON text holds: no key twice, no NaN or infinity unless `non_finite`, neither deep nor vast.

    `one_line`: `where` already names the line, and the text is all of it.
    """

    def constant(name: str) -> float:
        if non_finite:
            return float(name)
        raise UsageError(f"{where}: {name} is not a JSON number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise UsageError(f"{where}: {shown(twice)} is given twice; allowed: once", field=twice[:64])
        return mapping

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except RecursionError:
        raise UsageError(f"{where}: nested too deep") from None
    except json.JSONDecodeError as error:
        place = f"{where}," if one_line else f"{where}: line {error.lineno},"
        raise UsageError(f"{place} column {error.colno}: not JSON: {error.msg}") from None
    except ValueError:  # int() refuses thousands of digits
        raise UsageError(f"{where}: a number is too long") from None
    check_shape(value, where, most_values)
    return value
