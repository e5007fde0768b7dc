"""One cache for a planner: what was found, by a key that names what it depends on.

A key is a small named tuple, one class for each question, so that a field more in a recipe or a spread cannot change
unnoticed what is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tunecast.planning.recipe import Recipe
from tunecast.planning.space import Rig, Setting, Split, Spread
from tunecast.records import NamedTuple

Answer = TypeVar("Answer")
MOST_FOLDS = 8
"""Kept at a time: a setting is priced and replayed at once, and its builder keeps the structure behind it."""


class EpochOf(NamedTuple):
    ranks: int
    split: Split


class FrameOf(NamedTuple):
    base: Recipe
    kernels: tuple[str, ...]
    data: str
    light: int
    ranks: int
    split: Split
    cards: tuple[int, int]


class OutsideOf(NamedTuple):
    base: Recipe
    data: str
    light: int
    cards: tuple[int, int]


class RamOf(NamedTuple):
    base: Recipe
    spread: Spread
    gpus: int
    nodes: int


class TensorsOf(NamedTuple):
    base: Recipe
    is_zero: bool


class WorkOf(NamedTuple):
    work: Recipe
    micro_batch: int
    length: int
    is_cast: bool


class FloorOf(NamedTuple):
    gpu: str
    work: Recipe
    micro_batch: int
    length: int
    spread: Spread
    is_cast: bool


class EndOf(NamedTuple):
    gpu: str
    base: Recipe
    data: str
    cards: int


class AloneOf(NamedTuple):
    recipe: Recipe
    micro_batch: int
    is_cast: bool


class SentOf(NamedTuple):
    base: Recipe
    rig: Rig
    spread: Spread


class LikeCards(NamedTuple):
    """What decides a tape of the cards it runs on: how many, and what torch's kernels ask of one."""

    shape: tuple[int, ...]
    compute_capability: tuple[int, int]
    sm_count: int | None
    memory_bytes: int
    autocast: str | None


class FoldOf(NamedTuple):
    setting: Setting
    length: int | tuple[int, ...]
    cards: LikeCards


class OwnRunOf(NamedTuple):
    setting: Setting
    cards: LikeCards


class StepTimesOf(NamedTuple):
    rig: Rig
    setting: Setting


class EvaluationOf(NamedTuple):
    rig: Rig
    recipe: Recipe
    spread: Spread


class Memo:
    def __init__(self) -> None:
        self._answers: dict[
            type, dict[tuple[Any, ...], Any]
        ] = {}  # by question, for tuples of two classes may be equal

    def get(self, key: tuple[Any, ...], compute: Callable[[], Answer], most: int | None = None) -> Answer:
        """`most`: so many answers to this question are kept at a time."""
        kind = type(key)
        known = self._answers.get(kind)
        if known is None:
            known = self._answers[kind] = {}
        if key in known:
            answer: Answer = known[key]
            return answer
        while most is not None and len(known) >= most:
            del known[next(iter(known))]
        found = known[key] = compute()
        return found
