"""A plan from a job and offers: searched, picked, explained.

    offers that may be picked ─┐
    spot, marketplaces, what   ├─► one search: the front of the first, the cheapest of each of the others
    cannot be proven          ─┘     ► space_out: what is shown ► picks, all of it ► reasons, savings, notes

One machine is looked at first; several where none is enough, or where they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from tunecast.job.further import models_of
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.market.cost import RUNS_A_YEAR, break_even_hours
from tunecast.market.offer import ON_DEMAND, Offer
from tunecast.market.selection import BESIDE, Selection
from tunecast.planning.bill import USUAL_START_S, Bill, Biller, Terms
from tunecast.planning.choice import (
    DOLLARS,
    NO_LIMITS,
    SETTINGS,
    Alternative,
    AvoidableCost,
    Choice,
    Constraints,
    Fleet,
    Money,
    Picks,
    Plan,
    PriceList,
    Refusal,
    Searched,
)
from tunecast.planning.constraints import affordable, refusals, ruled_out
from tunecast.planning.estimate import Estimator
from tunecast.planning.goals import Aim, Point
from tunecast.planning.objective import ALIKE, pick, reasons, space_out
from tunecast.planning.savings import savings
from tunecast.planning.search import FRONT, FittingSetting, Outcome, Progress, Search
from tunecast.planning.space import Freedom, Rig, Space, space_of
from tunecast.prediction.culprit import require_architecture
from tunecast.prediction.engines import analytic
from tunecast.prediction.evidence import Evidence, evidence_for, evidence_of
from tunecast.records import dataclass, field, replace
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.units import GIB, HOUR_S

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Learned

ASSUMED_TOKENS = 10_000_000
"""Of a job that does not say how much there is to train on: enough that starting up is a small part of it."""
VALIDATED, UNPROVEN, NO_DEADLINE = "validated", "unproven", "deadline"


@dataclass(frozen=True)
class Question:
    """What a plan is asked, beside the job and the offers."""

    today: date
    freedom: Freedom = Freedom()
    limits: Constraints = NO_LIMITS
    terms: Terms = Terms()
    asked: tuple[str, ...] = ()
    money: Money = DOLLARS
    weekly: bool = False
    """Whether it runs every week: what a year of it costs is then said."""
    validated: bool = False
    """Whether only what measured runs stand behind may be picked."""
    learned: Mapping[str, Learned] = field(default_factory=dict)
    """By card, what the user's own runs say of steps on machines elsewhere."""
    unlearned: str = ""
    """Why nothing was learned, where there are runs that cannot be read."""


def plan_of(
    job: Job,
    offers: Selection,
    question: Question,
    *,
    model: ModelConfig | None = None,
    progress: Progress | None = None,
    bounds: bool = True,
    front_in_full: bool = False,
    found: Callable[[Choice], None] | None = None,
) -> Plan:
    """`front_in_full` gives the whole front its predictions, which picks always have. `found` is told of each
    hardware's cheapest choice while the search goes on, before anything is picked.

    Raises what reading the model raises; that nothing fits is a plan without choices (`constraints.verdict`).
    """
    assumed: list[str] = []
    model = model or models_of(job)
    job = fill_in_of(with_data(job, assumed), model)
    require_architecture(job, model)
    planner = JobPlanner(job, offers, question, model, progress, bounds, found)
    return planner.make(assumed, front_in_full=front_in_full)


