"""`tunecast fit -- train.py`: the smallest changes to a script's own arguments, least harm first, after which it fits.

    rungs, least harm first ──► each added to those that helped, and traced ──► fits?
      ► what the last change made needless is taken out again, and traced

Nothing is told that was not traced. Traces take seconds to minutes, so they are counted: `most`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.advise.ladder import Harm
from tunecast.advise.script_ladder import ScriptRung, ScriptSet, Sets
from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import Gpu
from tunecast.planning.fit.solution import FIGURES, FitFigures, FrugalJob, LargerCards, least_room
from tunecast.prediction.on_card import context_of
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass, field
from tunecast.result import Alias, Result

LEAST_SAVING = 0.01
"""Of what it needs: less is not worth a change."""
MOST_TRACES = 10


class ChangedSetting(NamedTuple):
    """Where a changed value is given."""

    name: str
    """As the script calls it."""
    value: Any
    before: Any
    place: str
    """option, call or file."""
    where: str
    """The option, `train.py:31`, or the file."""


@dataclass(frozen=True)
class ScriptChange(Result):
    """One change of a set, after those before it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("set", "harm", "frees_bytes", "more_time_fraction", "unpriced", "note", "quality", "settings"),
    )

    rung: ScriptRung
    sets: Sets
    frees_bytes: int | None
    """None where the sets before it were not traced by themselves."""
    more_time_fraction: float | None
    """Of a step, where it has as many rows as before."""
    unpriced: ClassVar[str | None] = None

    harm = Alias[Harm]("rung.harm")
    note = Alias[str | None]("rung.note")
    quality = Alias[tuple[str, ...]]("rung.quality")

    @property
    def set(self) -> Mapping[str, object]:
        return {each.name: each.value for each in self.sets}

    @property
    def settings(self) -> tuple[ChangedSetting, ...]:
        return tuple(
            ChangedSetting(each.setting.name, each.value, each.setting.value, each.setting.place, place_of(each))
            for each in self.sets
        )


def place_of(change: ScriptSet) -> str:
    return change.setting.line or change.setting.spelled


@dataclass(frozen=True)
class ScriptSolution(FitFigures):
    """A set of changes, traced."""

    KEYS: ClassVar[tuple[str, ...]] = ("harm", "changes", "frees_bytes", "more_time_fraction", "job", *FIGURES)

    changes: tuple[ScriptChange, ...]
    frees_bytes: int
    more_time_fraction: float | None
    job: ClassVar[None] = None

    @property
    def harm(self) -> Harm:
        return max(each.harm for each in self.changes)

    @property
    def sets(self) -> Sets:
        return tuple(each for change in self.changes for each in change.sets)


@dataclass(frozen=True)
class ScriptFit(Result):
    """The keys of a job's `Fit`; what a script has no value for is None or empty."""

    schema: ClassVar[str] = "tunecast.fit/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "fits", "question", "before", "forced", "chosen", "others", "quicker", "offered", "would_do"),
        *("elsewhere", "patch", "predictions"),
    )
    id: ClassVar[None] = None
    patch: ClassVar[None] = None
    others: ClassVar[tuple[ScriptSolution, ...]] = ()
    quicker: ClassVar[tuple[ScriptSolution, ...]] = ()
    offered: ClassVar[tuple[ScriptSolution, ...]] = ()
    elsewhere: ClassVar[tuple[ScriptSolution, ...]] = ()

    before: FitFigures
    chosen: ScriptSolution | None
    would_do: LargerCards | None
    predictions: int
    """Traces, the first included."""
    forced: bool = False
    """Other training was chosen because nothing else fits, not because it was allowed."""
    tried: tuple[str, ...] = ()
    """Groups of changes the script has arguments for."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Changes with which the script did not run, or that it did not take, and why."""
    exhausted: bool = False
    """Whether further traces might have found something."""

    @property
    def fits(self) -> bool:
        """As it is, or with the chosen changes."""
        return self.before.fits or self.chosen is not None

    @property
    def question(self) -> str:
        return "fits surely" if self.before.fits else "fits"

    @property
    def changes(self) -> tuple[ScriptChange, ...]:
        return () if self.chosen is None else self.chosen.changes


