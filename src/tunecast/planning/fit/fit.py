"""`tunecast fit`: the smallest changes, least harm first, after which a job fits its card; or what makes it faster.

    does not fit       the smallest set that keeps the mathematics; else with rounding; else something else is trained
    fits, but closely  the same, so that the high end of its range fits too
    fits surely        what takes less time with the memory that is left

Of sets alike in harm and size the fastest. Every set that is told was predicted in full, memory and time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import LESS_MEMORY, LESS_TIME, Harm, Overrides, Rung
from tunecast.advise.smallest_card import least_card
from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.planning.fit.bounds import is_out_of_reach
from tunecast.planning.fit.search import (
    ALLOCATOR,
    Option,
    Options,
    Trials,
    harm_of,
    most_frugal,
    overrides_of,
    smallest_sets,
    strongest,
)
from tunecast.planning.fit.solution import Fit, FitState, FrugalJob, LargerCards, Solution, solution_of, state_of
from tunecast.prediction.prediction import Prediction

Predict = Callable[[Job], Prediction]
MOST_OTHERS = 3
WORTHWHILE_GAIN = 0.02
"""Of the time of a step: less is not worth a line in a job's file."""
MOST_ROUNDS = 5
LEAST_SAVING = 0.01
MICRO_BATCH = "micro_batch"
AT_NO_COST = ("loss", "attention", "prepare_kbit")
"""Groups of the ladder that free memory and take no time: fused losses and attention, norms that stay in 16 bits."""


def fit_job(job: Job, quick: Predict, full: Predict, allow: Collection[str] = ()) -> Fit:
    """`quick` is asked for memory only, `full` for time too. `allow`: groups of `Harm.OTHER` that may be chosen too."""
    first = full(job)
    job, begun = first.job, state_of(first)
    full_trials = Trials(job, full)
    if begun.fits_surely:
        return Fit(begun, _faster(job, begun, full_trials), (), (), None, full_trials.asked)
    trials = Trials(job, quick)
    found = list(_solutions(_sets_in_passes(trials, allow, only_surely=begun.fits), begun, full_trials))
    other_asked = 0
    forced = not found and not begun.fits
    if forced:
        options, other_asked = _other_training(job, quick)
        found = list(_solutions([options] if options else [], begun, full_trials))
    offered: tuple[Solution, ...] = ()
    if found and found[0].harm < Harm.OTHER:
        offered = tuple(_offers(begun, full_trials))
    would_do = None
    if not found and not begun.fits:
        would_do = _larger_cards(trials, begun)
    chosen = found[0] if found else None
    others = tuple(found[1 : 1 + MOST_OTHERS])
    quicker = () if chosen is None or forced else tuple(_quicker(chosen, begun, trials, full_trials))
    asked = trials.asked + other_asked + full_trials.asked
    return Fit(begun, chosen, others, offered, would_do, asked, forced and chosen is not None, quicker)


def _rungs(most: Harm, allow: Collection[str], *, priced: bool) -> list[Rung]:
    return [
        rung
        for rung in LESS_MEMORY
        if (rung.harm <= most or rung.group in allow) and not (priced and rung.unpriced is not None)
    ]


def harmless_rungs() -> list[Rung]:
    """What keeps the training, at a known price."""
    return _rungs(Harm.ROUNDED, (), priced=True)


def _sets_in_passes(trials: Trials, allow: Collection[str], *, only_surely: bool = False) -> list[Options]:
    """Of the first pass that finds any: a known price before an unknown, surely before likely, then the least harm."""
    both: tuple[Callable[[Options], bool], ...] = (trials.fits_surely, trials.fits)
    for priced in (True, False):
        for ok in both[:1] if only_surely else both:
            for harm, also in ((Harm.SAME, ()), (Harm.ROUNDED, allow)):
                rungs = _rungs(harm, also, priced=priced)
                if is_out_of_reach(trials.job, strongest(trials.job, rungs)):
                    continue
                found = smallest_sets(trials, rungs, ok)
                if found:
                    return found
    return []


def _other_training(job: Job, quick: Predict) -> tuple[Options, int]:
    """The first rung of other training that fits with what is harmless beside it, as mild as all of that lets it be;
    and how many predictions it took."""
    asked = 0
    for rung in (each for each in LESS_MEMORY if each.harm is Harm.OTHER):
        tried = [
            (setting, Trials(changed, quick)) for setting in rung.settings(job) if (changed := _with(job, setting))
        ]
        found = None
        if tried and _fits_with_all(tried[-1][1]):
            found = next((setting, trials) for setting, trials in tried if _fits_with_all(trials))
        options = [] if found is None else _sets_in_passes(found[1], ())
        asked += sum(trials.asked for _, trials in tried)
        if found is not None and options:
            return (Option(rung, found[0]), *min(options, key=lambda each: (harm_of(each), len(each)))), asked
    return (), asked


def _with(job: Job, overrides: Overrides) -> Job | None:
    try:
        return with_fields(job, overrides)
    except UsageError:
        return None


def _fits_with_all(trials: Trials) -> bool:
    """With everything that keeps the training."""
    options = strongest(trials.job, _rungs(Harm.ROUNDED, (), priced=False))
    if is_out_of_reach(trials.job, options):
        return False
    return trials.fits(()) or trials.fits(most_frugal(trials, options, trials.fits))


