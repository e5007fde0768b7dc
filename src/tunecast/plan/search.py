"""The search: every setting of every rig is either cut by a proven floor or predicted, so no pick is missed.

    candidates (rig x recipe x spread x split), each with floors of memory, time and cost
      ► what takes long to predict after all else, and ZeRO only where nothing else fits
      ► in order of cost until the cheapest is certain, of time until the fastest is, then what is left
      ► cut where a known choice is at least as cheap and as fast as the floors
      ► priced; cut again; replayed in memory; on the front or not

Settings are predicted once a rig, whoever rents it out; every offer of the rig is then a choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tunecast.errors import TunecastError
from tunecast.offers.offer import Offer
from tunecast.plan.bill import Biller
from tunecast.plan.bounds import memory_floor_bytes
from tunecast.plan.estimate import Estimator, Held, Timed
from tunecast.plan.pareto import Front, Point
from tunecast.plan.space import Block, Rig, Setting, Space, ranks_on
from tunecast.predict.prediction import context_of
from tunecast.records import dataclass

PATIENCE = 200
"""Settings predicted, none of which fits for sure, before those that may not fit cut too."""
Progress = Callable[[float, int, int], None]
"""Seconds passed, candidates dealt with, all of them."""


Floors = tuple[tuple[float, float], ...]
"""Dollars and seconds at least, on each offer of a rig: the cheapest is often not the one that is there first."""


class Candidate(NamedTuple):
    floors: Floors
    number: int
    """In the order of the space: of equals the first counts."""
    rig: Rig
    setting: Setting

    @property
    def turn(self) -> tuple[bool, int]:
        """Among those with the same floor: checkpointing last, which is the slower."""
        return self.setting.recipe.gradient_checkpointing, self.number

    @property
    def usd_floor(self) -> float:
        return min([usd for usd, _ in self.floors])

    @property
    def seconds_floor(self) -> float:
        return min([seconds for _, seconds in self.floors])


class Price(NamedTuple):
    """What an offer of a rig takes at least."""

    usd_per_s: float
    paid_before_s: float
    """The run begins."""
    fixed_usd: float
    """Whatever runs."""
    start_s: float


class Found(NamedTuple):
    """A setting that fits, on an offer."""

    rig: Rig
    setting: Setting
    offer: Offer
    timed: Timed
    held: Held


@dataclass(frozen=True)
class Need:
    """What a rig lacks at the setting that needs least."""

    needs_bytes: int
    has_bytes: int
    setting: Setting
    proven: bool
    """By a floor alone: nothing of it was predicted."""


@dataclass(frozen=True)
class Outcome:
    front: tuple[Point[Found], ...]
    sure: tuple[Point[Found], ...]
    """The front of what fits at the high end of its range too."""
    in_time: Point[Found] | None
    """The cheapest that is over in time at the high end of its range, of those that fit for sure where one does."""
    best: dict[str, Point[Found]]
    """The cheapest predicted choice of each hardware."""
    needs: dict[Rig, Need]
    """Rigs no setting fits on."""
    errors: dict[Rig, str]
    """Rigs of which no setting could be predicted."""
    configurations: int
    bounded: int
    predicted: int
    seconds: float


class Search:
    """`bounds=False` predicts everything: for tests that compare the two."""

    def __init__(
        self, space: Space, estimator: Estimator, biller: Biller, *, within_s: float | None = None,
        bounds: bool = True, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.space, self.estimator, self.biller = space, estimator, biller
        self.within_s, self.bounds, self.progress = within_s, bounds, progress
        self.front: Front[Found] = Front()
        self.sure: Front[Found] = Front()
        self.in_time: Point[Found] | None = None
        self.best: dict[str, Point[Found]] = {}
        self.needs: dict[Rig, Need] = {}
        self.errors: dict[Rig, str] = {}
        self.may_fit: set[Rig] = set()
        """Rigs with a setting that fits, or that was cut before its memory was looked at."""
        self.predicted = self.tried = 0
        self.offers = {rig: biller.worth_asking(offers) for rig, offers in space.offers.items()}
        self.numbers = {offer: n for n, offer in enumerate(o for offers in space.offers.values() for o in offers)}
        self.prices: dict[tuple[Rig, int], tuple[Price, ...]] = {}
        self._began_s = time.monotonic()
        self._done: set[int] = set()
        self._points: dict[tuple[Rig, Setting], Floors] = {}
        self._memory: dict[tuple[Rig, Setting], bool] = {}
        """Whether it fits for sure."""
        self._all = 0

    def run(self) -> Outcome:
        configurations = 0
        usual: list[Block] = []
        late: list[Block] = []
        for rig, offers in self.space.offers.items():
            for block in self.space.blocks(rig):
                configurations += len(block.splits) * len(offers)
                (late if self.space.comes_late(block) else usual).append(block)
        self._look_at(usual)
        if len(self.sure):
            late = [block for block in late if not self.space.is_last_resort(block)]
        self._look_at(late)
        return Outcome(
            tuple(self.front),
            tuple(self.sure),
            self.in_time,
            self.best,
            {rig: need for rig, need in self.needs.items() if rig not in self.may_fit},
            {rig: why for rig, why in self.errors.items() if rig not in self.may_fit and rig not in self.needs},
            configurations,
            configurations - self.predicted,
            self.predicted,
            time.monotonic() - self._began_s,
        )

    def _look_at(self, blocks: Sequence[Block]) -> None:
        candidates: list[Candidate] = []
        for block in blocks:
            candidates += list(self._candidates(block, self._all + len(candidates)))
        self._all += len(candidates)
        self._in_turn(candidates, lambda each: each.usd_floor, self._is_dear)
        self._in_turn(candidates, lambda each: each.seconds_floor, self._is_slow)
        self._in_turn(candidates, lambda each: each.usd_floor * each.seconds_floor, lambda each: False)

    def _in_turn(
        self, candidates: Sequence[Candidate], by: Callable[[Candidate], float], is_over: Callable[[Candidate], bool]
    ) -> None:
        """Those that come first by this, until it is over."""
        order = sorted([each for each in candidates if each.number not in self._done], key=lambda c: (by(c), *c.turn))
        for each in order:
            if self.bounds and is_over(each):
                break
            self._try(each)

    def _is_dear(self, each: Candidate) -> bool:
        """As are all that follow."""
        cheapest = next(iter(self._cutting), None)
        return cheapest is not None and each.usd_floor > cheapest.usd

    def _is_slow(self, each: Candidate) -> bool:
        fastest = self._cutting.last
        return fastest is not None and each.seconds_floor > fastest.seconds

    @property
    def _cutting(self) -> Front[Found]:
        """What fits for sure cuts; what may not fit does only where long enough nothing else was found."""
        return self.sure if len(self.sure) or self.tried < PATIENCE else self.front

    def _candidates(self, block: Block, first: int) -> Iterator[Candidate]:
        """Those that pass the floor of memory."""
        rig, job, estimator = block.rig, self.space.job, self.estimator
        tensors = estimator.tensors(block.recipe, block.spread.data)
        has = self._has_bytes(rig)
        for number, split in enumerate(block.splits):
            needs = memory_floor_bytes(tensors, job, rig, block.spread, split.micro_batch)
            setting = Setting(block.recipe, block.spread, split)
            if self.bounds and needs > has:
                self._note(rig, Need(needs, has, setting, proven=True))
                continue
            without = self._without_checkpointing(setting)
            floors = self._floors(rig, setting if without is None or not self.bounds else without, close=False)
            yield Candidate(floors, first + number, rig, setting)

    def _has_bytes(self, rig: Rig) -> int:
        """For the allocator, at most: what NCCL holds comes off it."""
        hardware = self.space.job.hardware
        if hardware.capacity_bytes is not None:
            return hardware.capacity_bytes
        return rig.card.memory_bytes - context_of(rig.card).nbytes - hardware.reserve_bytes

    def _without_checkpointing(self, setting: Setting) -> Setting | None:
        """The same without, where that is in the space too. Checkpointing only adds operations: the other's floors
        are this one's, and so is its time; where it fits for sure, this one is of no use."""
        recipe = setting.recipe
        if not recipe.gradient_checkpointing:
            return None
        other = recipe._replace(gradient_checkpointing=False)
        return setting._replace(recipe=other) if other in self.space.recipes else None

    def _is_worse(self, rig: Rig, without: Setting) -> bool:
        """Whether checkpointing cannot pay, by what is known of the run without it."""
        if self._memory.get((rig, without)):
            return True
        known = self._points.get((rig, without))
        return known is not None and self._are_cut(known)

    def _floors(self, rig: Rig, setting: Setting, *, close: bool = True) -> Floors:
        (recipe, spread, split), estimator = setting, self.estimator
        frame = estimator.frame(recipe, spread.data, ranks_on(self.space.job, rig, spread), split)
        first_s = later_s = 0.0
        for length, share in frame.weights:
            first, later = estimator.floor_s(rig.gpu, recipe, split.micro_batch, length, spread, close=close)
            first_s += share * first
            later_s += share * later
        sent, more = estimator.sent(recipe, rig, spread), split.grad_accum - 1
        step_s = max(first_s + more * later_s, split.grad_accum * sent.micro_batch_s + sent.step_s)
        step_s += estimator.end_s(rig, recipe, spread.data) + sent.end_s
        run_s = frame.fixed_s + frame.steps * frame.last * step_s
        return tuple(
            [
                (usd_per_s * (run_s + before_s) + fixed_usd, run_s + start_s)
                for usd_per_s, before_s, fixed_usd, start_s in self._prices(rig, frame.weights_bytes)
            ]
        )

    def _try(self, each: Candidate) -> None:
        if each.number in self._done:
            return
        self._done.add(each.number)
        rig, setting = each.rig, each.setting
        is_cut = self.bounds and self._are_cut(each.floors)
        if is_cut or self._is_needless(rig, setting):
            self.may_fit.add(rig)
            return
        if self.bounds and self._is_ruled_out(each):
            return
        if self.progress is not None:
            self.progress(time.monotonic() - self._began_s, len(self._done), self._all)
        self.tried += 1
        self.predicted += len(self.space.offers[rig])
        try:
            timed = self.estimator.timed(rig, setting)
            costs = [self.biller.likely(timed, offer, rig.nodes) for offer in self.offers[rig]]
            self._points[rig, setting] = points = tuple([(cost.total_usd, cost.wall_s) for cost in costs])
            if self.bounds and self._are_cut(points):
                self.may_fit.add(rig)
                return
            held = self.estimator.held(rig, setting)
        except TunecastError as error:
            self.errors.setdefault(rig, error.message.splitlines()[0])
            return
        self._memory[rig, setting] = held.fits_surely
        if not held.fits:
            self._note(rig, Need(held.needs_bytes, held.has_bytes, setting, proven=False))
            return
        self.may_fit.add(rig)
        for (usd, seconds), offer in zip(points, self.offers[rig], strict=True):
            found = Found(rig, setting, offer, timed, held)
            self._keep(Point(usd, seconds, (self.numbers[offer], each.number), found))

    def _is_ruled_out(self, each: Candidate) -> bool:
        """By floors alone, or by what is known of a setting like it."""
        rig, setting = each.rig, each.setting
        without = self._without_checkpointing(setting)
        if without is not None and self._is_worse(rig, without):
            self.may_fit.add(rig)
            return True
        needs, has = self.estimator.least_bytes(rig, setting), self._has_bytes(rig)
        if needs > has:
            self._note(rig, Need(needs, has, setting, proven=False))
            return True
        is_close = without is None and not setting.spread.data.startswith("zero")
        if is_close or not self._are_cut(self._floors(rig, setting)):
            return False
        self.may_fit.add(rig)
        return True

    def _is_needless(self, rig: Rig, setting: Setting) -> bool:
        """Summing gradients after every micro-batch sends and copies more, for memory that is not needed where the same
        fits without."""
        without = self.space.without_sync(rig, setting)
        return without is not None and self._fits_surely(rig, without)

    def _fits_surely(self, rig: Rig, setting: Setting) -> bool:
        known = self._memory.get((rig, setting))
        if known is None:
            known = self._memory[rig, setting] = self._is_held(rig, setting)
        return known

    def _is_held(self, rig: Rig, setting: Setting) -> bool:
        if self.bounds and self.estimator.least_bytes(rig, setting) > self._has_bytes(rig):
            return False
        try:
            return self.estimator.held(rig, setting).fits_surely
        except TunecastError:
            return False

    def _are_cut(self, points: Sequence[tuple[float, float]]) -> bool:
        return all([self._is_cut(usd, seconds) for usd, seconds in points])

    def _is_cut(self, usd: float, seconds: float) -> bool:
        """Whether no choice of this cost and time at least can be an answer."""
        if not self._cutting.dominates(usd, seconds):
            return False
        if self.within_s is None or seconds > self.within_s:
            return True
        known = self.in_time
        return known is not None and known.of.held.fits_surely and known.usd < usd

    def _keep(self, point: Point[Found]) -> None:
        self.front.add(point)
        if point.of.held.fits_surely:
            self.sure.add(point)
        name = point.of.rig.hardware
        if name not in self.best or point[:3] < self.best[name][:3]:
            self.best[name] = point
        if self.within_s is not None and point.seconds <= self.within_s:
            known = self.in_time
            if known is None or _worth(point) < _worth(known):
                found = point.of
                bill = self.biller.bill(found.timed, found.offer, found.rig.nodes)
                if bill.range_s[1] <= self.within_s:
                    self.in_time = point

    def _prices(self, rig: Rig, result_bytes: int) -> tuple[Price, ...]:
        """Of the offers of a rig that no other makes needless."""
        found = self.prices.get((rig, result_bytes))
        if found is None:
            found = self.prices[rig, result_bytes] = tuple(
                [self._price(offer, rig, result_bytes) for offer in self.offers[rig]]
            )
        return found

    def _price(self, offer: Offer, rig: Rig, result_bytes: int) -> Price:
        biller = self.biller
        _, start = biller.terms(offer)
        return Price(
            biller.least_usd_per_s(offer, rig.nodes),
            start.likely_s if biller.starts_billed(offer) else 0.0,
            biller.egress_usd(offer, result_bytes),
            start.likely_s,
        )

    def _note(self, rig: Rig, need: Need) -> None:
        known = self.needs.get(rig)
        if known is None or need.needs_bytes < known.needs_bytes:
            self.needs[rig] = need


def _worth(point: Point[Found]) -> tuple[bool, float, float, tuple[int, ...]]:
    """Less is better."""
    return not point.of.held.fits_surely, point.usd, point.seconds, point.order