class Failed(Exception):
    """The script does not run with a change, or does not take it."""


Attempt = Callable[[Sets], Prediction]
"""Traces the script with other values. Raises `Failed`."""
Taken = tuple[tuple[ScriptRung, Sets], ...]


class NoMoreTraces(Exception):
    """As many as were allowed."""


class ScriptTrials:
    """Each set is traced once."""

    def __init__(self, before: FitFigures, attempt: Attempt, most: int) -> None:
        self.before, self.attempt, self.most = before, attempt, most
        self._known: dict[frozenset[tuple[str, str]], tuple[Taken, FitFigures | None]] = {frozenset(): ((), before)}
        self.failures: dict[str, str] = {}

    @property
    def count(self) -> int:
        return len(self._known) - 1

    def state(self, taken: Taken) -> FitFigures | None:
        """None where the script does not run with it."""
        key = _key(taken)
        if key not in self._known:
            if self.count >= self.most:
                raise NoMoreTraces
            sets = tuple(each for _, changed in taken for each in changed)
            try:
                self._known[key] = taken, _state_of(self.attempt(sets))
            except Failed as error:
                self._known[key] = taken, None
                self.failures[", ".join(f"{each.name} {each.value}" for each in sets)] = str(error)
        return self._known[key][1]

    def known_state(self, taken: Taken) -> FitFigures | None:
        """Without a trace."""
        return self._known.get(_key(taken), ((), None))[1]

    def traced(self) -> list[tuple[Taken, FitFigures]]:
        """Every set with which the script runs."""
        return [(taken, state) for taken, state in self._known.values() if taken and state is not None]


def _key(taken: Taken) -> frozenset[tuple[str, str]]:
    return frozenset((each.name, str(each.value)) for _, changed in taken for each in changed)


def fit_script(
    before: Prediction, rungs: Sequence[ScriptRung], attempt: Attempt, allow: Collection[str] = (),
    most_traces: int = MOST_TRACES,
) -> ScriptFit:  # fmt: skip
    """`allow`: groups of `Harm.OTHER` that may be chosen like any other change."""
    begun = _state_of(before)
    tried = tuple(dict.fromkeys(rung.group for rung in rungs))
    if begun.fits_surely or not rungs:
        would_do = None if begun.fits else _larger_cards(begun)
        return ScriptFit(begun, None, would_do, 1, tried=tried)
    trials = ScriptTrials(begun, attempt, most_traces)
    harmless = [rung for rung in rungs if rung.harm is not Harm.OTHER or rung.group in allow]
    found: Taken = ()
    forced = exhausted = False
    try:
        found = smallest(trials, climb(trials, harmless, ()))
        if not found and not begun.fits:
            forced = True
            helpful = best_of(trials)
            found = climb(trials, [rung for rung in rungs if rung not in harmless], helpful)
    except NoMoreTraces:
        exhausted = True
    if not found and not begun.fits:  # at least by its own figure, if not for sure
        found = _fitting(trials)
    chosen = _solution(trials, found) if found else None
    return ScriptFit(
        begun,
        chosen,
        _larger_cards(begun) if chosen is None and not begun.fits else None,
        trials.count + 1,
        forced and chosen is not None and chosen.harm is Harm.OTHER,
        tried,
        trials.failures,
        exhausted and chosen is None,
    )


def climb(trials: ScriptTrials, rungs: Sequence[ScriptRung], taken: Taken) -> Taken:
    """A set that fits for sure, no part of it needless; nothing where none does."""
    now = trials.state(taken)
    for rung in rungs:
        without = tuple(each for each in taken if each[0].group != rung.group)
        left, value = list(rung.settings), None
        while left and now is not None:
            setting = left.pop(0)
            state = trials.state((*without, (rung, setting)))
            if state is None:
                continue
            if state.fits_surely:
                return pruned(trials, (*without, (rung, setting)))
            if now.needs_bytes - state.needs_bytes < LEAST_SAVING * now.needs_bytes:
                break
            if left:
                at = float(value if value is not None else setting[0].setting.value)
                left = promising(now, state, at, setting, left)
            taken, now, value = (*without, (rung, setting)), state, setting[0].value
    return ()