class PlanMaker(ABC):
    """One question, asked of the search once or with more machines and fewer limits: what a job and a script share."""

    job: Job | None

    def __init__(self, job: Job | None, offers: Selection, question: Question) -> None:
        self.job, self.offers, self.question = job, offers, question
        self.main = frozenset(offers.offers)
        groups = {**offers.beside, **{f"{UNPROVEN} {name}": of for name, of in offers.unproven.items()}}
        self.groups: Mapping[str, frozenset[Offer]] = {
            name: frozenset(of) for name, of in groups.items() if name != "reserved"
        }
        self.biller = Biller(job, question.terms)
        self._outcomes: list[Outcome] = []
        self._made: dict[tuple[object, ...], tuple[Point[FittingSetting], Choice]] = {}

    @abstractmethod
    def search_wider(self, within_s: float | None) -> tuple[Outcome, bool]:
        """Of one machine; of several where none is enough, and whether it is."""

    @abstractmethod
    def validated(self, rig: Rig) -> bool:
        """Whether runs on this card, with this kind of stack, were measured."""

    @abstractmethod
    def _choice(self, point: Point[FittingSetting]) -> Choice: ...

    def as_found(self, found: FittingSetting, bill: Bill, evidence: Evidence) -> Choice:
        """A choice with all but what only a job has."""
        rig, _, offer, timed, held = found
        return Choice(
            fleet=Fleet(rig.gpu, rig.gpus, rig.nodes, offer, self.biller.serving),
            job=None,
            changes={},
            device_bytes=held.device_bytes,
            device_range_bytes=held.range_bytes,
            capacity_bytes=held.capacity_bytes,
            step_s=timed.step_s,
            total_s=bill.total_s,
            total_range_s=bill.range_s,
            bill=bill.cost,
            usd_range=bill.usd_range,
            tokens=0.0,
            phases_s=self.biller.phases(timed, offer, rig.nodes),
            risk=_risk_of(held.range_bytes[1], held.capacity_bytes),
            rough=bill.rough,
            evidence=evidence.words,
            validated=evidence.validated,
            learned=timed.learned,
            runs=self.biller.said.runs,
        )

    @abstractmethod
    def with_prediction(self, choice: Choice) -> Choice: ...

    @abstractmethod
    def refusals(self, outcome: Outcome) -> tuple[Refusal, ...]: ...

    @abstractmethod
    def assumptions(self, picks: Mapping[str, Choice | None], several: bool) -> list[str]: ...

    def ruled_out(self, outcome: Outcome, refused: Sequence[Refusal]) -> tuple[str, ...]:
        """Hardware of which nothing had to be predicted."""
        return ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return ()

    @property
    def script(self) -> str | None:
        return None

    def make(self, assumed: Sequence[str], *, front_in_full: bool = False) -> Plan:
        question, offers, limits = self.question, self.offers, self.question.limits
        outcome, several = self.search_wider(limits.within_s)
        choices = [self.choice(point) for point in outcome.front]
        within = affordable(choices, limits)
        if not choices and limits.within_s is not None:  # what comes nearest
            outcome, several = self.search_wider(None)
            choices = [self.choice(point) for point in outcome.front]
        shown = space_out(within or choices)
        picks = pick(shown if within else (), limits.within_s)
        final = self.explain(picks, shown)
        if front_in_full:
            final |= {id(each): self.with_prediction(each) for each in shown if id(each) not in final}
        best = picks["cheapest"]
        others = [self.choice(point) for point in sorted(outcome.best.values(), key=lambda point: point[:3])]
        others = (affordable(others, limits) if within else others) or shown
        refused = self.refusals(outcome)
        return Plan(
            job=self.job,
            as_of=question.today,
            picks=Picks({name: None if each is None else final[id(each)] for name, each in picks.items()}),
            pareto=tuple(final.get(id(each), each) for each in shown),
            choices=tuple(final.get(id(each), each) for each in others),
            refused=refused,
            ruled_out=self.ruled_out(outcome, refused),
            searched=Searched(*self.search_counts()),
            limits=limits,
            asked=question.asked,
            money=question.money,
            beside=tuple(self.beside(outcome, best)),
            dearer={} if best is None else self.dearer(outcome),
            savings=() if best is None else self.savings(best),
            prices=PriceList(
                offers.listed,
                None if offers.listed is None else max(0, (question.today - offers.listed).days),
                offers.old,
                {_offer_named(offer): why for offer, why in offers.outliers.items()},
                offers.unknown,
            ),
            notes=tuple(_notes(picks, offers, question)),
            assumptions=(*assumed, *self.assumptions(picks, several)),
            warnings=self.warnings,
            script=self.script,
        )

    def aims(self, within_s: float | None) -> list[Aim]:
        """What is looked for beside the front."""
        main = self.main
        aims = [Aim(name, _accepting(of), within_s, cheaper=True) for name, of in self.groups.items()]
        if not self.question.validated:  # else the front is of these
            aims.append(Aim(VALIDATED, lambda rig, offer: offer in main and self.validated(rig), within_s))
        if within_s is not None:
            aims.append(Aim(NO_DEADLINE, _accepting(main), cheaper=True))
        return aims

    def may_be_picked(self, rig: Rig, offer: Offer) -> bool:
        return offer in self.main and (not self.question.validated or self.validated(rig))

    def search_counts(self) -> tuple[int, int, int, float]:
        """Of all searches; the space is the widest one's."""
        configurations = max(each.configurations for each in self._outcomes)
        predicted = sum(each.predicted for each in self._outcomes)
        return configurations, max(0, configurations - predicted), predicted, sum(o.seconds for o in self._outcomes)

    def choice(self, point: Point[FittingSetting]) -> Choice:
        """One object, wherever it is in the plan."""
        key = (point.of.rig, point.of.setting, point.of.offer)
        if key not in self._made:
            self._made[key] = point, self._choice(point)
        return self._made[key][1]

    def explain(self, picks: Mapping[str, Choice | None], front: Sequence[Choice]) -> dict[int, Choice]:
        """Each pick with its reasons and its whole prediction; one that is several is said why for each."""
        told = reasons(dict(picks), front, self.question.limits.within_s)
        final: dict[int, Choice] = {}
        for name, choice in sorted(picks.items(), key=lambda each: each[0] != "deadline"):  # the answer's own first
            if choice is None:
                continue
            known = final.get(id(choice))
            if known is None:
                final[id(choice)] = replace(self.with_prediction(choice), why=told[name])
            elif told[name] not in known.why:
                final[id(choice)] = replace(known, why=f"{known.why}; {told[name]}")
        return final

    def beside(self, outcome: Outcome, best: Choice | None) -> Iterator[Alternative]:
        """What is cheaper than the answer but not picked unasked, or where there is none keeps to the limits; and where
        nobody measured the answer's card, what somebody did."""
        for name, point in outcome.aims.items():
            if point is None or not point.of.held.fits_surely:
                continue
            choice = self.choice(point)
            kind, _, provider = name.partition(" ")
            if best is None:
                within_s = self.question.limits.within_s
                in_time = within_s is None or choice.total_range_s[1] <= within_s
                if kind in BESIDE and in_time and affordable([choice], self.question.limits):
                    yield Alternative(kind, choice)
            elif kind == VALIDATED:
                if not best.validated:
                    yield Alternative(kind, choice)
            elif kind == UNPROVEN:
                yield Alternative(kind, choice, self.offers.doubts.get(provider, ""))
            elif choice.total_usd < best.total_usd * (1 - ALIKE):
                yield Alternative(kind, choice)

    def dearer(self, outcome: Outcome) -> dict[str, float]:
        """Providers of which something cannot be proven, and which cost more than the answer: what, at least."""
        kinds = {name.partition(" ")[::2]: usd for name, usd in outcome.least_usd.items()}
        return {provider: usd for (kind, provider), usd in kinds.items() if kind == UNPROVEN}

    def savings(self, best: Choice) -> tuple[AvoidableCost, ...]:
        point = next(point for point, choice in self._made.values() if choice is best)
        return savings(best, point.of.timed, self.biller)


