"""Jobs like the one that was predicted, tried for whoever reads the answer: changes that free memory, other values of
what was not given, and what the machines cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tunecast.cli.asking import QUIET_S
from tunecast.cli.terminal import Progress
from tunecast.job.job import Job
from tunecast.predict import engines
from tunecast.predict.changes import Change, changes_tried, least_capacity
from tunecast.predict.prediction import Predicted
from tunecast.predict.taken import Effect, Spent, Taken, effects, has_data, taken, without_price, worth_telling
from tunecast.records import replace
from tunecast.report.advice import MOST, best_of
from tunecast.tape.build.shapes import only_numbers

if TYPE_CHECKING:
    from tunecast.plan.price import Rent

FEW = 3
"""Changes to a job that fits anyway."""


class Tried(NamedTuple):
    """What goes with an answer. Nothing of it is needed for the answer itself."""

    changes: Sequence[Change] = ()
    """Those that help most."""
    taken: Sequence[Taken] = ()
    """What the job does not say."""
    effects: Sequence[Effect] = ()
    """What other values of that would do, where it is worth telling."""
    rent: Rent | None = None
    """The machines of the whole run."""


NOTHING = Tried()


class Trials:
    """Each job is asked for once."""

    def __init__(self, done: Predicted, engine: str) -> None:
        self.done, self.engine = done, engine
        self._known: dict[tuple[Job, bool], Predicted] = {}

    def predict(self, job: Job, *, timed: bool = False) -> Predicted:
        # what was built for the job serves one of other sizes, and then its time costs nothing
        resized = is_resized(job, self.done.job)
        timed = timed or resized
        known = self._known.get((job, True)) or self._known.get((job, timed))
        if known is None:
            with nullcontext() if resized else only_numbers():
                known = engines.predicted(job, engine=self.engine, timed=timed)
            self._known[job, timed] = known
        return known


def try_around(done: Predicted, engine: str, place: str) -> Tried:
    """`place`: which of several jobs it is, for the line that counts seconds."""
    from tunecast.cli.predict import extra

    trials, name = Trials(done, engine), f"{done.job.id or done.job.model}{place}"
    timed = done.prediction.time is not None
    return Tried(
        extra("changes to the job", lambda: changes_worth(done, trials, name)) or (),
        taken(done.job),
        extra("what was not given", lambda: effects_worth(done, trials, name)) or (),
        extra("what it costs", lambda: rent_of_run(done)) if timed else None,
    )


def changes_worth(done: Predicted, trials: Trials, name: str) -> list[Change]:
    """The changes that help most, each predicted."""
    with Progress(f"trying changes to {name}") as progress:
        tried = changes_tried(done.job, done, counting(trials.predict, progress))
    verdict = done.held.verdict
    return best_of(tried, least_capacity(done), verdict, most=FEW if verdict == "fits" else MOST)


def effects_worth(done: Predicted, trials: Trials, name: str) -> list[Effect]:
    with Progress(f"trying what {name} does not say") as progress:
        predict = counting(partial(trials.predict, timed=True), progress)
        return worth_telling(effects(done, taken(done.job), predict, spent_on_run), done)


def rent_of_run(done: Predicted) -> Rent | None:
    from tunecast.plan.price import rent_of

    return rent_of(done, date.today()) if has_data(done.job) else None


def spent_on_run(done: Predicted) -> Spent:
    rent = rent_of_run(done)
    return without_price(done)._replace(usd=None if rent is None else rent.total_usd)


def counting(predict: Callable[[Job], Predicted], progress: Progress) -> Callable[[Job], Predicted]:
    """The same with the seconds on stderr, where it takes some."""
    began_s = time.monotonic()

    def asked(job: Job) -> Predicted:
        passed_s = time.monotonic() - began_s
        if passed_s >= QUIET_S:
            progress(passed_s)
        return predict(job)

    return asked


def is_resized(job: Job, of: Job) -> bool:
    """Whether it runs the same program, with other sizes."""
    lora = replace(job.lora, rank=of.lora.rank, alpha=of.lora.alpha)
    return replace(job, allocator=of.allocator, seq_len=of.seq_len, lora=lora) == of
