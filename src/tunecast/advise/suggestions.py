"""Jobs like the one that was predicted, tried for whoever reads the answer: changes that free memory, and other values
of what was not given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tunecast.advise.changes import Change, changes_tried, least_capacity
from tunecast.advise.unstated import Effect, Spent, Taken, effects, taken, without_price, worth_telling
from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Verdict
from tunecast.records import NamedTuple, replace

MOST = 4
FEW = 3
"""Changes to a job that fits anyway."""
ROOMY = 0.5
"""Of what PyTorch can use: nobody looks for more who needs less than this."""
WORTHWHILE_FRACTION = 0.01
"""Of what the job holds: a change that frees less is not worth a line, unless it makes the job fit."""


class Suggestions(NamedTuple):
    """What goes with an answer. Nothing of it is needed for the answer itself."""

    changes: Sequence[Change] = ()
    """Those that help most."""
    unstated: Sequence[Taken] = ()
    """What the job does not say."""
    effects: Sequence[Effect] = ()
    """What other values of that would do, where it is worth telling."""


NO_SUGGESTIONS = Suggestions()


def suggestions_for(
    prediction: Prediction, *, tick: Callable[[], None], spent: Callable[[Prediction], Spent] = without_price,
    even_if_roomy: bool = True,
) -> Suggestions:  # fmt: skip
    """`tick` is called before each prediction; `spent` says what a whole job takes and costs. `even_if_roomy`: changes
    that free memory are tried where nobody needs more, too."""
    trials, unstated = SimilarJobs(prediction, tick), taken(prediction.job, prediction.model.model_type)
    changes: Sequence[Change] = ()
    if even_if_roomy or not is_roomy(prediction):
        with contextlib.suppress(TunecastError):
            changes = _best_changes(prediction, trials)
    try:
        found = effects(prediction, unstated, partial(trials.predict, timed=True), spent)
    except TunecastError:
        found = []
    return Suggestions(changes, unstated, worth_telling(found, prediction))


def is_roomy(prediction: Prediction) -> bool:
    on_card = prediction.on_card
    return on_card.verdict == "fits" and on_card.room.needs_bytes < ROOMY * on_card.capacity_bytes


class SimilarJobs:
    """Each job is asked for once."""

    def __init__(self, prediction: Prediction, tick: Callable[[], None]) -> None:
        self.like, self.tick = prediction, tick
        self._known: dict[tuple[Job, bool], Prediction] = {}

    def predict(self, job: Job, *, timed: bool = False) -> Prediction:
        # what was built for the job serves one of other sizes, and then its time costs nothing
        resized = is_resized(job, self.like.job)
        timed = timed or resized
        known = self._known.get((job, True)) or self._known.get((job, timed))
        if known is None:
            self.tick()
            known = engines.predict(job, engine=self.like.engine, timed=timed, once=not resized)
            self._known[job, timed] = known
        return known


def is_resized(job: Job, of: Job) -> bool:
    """Whether it runs the same program, with other sizes."""
    lora = replace(job.lora, rank=of.lora.rank, alpha=of.lora.alpha)
    return replace(job, allocator=of.allocator, seq_len=of.seq_len, lora=lora) == of


def _best_changes(prediction: Prediction, trials: SimilarJobs) -> list[Change]:
    tried = changes_tried(prediction.job, prediction, trials.predict)
    verdict = prediction.on_card.verdict
    return best_of(tried, least_capacity(prediction), verdict, most=FEW if verdict == "fits" else MOST)


def best_of(changes: Iterable[Change], held_bytes: int, verdict: Verdict, most: int = MOST) -> list[Change]:
    """The first that matter of changes in the order of their worth, one of each group: the others are its rivals."""
    best: dict[str, Change] = {}
    for change in changes:
        helps = verdict != "fits" and change.verdict == "fits"
        if change.saves_bytes >= held_bytes * WORTHWHILE_FRACTION or helps:
            best.setdefault(change.group or next(iter(change.overrides)), change)
    return list(best.values())[:most]
