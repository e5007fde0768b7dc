"""The smallest sets of changes after which a job fits. Memory only: what is found is then predicted in full (`fit.py`).

    greedy    one rung after the other, the most frugal of each group, until it fits: says whether any set does, and
              once nothing superfluous is left in it, how small a set has to be to be better
    exact     all single changes, then all pairs; of triples those that extend the most frugal pairs

Ignored  sets that fit although the greedy climb over the whole ladder does not, and triples beyond those tried. What
         comes in degrees (micro_batch) is tried at its strongest, then as mild as it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import Harm, Overrides, Rung
from tunecast.errors import NotResolved, UsageError
from tunecast.job.job import Job
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple

PAIRS_EXTENDED = 6
ALLOCATOR = "allocator"
"""Of rungs that only cut memory up better: they make no run smaller, but may be the little that is missing."""
MOST_FOUND = 8


class Option(NamedTuple):
    """A rung at one of its settings."""

    rung: Rung
    overrides: Overrides


Options = tuple[Option, ...]


def overrides_of(options: Iterable[Option]) -> dict[str, object]:
    return {field: value for option in options for field, value in option.overrides.items()}


class Trials:
    """Jobs are values: each is asked for once. A job that cannot be (a kernel its model has not) is None."""

    def __init__(self, job: Job, predict: Callable[[Job], Prediction]) -> None:
        self.job = job
        self._predict = predict
        self._known: dict[tuple[tuple[str, str], ...], Prediction | None] = {}

    @property
    def asked(self) -> int:
        return len(self._known)

    def with_options(self, options: Options) -> Prediction | None:
        overrides = overrides_of(options)
        key = tuple(sorted((field, str(value)) for field, value in overrides.items()))
        if key not in self._known:
            try:
                self._known[key] = self._predict(with_fields(self.job, overrides) if overrides else self.job)
            except (UsageError, NotResolved):
                self._known[key] = None
        return self._known[key]

    def need(self, options: Options) -> int | None:
        """By which frugality is compared: what the run reserves where nothing limits it. One replay; that of expandable
        segments takes seconds, and tells the same."""
        done = self.with_options(tuple(option for option in options if option.rung.group != ALLOCATOR))
        return None if done is None else done.on_card.unlimited.reserved_bytes

    def fits(self, options: Options) -> bool:
        done = self.with_options(options)
        return done is not None and done.on_card.fits

    def fits_surely(self, options: Options) -> bool:
        done = self.with_options(options)
        return done is not None and done.on_card.room.surely


def strongest(job: Job, rungs: Iterable[Rung]) -> list[Option]:
    return [Option(rung, settings[-1]) for rung in rungs if (settings := list(rung.settings(job)))]


def smallest_sets(trials: Trials, rungs: Sequence[Rung], ok: Callable[[Options], bool]) -> list[Options]:
    """Sets of the smallest size that was found; none where nothing fits."""
    if ok(()):
        return [()]
    options = strongest(trials.job, rungs)
    climbed = most_frugal(trials, options, ok)
    if not ok(climbed):
        return []
    enough = tuple(sorted(_without_superfluous(climbed, ok), key=options.index))
    found = [enough]
    for size in range(1, min(len(enough), 3) + 1):
        fitting = [each for each in _sets(trials, options, size) if ok(each)]
        if fitting:
            found = fitting if enough in fitting or size < len(enough) else [enough, *fitting]
            break
    # A set with another allocator takes seconds to predict in full, and no time of a step away: it comes where nothing
    # else does.
    with_it = [each for each in found if any(option.rung.group == ALLOCATOR for option in each)]
    rest = [each for each in found if each not in with_it] or with_it
    return [milder(trials.job, each, ok) for each in rest[:MOST_FOUND]]


def most_frugal(trials: Trials, options: Sequence[Option], ok: Callable[[Options], bool] = lambda _: False) -> Options:
    """Group after group the option that needs least, as long as it is not enough. The group that saves most by itself
    comes first: what does not go together with it (a kernel on weights that are cut) must not be in its way."""
    taken: Options = ()
    need = trials.need(taken)
    alone: dict[str, float] = {}
    for option in options:
        found = trials.need((option,))
        least = float("inf") if found is None else found
        alone[option.rung.group] = min(alone.get(option.rung.group, least), least)
    for group in sorted(alone, key=lambda name: alone[name]):
        best = taken
        for option in (each for each in options if each.rung.group == group):
            tried = trials.need((*taken, option))
            if tried is not None and (need is None or tried < need):
                best, need = (*taken, option), tried
        taken = best
        if taken and ok(taken):
            return taken
    for option in (each for each in options if each.rung.group == ALLOCATOR):
        if ok((*taken, option)):
            return (*taken, option)
    return taken


def milder(job: Job, options: Options, ok: Callable[[Options], bool]) -> Options:
    """Each change no stronger than it has to be."""
    for index, option in enumerate(options):
        for setting in option.rung.settings(job):
            other = (*options[:index], Option(option.rung, setting), *options[index + 1 :])
            if setting == option.overrides or ok(other):
                options = other
                break
    return options


def _without_superfluous(options: Options, ok: Callable[[Options], bool]) -> Options:
    for option in sorted(options, key=lambda each: -each.rung.harm):
        others = tuple(each for each in options if each is not option)
        if ok(others):
            options = others
    return options


def _sets(trials: Trials, options: Sequence[Option], size: int) -> Iterator[Options]:
    """Of options of different groups, in the ladder's order."""
    if size < 3:
        for each in combinations(options, size):
            if len({option.rung.group for option in each}) == size:
                yield each
        return
    needs = [(need, pair) for pair in _sets(trials, options, 2) if (need := trials.need(pair)) is not None]
    seen: set[frozenset[int]] = set()
    for _, pair in sorted(needs, key=lambda each: each[0])[:PAIRS_EXTENDED]:
        for option in options:
            each = (*pair, option)
            members = frozenset(id(member) for member in each)
            if members not in seen and option.rung.group not in {member.rung.group for member in pair}:
                seen.add(members)
                yield tuple(sorted(each, key=options.index))


def harm_of(options: Iterable[Option]) -> Harm:
    return max((option.rung.harm for option in options), default=Harm.SAME)