class JobPlanner(PlanMaker):
    """Of a job, whose settings are chosen with the machines."""

    job: Job

    def __init__(
        self, job: Job, offers: Selection, question: Question, model: ModelConfig, progress: Progress | None,
        bounds: bool, found: Callable[[Choice], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, offers, question)
        self.model, self.progress, self.bounds, self.found = model, progress, bounds, found
        self.space = self.alone = self._space(several=False)
        self.estimator = Estimator(self.space, model, question.learned)

    def _space(self, *, several: bool) -> Space:
        freedom = self.question.freedom
        if freedom.nodes_up_to is None and not freedom.is_fixed("hardware.nodes") and not several:
            freedom = replace(freedom, nodes_up_to=1)
        offers = dict.fromkeys([*self.offers.offers, *(each for of in self.groups.values() for each in of)])
        return space_of(self.job, freedom, list(offers), self.model.raw)

    def search_wider(self, within_s: float | None) -> tuple[Outcome, bool]:
        """Of one machine; of several where none is enough, and whether it is. What was asked for comes first."""
        self.space = self.estimator.space = self.alone
        outcome = self._search(within_s)
        enough = outcome.front and outcome.front[0].of.held.fits_surely
        if enough or self.question.freedom.nodes_up_to is not None:
            return outcome, False
        self.space = self.estimator.space = self._space(several=True)
        wider = self._search(within_s)
        if wider.front and (not outcome.front or wider.front[0].of.held.fits_surely):
            return wider, True
        self.space = self.estimator.space = self.alone
        return outcome, False

    def _search(self, within_s: float | None) -> Outcome:
        found = self.found
        search = Search(
            self.space,
            self.estimator,
            self.biller,
            aim=Aim(FRONT, self.may_be_picked, within_s),
            aims=self.aims(within_s),
            bounds=self.bounds,
            progress=self.progress,
            found=None if found is None else lambda point: found(self.choice(point)),
        )
        self._outcomes.append(search.run())
        return self._outcomes[-1]

    def validated(self, rig: Rig) -> bool:
        job = self.job
        low = job.matmul_dtype is not None
        return evidence_for(rig.gpu_name, job.stack, job.method, rig.cards > 1, low_precision=low).validated

    def _choice(self, point: Point[FittingSetting]) -> Choice:
        rig, setting, offer, timed, _ = point.of
        assert setting is not None
        biller = self.biller
        bill = biller.bill(timed, offer, rig.nodes)
        _, start = biller.terms(offer)
        job = self.space.job_of(rig, setting)
        job = replace(job, data=replace(job.data, num_proc=self.space.processes(offer)))
        job = replace(job, hardware=replace(job.hardware, provisioning_s=start.likely_s))
        if bill.save_steps is not None:
            job = replace(job, run=replace(job.run, save_strategy="steps", save_steps=bill.save_steps))
        before, after = self.space.job.flat(), job.flat()
        return replace(
            self.as_found(point.of, bill, evidence_of(job, rig.gpu_name)),
            job=job,
            changes={name: after[name] for name in SETTINGS if before[name] != after[name]},
            tokens=timed.whole.real_tokens * biller.said.runs,
            ram_bytes=self.estimator.ram_bytes(rig, setting),
            disk_bytes=self._disk_bytes(point.of),
        )

    def _disk_bytes(self, found: FittingSetting) -> int | None:
        """None where the job's files are not known."""
        assert found.setting is not None
        outside = self.estimator.outside(found.setting.technique, found.setting.spread._replace(layers=1))
        if outside is None:
            return None
        saved = self.biller.checkpoints(found.timed, found.offer, found.rig.nodes)
        limit = self.job.run.save_total_limit
        at_once = saved if limit is None else min(saved, limit + 1)
        written = at_once * found.timed.checkpoint_bytes + found.timed.weights_bytes
        return outside.downloaded_bytes + self.question.terms.runs * written

    def with_prediction(self, choice: Choice) -> Choice:
        assert choice.job is not None
        learned = self.question.learned.get(choice.fleet.gpu.name)
        return replace(choice, prediction=analytic(choice.job, learned=learned))

    def refusals(self, outcome: Outcome) -> tuple[Refusal, ...]:
        return refusals(self.space, outcome, self.main)

    def ruled_out(self, outcome: Outcome, refused: Sequence[Refusal]) -> tuple[str, ...]:
        return ruled_out(self.space, outcome, refused, self.main)

    def assumptions(self, picks: Mapping[str, Choice | None], several: bool) -> list[str]:
        unread = self.question.unlearned
        told = [f"nothing is learned from your runs: {unread}"] if unread else []
        return [*told, *_assumptions(self.space, picks, several)]

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.model.notes


def _accepting(offers: frozenset[Offer]) -> Callable[[Rig, Offer], bool]:
    return lambda rig, offer: offer in offers


def with_data(job: Job, assumed: list[str]) -> Job:
    """The job with an amount of data, where it says none; that is then the first thing assumed."""
    data = job.data
    lengths = sample_lengths(data)
    is_told = data.tokens is not None or data.samples is not None or (lengths is not None and lengths.samples)
    if is_told or job.run.max_steps is not None:
        return job
    rows = f"{ASSUMED_TOKENS:,} tokens x {data.epochs:g} epochs"
    assumed.append(f"no amount of data given, so {rows} are assumed: give yours with --samples or --tokens")
    if data.has_lengths:
        return replace(job, data=replace(data, samples=max(1, ASSUMED_TOKENS // job.seq_len)))
    return replace(job, data=replace(data, tokens=ASSUMED_TOKENS))


def _risk_of(high_bytes: int, capacity_bytes: int) -> str | None:
    if high_bytes <= capacity_bytes:
        return None
    over = (high_bytes - capacity_bytes) / GIB
    return f"may not fit: at the high end of its range it is {over:.1f} GiB over"


def _offer_named(offer: Offer) -> str:
    kind = "" if offer.kind == ON_DEMAND else f", {offer.kind}"
    return f"{offer.gpus} x {offer.gpu} at {offer.provider}{kind}, {offer.usd_per_hour:g} USD per hour"


def _notes(picks: Mapping[str, Choice | None], offers: Selection, question: Question) -> list[str]:
    """Where the machine of a pick can also be reserved: from how many hours on that pays."""
    told: dict[str, None] = {}
    for choice in picks.values():
        if choice is None or choice.fleet.offer.kind != ON_DEMAND:
            continue
        own = choice.fleet.offer
        for reserved in offers.beside.get("reserved", ()):
            if (reserved.provider, reserved.gpu, reserved.gpus) == (own.provider, own.gpu, own.gpus):
                told[_reservation(reserved, own, choice)] = None
    best = picks["cheapest"]
    if question.weekly and best is not None:
        hours = RUNS_A_YEAR * best.bill.billed_s / HOUR_S
        told[f"weekly for a year: {best.bill.usd_per_year():,.2f} USD, {hours:,.0f} hours of rent"] = None
    return list(told)


def _reservation(reserved: Offer, own: Offer, choice: Choice) -> str:
    hours = break_even_hours(reserved, own)
    due = reserved.usd_per_hour * (reserved.term_hours or 0.0)
    what = (
        f"reserved {own.gpus} x {own.gpu} at {own.provider} costs {due:,.0f} USD for {reserved.term_hours:,.0f} hours"
    )
    if hours is None:
        return f"{what}, more than on demand"
    runs = hours * HOUR_S / choice.total_s
    return f"{what}: worth it from {hours:,.0f} hours of use, {runs:,.0f} such runs"


def _assumptions(space: Space, picks: Mapping[str, Choice | None], several: bool) -> list[str]:
    told = [f"the global batch stays {space.global_batch} rows per step, however it is split"]
    if space.freedom.nodes_up_to is None or several:
        told.append("one machine is not enough: up to 64 cards are considered (--nodes-up-to)")
    elif space.freedom.nodes_up_to == 1:
        told.append("one machine is rented (--nodes-up-to N considers several)")
    told.append("checkpoints are stored while the run lasts, and the result is downloaded (--storage, --egress)")
    if not space.job.hardware.image_bytes:
        told.append("no container image to pull (--image SIZE)")
    for choice in picks.values():
        told += [] if choice is None else choice.bill.assumptions
    starts = "-".join(f"{each / 60:.0f}" for each in USUAL_START_S)
    told.append(f"machines start in their provider's usual time, {starts} minutes where it is not known")
    return list(dict.fromkeys(told))
