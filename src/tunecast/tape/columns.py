"""A program's columns, of 100,000 rows and more: by C where that was compiled, else here.

`prediction/native/__init__.py` has the C code and hands it over (`by`), since nothing here may look that way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any

from tunecast.records import NamedTuple

FREE = -1
"""In the column of sizes: a row that frees. What is less is a mark, what is not asks for so many bytes."""

_code: Any = None


def by(code: Any) -> None:
    """A module with `shifted`, `gathered`, `marks` and `lives`; None: none."""
    global _code
    _code = code


class Lives(NamedTuple):
    twice: bool
    """Whether a block is freed a second time."""
    left: list[list[int]]
    """Of each step, the blocks of it that the next one frees, in the order they were made."""
    closed: list[bool]
    """Of each step, whether all that it makes is freed."""


def numbers(column: Sequence[int]) -> array[int]:
    return column if isinstance(column, array) else array("q", column)


def shifted(starts: Sequence[int], origins: array[int], places: array[int]) -> array[int]:
    """Of each row its place among those of its origin, and where these start."""
    if _code is None:
        return array("q", [starts[origin] + place for origin, place in zip(origins, places, strict=True)])
    return array("q", _code.shifted(array("q", starts), origins, places))


def gathered(values: Sequence[int], places: array[int]) -> Sequence[int]:
    """The value of each row; a negative place is from their end."""
    try:
        known = array("q", values)
    except OverflowError:  # no column of 64 bits
        return [values[place] for place in places]
    return array("q", [known[place] for place in places] if _code is None else _code.gathered(known, places))


def marks(sizes: Sequence[int]) -> Sequence[int]:
    """The rows that neither ask for anything nor free it."""
    if _code is None or not isinstance(sizes, array):
        return [row for row, size in enumerate(sizes) if size < FREE]
    return array("q", _code.marks(sizes))


def lives(blocks: Sequence[int], sizes: Sequence[int], bounds: Sequence[int], names: int) -> Lives:
    """Of blocks that are numbered from 0 to less than `names`; a step lies between two bounds. Where one is freed twice
    the rest says nothing."""
    if _code is None:
        return _lives(blocks, sizes, bounds)
    twice, left, closed = _code.lives(numbers(blocks), numbers(sizes), numbers(bounds), names)
    return Lives(twice, [list(array("q", each)) for each in left], closed)


def _lives(blocks: Sequence[int], sizes: Sequence[int], bounds: Sequence[int]) -> Lives:
    frees, asks = [size == FREE for size in sizes], [size >= 0 for size in sizes]
    steps = [slice(start, end) for start, end in pairwise(bounds)]
    gone = set(compress(blocks, frees))
    freed = [set(compress(blocks[step], frees[step])) for step in steps]
    made = [list(compress(blocks[step], asks[step])) for step in steps]
    pairs = zip(made, [*freed[1:], set()], strict=False)
    left = [[block for block in mine if block in after] for mine, after in pairs]
    return Lives(len(gone) < sum(frees), left, [gone.issuperset(each) for each in made])
