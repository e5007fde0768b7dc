"""The search: every setting of every rig is either cut by a proven floor or predicted, so no pick is missed.

    candidates (rig x technique x spread x split), each with floors of memory, time and cost
      ► what takes long to predict after all else, and ZeRO only where nothing else fits
      ► in order of cost until the cheapest is certain, of time until the fastest is, then what is left
      ► cut where a known choice is at least as cheap and as fast as the floors
      ► priced; cut again; replayed in memory; on the front or not

Settings are predicted once a rig, whoever rents it out; every offer of the rig is then a choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from tunecast.errors import TunecastError
from tunecast.market.offer import SPOT, Offer
from tunecast.planning.bill import Biller
from tunecast.planning.bounds import memory_floor_bytes
from tunecast.planning.estimate import Estimator, Held, Timed
from tunecast.planning.goals import Aim, Goal, Point
from tunecast.planning.space import Rig, Setting, SettingGroup, Space
from tunecast.prediction.on_card import context_of
from tunecast.records import NamedTuple, dataclass

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
    def tie_order(self) -> tuple[bool, int]:
        """Among those with the same floor: checkpointing last, which is the slower."""
        return self.setting.technique.gradient_checkpointing, self.number


class PriceFloor(NamedTuple):
    """What an offer of a rig takes at least."""

    usd_per_s: float
    paid_before_s: float
    """The run begins."""
    fixed_usd: float
    """Whatever runs."""
    start_s: float
    saves_less: bool
    """Whether checkpoints may be written more seldom than the job would."""
    processes_share: float
    """Of the time one process takes to prepare the data, what is left where each core of the machine has one."""


class FittingSetting(NamedTuple):
    """A setting that fits, on an offer."""

    rig: Rig
    setting: Setting | None
    """None of a script, which runs as it is."""
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
    of_host: bool = False
    """Of the machine's own memory, not of a card's."""


@dataclass(frozen=True)
class Outcome:
    front: tuple[Point[FittingSetting], ...]
    """Of what fits for sure; where nothing does, of what may fit."""
    aims: Mapping[str, Point[FittingSetting] | None]
    """The cheapest of each kind that was looked for beside the front."""
    least_usd: Mapping[str, float]
    """Of kinds of which nothing is cheaper than the front: what they cost at least."""
    best: dict[str, Point[FittingSetting]]
    """The cheapest predicted choice of each hardware, of those that count for the front."""
    fitting: frozenset[Rig]
    """Rigs with a setting that fits, or that was cut before its memory was looked at."""
    needs: dict[Rig, Need]
    """Rigs no setting fits on."""
    errors: dict[Rig, str]
    """Rigs of which no setting could be predicted."""
    configurations: int
    bounded: int
    predicted: int
    seconds: float


Found = Callable[[Point[FittingSetting]], None]
"""Told of each hardware's cheapest choice as it is found; a later one of the same hardware is cheaper."""
FRONT = "front"
NEVER = (inf, inf)
"""Dollars and seconds of what does not run."""
ANYTHING = Aim(FRONT, lambda rig, offer: True)