def smallest(trials: ScriptTrials, taken: Taken) -> Taken:
    """One change of the set, where it does alone in a stronger setting; else the set."""
    for rung, _ in taken if len(taken) > 1 else ():
        try:
            alone = climb(trials, [rung], ()) if len(rung.settings) > 1 else ()
        except NoMoreTraces:
            return taken
        if alone:
            return alone
    return taken


def promising(before: FitFigures, after: FitFigures, at: float, setting: Sets, stronger: Sequence[Sets]) -> list[Sets]:
    """Of stronger settings of a rung in degrees, from the first on that fits where memory goes on falling as it did
    from the value `at`, in a straight line; the strongest alone where none would."""
    value, freed = float(setting[0].value), before.range_bytes[1] - after.range_bytes[1]
    each = freed / (at - value)
    most = value - (after.range_bytes[1] - after.capacity_bytes) / each if each > 0 else value
    return [sets for sets in stronger if float(sets[0].value) <= most] or [stronger[-1]]


def pruned(trials: ScriptTrials, taken: Taken) -> Taken:
    """Without what the last change made needless: the most harmful first."""
    for each in sorted(taken[:-1], key=lambda one: -one[0].harm):
        rest = tuple(one for one in taken if one is not each)
        try:
            state = trials.state(rest)
        except NoMoreTraces:
            return taken
        if state is not None and state.fits_surely:
            taken = rest
    return taken


def best_of(trials: ScriptTrials) -> Taken:
    """The set of what was traced that needs least."""
    made = [(state.needs_bytes, taken) for taken, state in trials.traced()]
    return min(made, key=lambda each: each[0], default=(0, ()))[1]


def _fitting(trials: ScriptTrials) -> Taken:
    """Of what was traced, the least harm and the fewest changes that fit by their own figure."""
    fit = [taken for taken, state in trials.traced() if state.fits]
    return min(fit, key=lambda taken: (max(rung.harm for rung, _ in taken), len(taken)), default=())


def _solution(trials: ScriptTrials, taken: Taken) -> ScriptSolution:
    before = trials.before
    done = trials.state(taken)
    assert done is not None
    changes = []
    for count, (rung, sets) in enumerate(taken, start=1):
        last, state = trials.known_state(taken[: count - 1]), trials.known_state(taken[:count])
        both = last is not None and state is not None
        frees = last.needs_bytes - state.needs_bytes if both and last is not None and state is not None else None
        changes.append(ScriptChange(rung, sets, frees, more_time(last, state) if rung.harm is not Harm.OTHER else None))
    same_rows = all(rung.harm is not Harm.OTHER for rung, _ in taken)
    return ScriptSolution(
        done.prediction,
        done.room,
        tuple(changes),
        before.needs_bytes - done.needs_bytes,
        more_time(before, done) if same_rows else None,
    )


def _state_of(done: Prediction) -> FitFigures:
    return FitFigures(done, least_room(done))


def more_time(before: FitFigures | None, after: FitFigures | None) -> float | None:
    """0.27: a step takes 27 % more time."""
    one, other = (None if each is None else each.step_s for each in (before, after))
    return None if not one or other is None else other / one - 1


def _larger_cards(begun: FitFigures) -> LargerCards:
    return LargerCards((FrugalJob({}, Harm.SAME, begun.needs_bytes, least_card_for(begun.range_bytes[1])),))


def least_card_for(needs_bytes: int) -> Gpu | None:
    """The smallest card on which the allocator gets so much."""
    fitting = [
        card
        for card in gpus().values()
        if card.vendor == "NVIDIA" and card.memory_bytes - context_of(card).nbytes >= needs_bytes
    ]
    return min(fitting, key=lambda card: (card.memory_bytes, card.name), default=None)
