"""What the values a file has cost, and what others would: each is a job of its own that was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tunecast.advise.changes import with_fields
from tunecast.advise.compare import more_time
from tunecast.advise.ladder import LESS_MEMORY, LESS_TIME, Overrides, larger_micro_batches, smaller_micro_batches
from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.names import ROLLOUTS
from tunecast.job.recipes import words_for
from tunecast.job.recipes.recipe import Recipe
from tunecast.lsp.reading import OWN, Reading
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass
from tunecast.report.draw.bars import LETTERS, MEANINGS
from tunecast.report.lists.fit import time_words
from tunecast.report.run.wording import in_yaml, value_in_yaml
from tunecast.result import Result

MOST_OTHERS = 3
"""Other values of one key."""
TOGETHER = {"grad_accum": "micro_batch", "lora.alpha": "lora.rank"}
"""Fields that follow another: what they cost is said there."""


class Other(NamedTuple):
    """Other values of a key, and what comes of them."""

    words: str
    """In the words of the file: `2048`, or `micro_batch_size: 1, gradient_accumulation_steps: 8`."""
    more_bytes: int
    """Negative: what it would free."""
    more_time_fraction: float | None
    """-0.27: 27 % less time for the same tokens."""
    needs_bytes: int
    verdict: str
    time: str
    """`27 % more time`."""


@dataclass(frozen=True)
class KeyCost(Result):
    KEYS: ClassVar[tuple[str, ...]] = ("field", "others")

    field: str
    others: tuple[Other, ...]

    @property
    def frees_bytes(self) -> int:
        return max((-other.more_bytes for other in self.others), default=0)


def costs(read: Reading) -> Iterator[KeyCost]:
    """Of each field that the file says and that has other values, one after the other, those first that matter most
    often."""
    job, recipe, found = read.job, read.recipe, read.prediction
    if job is None or recipe is None or found is None:
        return
    for field, settings in fields_with_others(job, read.look.places):
        others = [other for setting in settings if (other := _other(job, recipe, found, field, setting)) is not None]
        if others:
            yield KeyCost(field, tuple(others[:MOST_OTHERS]))


def fields_with_others(job: Job, places: Mapping[str, Any]) -> Iterator[tuple[str, list[Overrides]]]:
    """Fields of the file with what they may be set to: sizes are halved and doubled, the rest as the ladder has it."""
    by_field: dict[str, list[Overrides]] = {}
    for setting in (*sizes(job), *ladder(job)):
        field = next((TOGETHER.get(name, name) for name in setting if TOGETHER.get(name, name) in places), None)
        if field is not None and setting not in by_field.setdefault(field, []):
            by_field[field].append(setting)
    yield from by_field.items()


def sizes(job: Job) -> Iterator[Overrides]:
    if job.lengths is None and job.task not in ROLLOUTS:
        yield {"seq_len": max(1, job.seq_len // 2)}
        yield {"seq_len": job.seq_len * 2}
    yield from list(smaller_micro_batches(job))[:1]
    yield from list(larger_micro_batches(job))[:1]
    if job.method != "full":
        for rank in (max(1, job.lora.rank // 2), job.lora.rank * 2):
            alpha = job.lora.alpha * rank / job.lora.rank
            yield {"lora.rank": rank, "lora.alpha": int(alpha) if alpha.is_integer() else alpha}


def ladder(job: Job) -> Iterator[Overrides]:
    """What may be switched on, mildest first, and back: recomputation costs time."""
    if job.gradient_checkpointing:
        yield {"gradient_checkpointing": False}
    for rung in (*LESS_MEMORY, *LESS_TIME):
        if rung.group not in ("seq_len", "micro_batch", "rank") and (setting := rung.mildest(job)) is not None:
            yield setting


def _other(job: Job, recipe: Recipe, found: Prediction, field: str, setting: Overrides) -> Other | None:
    """None where there is no such job."""
    try:
        done = engines.predict(with_fields(job, setting), engine=found.engine)
        needs_bytes = done.smallest_capacity_bytes
        more_bytes = needs_bytes - found.smallest_capacity_bytes
        slower = more_time(found, done)
        words = setting_words(recipe, field, setting)
        return Other(words, more_bytes, slower, needs_bytes, done.on_card.verdict, time_words(slower))
    except TunecastError:
        return None


def setting_words(recipe: Recipe, field: str, setting: Overrides) -> str:
    """The value alone where it is that of the key it stands beside; else with the keys that say it."""
    words: dict[str, object] = {}
    for name, value in setting.items():
        spelled = {name: value} if recipe.framework == OWN else words_for(recipe, name, value)
        words |= {name: value} if spelled is None else spelled
    place = recipe.places.get(field)
    if place is not None and set(words) == {place.key}:
        return value_in_yaml(words[place.key])
    return in_yaml(words)


def breakdown(found: Prediction) -> list[tuple[str, int]]:
    """What lies on the card at the peak, the largest first."""
    parts = found.memory.breakdown_bytes
    named = ((MEANINGS.get(LETTERS.get(name, ""), name), nbytes) for name, nbytes in parts.items() if nbytes)
    return sorted(named, key=lambda part: -part[1])