class Search:
    """`aim`: what the front is of; `aims`: of what else the cheapest is looked for. `bounds=False` predicts everything:
    for tests that compare the two."""

    def __init__(
        self, space: Space, estimator: Estimator, biller: Biller, *, aim: Aim = ANYTHING, aims: Sequence[Aim] = (),
        bounds: bool = True, progress: Progress | None = None, found: Found | None = None,
    ) -> None:  # fmt: skip
        self.space, self.estimator, self.biller = space, estimator, biller
        self.bounds, self.progress, self.found = bounds, progress, found
        self.goal: Goal[FittingSetting] = Goal(aim)
        self.goals: tuple[Goal[FittingSetting], ...] = (self.goal, *(Goal(each, self.goal) for each in aims))
        self.best: dict[str, Point[FittingSetting]] = {}
        self.needs: dict[Rig, Need] = {}
        self.errors: dict[Rig, str] = {}
        self.may_fit: set[Rig] = set()
        """Rigs with a setting that fits, or that was cut before its memory was looked at."""
        self.predicted = 0
        self.offers: dict[Rig, list[Offer]] = {}
        self.wanted: dict[Rig, dict[Goal[FittingSetting], tuple[int, ...]]] = {}
        """Of each rig, which of its offers each goal accepts."""
        for rig, offers in space.offers.items():
            self._divide(rig, offers)
        self.numbers = {offer: n for n, offer in enumerate(o for offers in space.offers.values() for o in offers)}
        self.prices: dict[tuple[Rig, int], tuple[PriceFloor, ...]] = {}
        self._levels: dict[tuple[object, ...], tuple[int | None, ...]] = {}
        self._began_s = time.monotonic()
        self._done: set[int] = set()
        self._points: dict[tuple[Rig, Setting], Floors] = {}
        self._memory: dict[tuple[Rig, Setting], bool] = {}
        """Whether it fits for sure."""
        self._all = 0

    def _divide(self, rig: Rig, offers: Sequence[Offer]) -> None:
        """Offers that no other makes needless, for the goals that accept the same."""
        alike: dict[tuple[int, ...], list[Offer]] = {}
        for offer in offers:
            goals = tuple(number for number, goal in enumerate(self.goals) if goal.accepts(rig, offer))
            if goals:
                alike.setdefault(goals, []).append(offer)
        asked: list[Offer] = []
        places: dict[int, list[int]] = {}
        for goals, of in alike.items():
            for offer in self.biller.worth_asking(of):
                for number in goals:
                    places.setdefault(number, []).append(len(asked))
                asked.append(offer)
        if asked:
            self.offers[rig] = asked
            self.wanted[rig] = {self.goals[number]: tuple(of) for number, of in sorted(places.items())}

    def run(self) -> Outcome:
        configurations = 0
        usual: list[SettingGroup] = []
        late: list[SettingGroup] = []
        for rig in self.offers:
            for block in self.space.blocks(rig):
                configurations += len(block.splits) * len(self.space.offers[rig])
                (late if self.space.comes_late(block) else usual).append(block)
        main = self.goal
        candidates = self._look_at(usual)
        if len(main.sure):
            late = [block for block in late if not self.space.is_last_resort(block)]
        candidates += self._look_at(late)
        for goal in self.goals[1:]:
            self._try_in_order(candidates, goal, _usd_floor, goal.is_dear)
            if goal.found is None:
                goal.least_usd = self._least_usd(candidates, goal)
        return Outcome(
            tuple(main.sure if len(main.sure) else main.risky),
            {goal.name: goal.found for goal in self.goals[1:]},
            {goal.name: goal.least_usd for goal in self.goals[1:] if goal.least_usd is not None},
            self.best,
            frozenset(self.may_fit),
            {rig: need for rig, need in self.needs.items() if rig not in self.may_fit},
            {rig: why for rig, why in self.errors.items() if rig not in self.may_fit and rig not in self.needs},
            configurations,
            configurations - self.predicted,
            self.predicted,
            time.monotonic() - self._began_s,
        )

    def _look_at(self, blocks: Sequence[SettingGroup]) -> list[Candidate]:
        candidates: list[Candidate] = []
        for block in blocks:
            candidates += list(self._candidates(block, self._all + len(candidates)))
        self._all += len(candidates)
        self._try_in_order(candidates, self.goal, _usd_floor, self.goal.is_dear)
        self._try_in_order(candidates, self.goal, _seconds_floor, self.goal.is_slow)
        self._try_in_order(candidates, self.goal, _least_product, lambda least: False)
        return candidates

    def _try_in_order(
        self,
        candidates: Sequence[Candidate],
        goal: Goal[FittingSetting],
        by: Callable[[Floors, tuple[int, ...]], float],
        is_over: Callable[[float], bool],
    ) -> None:
        """Those of a goal that come first by this, until it is over."""
        order = []
        for each in candidates:
            places = self.wanted[each.rig].get(goal, ())
            if places and each.number not in self._done:
                order.append((by(each.floors, places), *each.tie_order, each))
        order.sort(key=lambda each: each[:3])
        for least, _, _, each in order:
            if self.bounds and is_over(least):
                break
            self._try(each)

    def _least_usd(self, candidates: Sequence[Candidate], goal: Goal[FittingSetting]) -> float | None:
        """Of what fits, or may: that of a rig on which nothing does is no price, nor is that of machines whose own
        memory is too small for it."""
        floors = [
            _usd_floor(each.floors, self.wanted[each.rig][goal])
            for each in candidates
            if goal in self.wanted[each.rig] and (each.rig in self.may_fit or each.rig not in self.needs)
        ]
        return min((usd for usd in floors if usd < inf), default=None)

    def _candidates(self, block: SettingGroup, first: int) -> Iterator[Candidate]:
        """Those that pass the floor of memory."""
        rig, job, estimator = block.rig, self.space.job, self.estimator
        tensors = estimator.tensors(block.technique, block.spread.data)
        has = self._has_bytes(rig)
        for number, split in enumerate(block.splits):
            needs = memory_floor_bytes(
                tensors, job, rig, block.spread, split.micro_batch, accumulates=split.grad_accum > 1
            )
            setting = Setting(block.technique, block.spread, split)
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
        return rig.gpu.memory_bytes - context_of(rig.gpu).nbytes - hardware.reserve_bytes

    def _without_checkpointing(self, setting: Setting) -> Setting | None:
        """The same without, where that is in the space too. Checkpointing only adds operations: the other's floors
        are this one's, and so is its time; where it fits for sure, this one is of no use."""
        technique = setting.technique
        if not technique.gradient_checkpointing:
            return None
        other = technique._replace(gradient_checkpointing=False)
        return setting._replace(technique=other) if other in self.space.techniques else None

    def _is_worse(self, rig: Rig, without: Setting) -> bool:
        """Whether checkpointing cannot pay, by what is known of the run without it."""
        if self._memory.get((rig, without)):
            return True
        if rig.gpu_name in self.estimator.learned:  # see `_is_needless`
            return False
        known = self._points.get((rig, without))
        return known is not None and self._are_cut(rig, known)

    def _floors(self, rig: Rig, setting: Setting, *, close: bool = True) -> Floors:
        (technique, spread, split), estimator = setting, self.estimator
        frame = estimator.frame(rig, setting)
        first_s = later_s = 0.0
        for length, share in frame.weights:
            first, later = estimator.floor_s(rig.gpu_name, technique, split.micro_batch, length, spread, close=close)
            first_s += share * first
            later_s += share * later
        sent, more = estimator.sent(technique, rig, spread), split.grad_accum - 1
        step_s = max(first_s + more * later_s, split.grad_accum * sent.micro_batch_s + sent.step_s)
        step_s += estimator.end_s(rig, technique, spread.data) + sent.end_s
        step_s *= estimator.least_ratio(rig.gpu_name)
        steps_s = frame.steps * frame.last * step_s * self.biller.said.runs
        floors = []
        for price, way in zip(self._prices(rig, frame.weights_bytes), self._ways(rig, setting), strict=True):
            own = frame if way is setting or way is None else estimator.frame(rig, way)
            least_s = steps_s + own.fixed_s - (own.saves_s if price.saves_less else 0.0)
            least_s -= own.tokenised_s * (1 - price.processes_share)
            usd = price.usd_per_s * (least_s + price.paid_before_s) + price.fixed_usd
            floors.append(NEVER if way is None else (usd, least_s + price.start_s))
        return tuple(floors)

    def _try(self, candidate: Candidate) -> None:
        if candidate.number in self._done:
            return
        self._done.add(candidate.number)
        rig, setting = candidate.rig, candidate.setting
        is_cut = self.bounds and self._are_cut(rig, candidate.floors)
        if is_cut or self._is_needless(rig, setting):
            self.may_fit.add(rig)
            return
        if self.bounds and self._is_ruled_out(candidate):
            return
        if self.progress is not None:
            self.progress(time.monotonic() - self._began_s, len(self._done), self._all)
        for goal in self.wanted[rig]:
            goal.tried += 1
        self.predicted += len(self.space.offers[rig])
        ways = self._ways(rig, setting)
        try:
            known = {way: self.estimator.time_run(rig, way) for way in dict.fromkeys(ways) if way is not None}
            timed = [
                None if way is None else self.estimator.with_processes(known[way], self.space.processes(offer))
                for way, offer in zip(ways, self.offers[rig], strict=True)
            ]
            points = tuple(
                [
                    NEVER if each is None else self._point(each, offer, rig.nodes)
                    for each, offer in zip(timed, self.offers[rig], strict=True)
                ]
            )
            self._points[rig, setting] = points
            if self.bounds and self._are_cut(rig, points):
                self.may_fit.add(rig)
                return
            held = self.estimator.replay(rig, setting)
        except TunecastError as error:
            self.errors.setdefault(rig, error.message.splitlines()[0])
            return
        self._memory[rig, setting] = held.fits_surely
        if not held.fits:
            self._note(rig, Need(held.needs_bytes, held.has_bytes, setting, proven=False))
            return
        self.may_fit.add(rig)
        for goal, places in self.wanted[rig].items():
            for place in places:
                way, offer, run = ways[place], self.offers[rig][place], timed[place]
                if way is not None and run is not None:
                    found = FittingSetting(rig, way, offer, run, held)
                    self._add(goal, Point(*points[place], (self.numbers[offer], candidate.number), found))

    def _point(self, timed: Timed, offer: Offer, nodes: int) -> tuple[float, float]:
        cost = self.biller.likely(timed, offer, nodes)
        return cost.total_usd, cost.wall_s

    def _ways(self, rig: Rig, setting: Setting) -> tuple[Setting | None, ...]:
        """Of each offer, the setting as its host has the memory for it: loading and saving as they are, or lighter
        where those do not fit; None where nothing does. An offer that does not say how much it has is taken to have as
        little as any such machine that does."""
        key = rig, setting.technique.base, setting.spread
        if key not in self._levels:
            needs = [self.estimator.ram_bytes(rig, way) for way in self.space.lighter(setting)]
            self._levels[key] = tuple(
                [
                    next((n for n, need in enumerate(needs) if _is_enough(has, need)), None)
                    for has in self._host_bytes(rig)
                ]
            )
        levels = self._levels[key]
        if not any(levels):
            return tuple([None if level is None else setting for level in levels])
        light = self.space.lighter(setting)
        return tuple([None if level is None else light[level] for level in levels])

    def _host_bytes(self, rig: Rig) -> list[int | None]:
        """The memory of each offer's host."""
        least = self.space.least_ram_bytes.get((rig.gpu_name, rig.gpus))
        return [least if offer.ram_bytes is None else offer.ram_bytes for offer in self.offers[rig]]

    def _is_ruled_out(self, each: Candidate) -> bool:
        """By floors alone, by the machine's own memory, or by what is known of a setting like it."""
        rig, setting = each.rig, each.setting
        if all(way is None for way in self._ways(rig, setting)):
            has = max(nbytes or 0 for nbytes in self._host_bytes(rig))
            least = self.estimator.ram_bytes(rig, self.space.lighter(setting)[-1]) or 0
            self._note(rig, Need(least, has, setting, proven=True, of_host=True))
            return True
        without = self._without_checkpointing(setting)
        if without is not None and self._is_worse(rig, without):
            self.may_fit.add(rig)
            return True
        needs, has = self.estimator.least_bytes(rig, setting), self._has_bytes(rig)
        if needs > has:
            self._note(rig, Need(needs, has, setting, proven=False))
            return True
        is_close = without is None and not setting.spread.sharding.is_zero
        if is_close or not self._are_cut(rig, self._floors(rig, setting)):
            return False
        self.may_fit.add(rig)
        return True

    def _is_needless(self, rig: Rig, setting: Setting) -> bool:
        """Summing gradients after every micro-batch sends and copies more, for memory that is not needed where the same
        fits without. Neither is checkpointing; but of a card whose steps are corrected by runs, those with it may seem
        shorter, since what waits for the host is corrected apart from what waits for the card. So there it is left out
        by what fits, never by its time."""
        without = self.space.without_sync(rig, setting)
        if without is not None and self._fits_surely(rig, without):
            return True
        plain = self._without_checkpointing(setting) if rig.gpu_name in self.estimator.learned else None
        return plain is not None and self._fits_surely(rig, plain)

    def _fits_surely(self, rig: Rig, setting: Setting) -> bool:
        known = self._memory.get((rig, setting))
        if known is None:
            known = self._memory[rig, setting] = self._is_held(rig, setting)
        return known

    def _is_held(self, rig: Rig, setting: Setting) -> bool:
        if self.bounds and self.estimator.least_bytes(rig, setting) > self._has_bytes(rig):
            return False
        try:
            return self.estimator.replay(rig, setting).fits_surely
        except TunecastError:
            return False

    def _are_cut(self, rig: Rig, points: Floors) -> bool:
        """Whether what costs and takes at least this matters to no goal."""
        return all([goal.is_cut(*points[place]) for goal, places in self.wanted[rig].items() for place in places])

    def _add(self, goal: Goal[FittingSetting], point: Point[FittingSetting]) -> None:
        found = point.of

        def high_s() -> float:
            return self.biller.bill(found.timed, found.offer, found.rig.nodes).range_s[1]

        counts = goal.add(point, high_s, surely=found.held.fits_surely)
        if goal is self.goal and counts and found.held.fits_surely:
            name = found.rig.hardware
            if name not in self.best or point[:3] < self.best[name][:3]:
                self.best[name] = point
                if self.found is not None:
                    self.found(point)

    def _prices(self, rig: Rig, result_bytes: int) -> tuple[PriceFloor, ...]:
        """Of the offers of a rig that no other makes needless."""
        found = self.prices.get((rig, result_bytes))
        if found is None:
            found = self.prices[rig, result_bytes] = tuple(
                [self._price(offer, rig, result_bytes) for offer in self.offers[rig]]
            )
        return found

    def _price(self, offer: Offer, rig: Rig, result_bytes: int) -> PriceFloor:
        biller = self.biller
        _, start = biller.terms(offer)
        return PriceFloor(
            biller.least_usd_per_s(offer, rig.nodes),
            start.likely_s if biller.starts_billed(offer) else 0.0,
            biller.fixed_usd(offer, rig.nodes, result_bytes),
            start.likely_s,
            offer.kind == SPOT,
            self.space.job.data.num_proc / self.space.processes(offer),
        )

    def _note(self, rig: Rig, need: Need) -> None:
        known = self.needs.get(rig)
        if known is None or (need.of_host, need.needs_bytes) < (known.of_host, known.needs_bytes):
            self.needs[rig] = need


def _is_enough(has_bytes: int | None, needs_bytes: int | None) -> bool:
    """What nobody knows may be."""
    return needs_bytes is None or has_bytes is None or needs_bytes <= has_bytes


def _usd_floor(floors: Floors, places: tuple[int, ...]) -> float:
    return min([floors[place][0] for place in places])


def _seconds_floor(floors: Floors, places: tuple[int, ...]) -> float:
    return min([floors[place][1] for place in places])


def _least_product(floors: Floors, places: tuple[int, ...]) -> float:
    return _usd_floor(floors, places) * _seconds_floor(floors, places)