def _solutions(sets: Sequence[Options], begun: FitState, trials: Trials) -> Iterator[Solution]:
    """Predicted in full: least rounding first, then the fastest."""
    made = [solution for options in sets if (solution := solve(options, begun, trials)) is not None]

    def worth(solution: Solution) -> tuple[int, int, bool, float]:
        rounded = sum(option.rung.harm is not Harm.SAME for option in solution.options)
        slower = float("inf") if solution.more_time_fraction is None else solution.more_time_fraction
        return solution.harm, rounded, bool(solution.unpriced), slower

    yield from sorted(made, key=worth)


def solve(options: Options, begun: FitState, trials: Trials) -> Solution | None:
    options = tuple(sorted(options, key=lambda option: option.rung.group == ALLOCATOR))
    done = trials.with_options(options)
    if done is None:
        return None
    effects: list[tuple[Option, int | None, float | None]] = []
    last: FitState | None = begun
    for count in range(1, len(options) + 1):
        step = trials.with_options(options[:count])
        state = None if step is None else state_of(step)
        if last is None or state is None:
            effects.append((options[count - 1], None, None))
        else:
            frees = last.needs_bytes - state.needs_bytes
            effects.append((options[count - 1], frees, state.more_time_than(last)))
        last = state
    return solution_of(done, begun, effects)


def _quicker(chosen: Solution, begun: FitState, trials: Trials, full_trials: Trials) -> Iterator[Solution]:
    """Where the chosen set costs time: what frees memory and takes none, all of it, and only as small a micro-batch
    beside it as it still has to be. Predicted as a whole, not change by change."""
    slower = chosen.more_time_fraction
    if slower is None or slower < WORTHWHILE_GAIN:
        return
    batch = next(rung for rung in LESS_MEMORY if rung.group == MICRO_BATCH)
    tried: Options = ()
    for harm in (Harm.SAME, Harm.ROUNDED):
        free = tuple(
            Option(rung, setting)
            for rung in _rungs(harm, (), priced=True)
            if rung.group in AT_NO_COST
            and (setting := rung.mildest(begun.job)) is not None
            and trials.need((Option(rung, setting),)) is not None
        )
        free = tuple({option.rung.group: option for option in reversed(free)}.values())  # of rivals the first
        sets = [free, *((*free, Option(batch, setting)) for setting in batch.settings(begun.job))]
        options = next((each for each in sets if trials.fits_surely(each)), ()) if free and free != tried else ()
        tried = free
        done = full_trials.with_options(options) if options else None
        more_time = None if done is None else state_of(done).more_time_than(begun)
        if done is not None and more_time is not None and more_time <= slower - WORTHWHILE_GAIN:
            slower = more_time
            yield solution_of(done, begun, [(option, None, None) for option in options])


def _offers(begun: FitState, trials: Trials) -> Iterator[Solution]:
    for rung in (each for each in LESS_MEMORY if each.harm is Harm.OTHER):
        mildest = rung.mildest(begun.job)
        solution = None if mildest is None else solve((Option(rung, mildest),), begun, trials)
        if solution is not None and solution.frees_bytes >= LEAST_SAVING * begun.needs_bytes:
            yield solution


def _faster(job: Job, begun: FitState, trials: Trials) -> Solution | None:
    """The change that saves most time, then the next, as long as the high end of the range fits."""
    taken: Options = ()
    now = begun
    for _ in range(MOST_ROUNDS):
        best: tuple[float, Options, FitState] | None = None
        for options in _faster_sets(job, taken, trials):
            done = trials.with_options(options)
            if done is None or not done.on_card.fits:
                continue
            state = state_of(done)
            more = state.more_time_than(now)
            if state.fits_surely and more is not None and -more >= WORTHWHILE_GAIN and (best is None or more < best[0]):
                best = more, options, state
        if best is None:
            break
        _, taken, now = best
    return solve(taken, begun, trials) if taken else None


def _faster_sets(job: Job, taken: Options, trials: Trials) -> Iterator[Options]:
    """One rung more, or one that is taken at another setting; of those in degrees the strongest there is room for."""
    for rung in LESS_TIME:
        others = tuple(option for option in taken if option.rung.group != rung.group)
        if len(others) < len(taken) and not any(option.rung is rung for option in taken):
            continue  # a rival of it was faster
        last: Options | None = None
        for setting in rung.settings(job):
            options = (*others, Option(rung, setting))
            if not trials.fits(options):
                break
            last = options
        if last is not None and last != taken:
            yield last


def _larger_cards(trials: Trials, begun: FitState) -> LargerCards:
    job = begun.job
    as_it_is = begun.needs_bytes
    frugal = [FrugalJob({}, Harm.SAME, as_it_is, least_card(job, as_it_is, {}))]
    for harm in (Harm.ROUNDED, Harm.OTHER):
        options = most_frugal(trials, strongest(job, _rungs(harm, (), priced=False)))
        done = trials.with_options(options)
        if options and done is not None and (needs := done.on_card.smallest_capacity_bytes) < frugal[-1].needs_bytes:
            frugal.append(FrugalJob(overrides_of(options), harm, needs, least_card(done.job, needs, {})))
    return LargerCards(tuple(frugal))
