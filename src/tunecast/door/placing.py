"""Which machine each of several jobs gets: by plan, each its cheapest, or of machines that they share; and what that
saves against one kind of machine for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.door.plan import Planner, PlanOptions
from tunecast.errors import DoesNotFit, OverBudget, TunecastError, UsageError
from tunecast.job.job import Job
from tunecast.launching.programs import launcher_share
from tunecast.launching.rendering import VENDOR
from tunecast.market import store
from tunecast.market.offer import OWNED, RESERVED, Offer
from tunecast.planning.choice import Choice, Plan
from tunecast.planning.sharing import Sharing, share
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.result import Result
from tunecast.units import duration_s

DEFAULT_GPU = "h100-sxm-80gb"
"""What jobs are compared with beside the best single kind: the card that most providers rent out (offers.csv)."""

NOT_RENDERED = ("parallel.layers",)
"""What a plan could choose and no trainer's file says: it stays as the job has it."""

Tick = Callable[[str], None]
"""Told what is planned next, by whoever shows that it goes on."""


def no_tick(what: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Placement(Result):
    """The machine that one job got."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "hardware", "provider", "kind", "starts_s", "total_s", "total_range_s", "total_usd"),
    )

    name: str
    choice: Choice
    total_usd: float
    """0 on a reservation, which is paid for whether it is used or not."""
    starts_s: float = 0.0
    """After the jobs before it on a machine that several share."""
    plan: Plan | None = None
    machine: int | None = None
    """Of those that are shared, counted from 0."""

    @property
    def hardware(self) -> str:
        return self.choice.hardware

    @property
    def provider(self) -> str:
        return self.choice.fleet.offer.provider

    @property
    def kind(self) -> str:
        return self.choice.fleet.offer.kind

    @property
    def total_s(self) -> float:
        return self.choice.total_s

    @property
    def total_range_s(self) -> tuple[float, float]:
        return self.choice.total_range_s


class SingleKind(NamedTuple):
    """The same jobs, all on one kind of card."""

    gpu: str
    fits: int
    """How many of the jobs it runs; only of all of them there are totals."""
    total_usd: float | None
    longest_s: float | None
    machine_s: float | None


@dataclass(frozen=True)
class PlacedTogether(Result):
    """The machines of several jobs, and what they cost together."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("jobs", "shared", "total_usd", "longest_s", "longest_range_s", "machine_s", "least_s", "within_s", "max_usd"),
        *("best_single", "default_single", "saved_usd", "saved_usd_default"),
    )

    jobs: tuple[Placement, ...]
    shared: bool = False
    least_s: float | None = None
    """Where machines are shared: no way to share them ends sooner."""
    within_s: float | None = None
    max_usd: float | None = None
    best_single: SingleKind | None = None
    """The cheapest of one kind of card for all of them."""
    default_single: SingleKind | None = None

    @property
    def total_usd(self) -> float:
        return sum(each.total_usd for each in self.jobs)

    @property
    def machine_s(self) -> float:
        return sum(each.total_s for each in self.jobs)

    @property
    def longest_s(self) -> float:
        """Until the last one is over, where all begin at once or as their turn comes."""
        return max(each.starts_s + each.total_s for each in self.jobs)

    @property
    def longest_range_s(self) -> tuple[float, float]:
        """80 % of each job: all of them early, all of them late."""
        if not self.shared:
            return tuple(max(each.total_range_s[end] for each in self.jobs) for end in (0, 1))  # type: ignore[return-value]
        sums: dict[object, list[float]] = {}
        for each in self.jobs:
            of = sums.setdefault(each.machine, [0.0, 0.0])
            of[0], of[1] = of[0] + each.total_range_s[0], of[1] + each.total_range_s[1]
        return max(of[0] for of in sums.values()), max(of[1] for of in sums.values())

    @property
    def saved_usd(self) -> float | None:
        return _saved(self.best_single, self.total_usd)

    @property
    def saved_usd_default(self) -> float | None:
        return _saved(self.default_single, self.total_usd)


def _saved(against: SingleKind | None, total_usd: float) -> float | None:
    return None if against is None or against.total_usd is None else against.total_usd - total_usd


class NamedJob(NamedTuple):
    name: str
    job: Job
    gpu: str | None = None
    """The card it says it runs on; None where that is open."""


def place_each(jobs: Sequence[NamedJob], options: PlanOptions, tick: Tick = no_tick) -> PlacedTogether:
    """Each on the machine of its plan: the cheapest that keeps the limits. The deadline is that of each, as all begin
    at once; the budget that of all. Raises `DoesNotFit` with every job that has no machine, `OverBudget`."""
    plans = Plans(options, tick)
    found, failures = [], []
    for name, job, gpu in jobs:
        plan = plans.plan(name, job) if gpu is None else plans.plan(name, job, gpu=gpu)
        if isinstance(plan, Plan) and plan.best is not None:
            found.append(Placement(name, plan.best, plan.best.total_usd, plan=plan))
        else:
            failures.append(f"{name}: {_why(plan)}")
    if failures:
        raise DoesNotFit("; ".join(failures))
    placed = PlacedTogether(tuple(found), within_s=plans.within_s, max_usd=options.get("max_usd"))
    require_budget(placed)
    return with_single_kinds(placed, jobs, plans)


def _why(plan: Plan | str) -> str:
    if isinstance(plan, str):
        return plan
    return plan.failure.message if plan.failure is not None else "no machine keeps the limits"


def require_budget(placed: PlacedTogether) -> None:
    if placed.max_usd is not None and placed.total_usd > placed.max_usd:
        raise OverBudget(
            f"{len(placed.jobs)} jobs cost {placed.total_usd:.2f} USD together, and the budget is {placed.max_usd:g}. "
            "To fix: a higher --max-usd, a later --within, --spot, or fewer jobs"
        )


class Plans:
    """Each question is asked once: jobs of a sweep differ, but many of a file are alike."""

    def __init__(self, options: PlanOptions, tick: Tick) -> None:
        self.options, self.tick = options, tick
        within = options.get("within")
        self.within_s = duration_s(within) if isinstance(within, str) else within
        self._known: dict[tuple[Job, str], Plan | str] = {}

    def plan(self, name: str, job: Job, **narrower: Any) -> Plan | str:
        """Of one job; in words why there is none."""
        key = replace(job, id=None), repr(sorted(narrower.items()))
        if key not in self._known:
            self.tick(name)
            try:
                vendor = self.options.get("vendor") or VENDOR
                asked: Any = {**self.options, "vendor": vendor, "max_usd": None, "keep": NOT_RENDERED, **narrower}
                self._known[key] = Planner(job, asked, launcher_share=launcher_share(job)).plan()
            except TunecastError as error:
                self._known[key] = error.message
        return self._known[key]

    def on_kind(self, name: str, job: Job, gpu: str) -> Choice | None:
        """The cheapest on such cards: of the plan where it looked at them, else of a plan of its own."""
        plan = self.plan(name, job)
        if isinstance(plan, Plan):
            for choice in plan.choices:  # the cheapest first
                if choice.fleet.gpu.name == gpu and plan.is_answered:
                    return choice
        narrow = self.plan(name, job, gpu=gpu)
        return narrow.best if isinstance(narrow, Plan) else None


def with_single_kinds(placed: PlacedTogether, jobs: Sequence[NamedJob], plans: Plans) -> PlacedTogether:
    """What one kind of card for all of them would cost: the kinds that were picked for any of them, those that every
    plan looked at, and the usual one."""
    if len(jobs) < 2 or any(each.gpu for each in jobs):
        return placed
    looked_at = [
        {choice.fleet.gpu.name for choice in each.plan.choices} for each in placed.jobs if each.plan is not None
    ]
    picked = {each.choice.fleet.gpu.name for each in placed.jobs}
    kinds = sorted(picked | set.intersection(*looked_at) | {DEFAULT_GPU})
    found = {gpu: _single_kind(gpu, jobs, plans) for gpu in kinds}
    whole = [each for each in found.values() if each.total_usd is not None]
    best = min(whole, key=lambda each: (each.total_usd or 0.0, each.gpu), default=None)
    return replace(placed, best_single=best, default_single=found[DEFAULT_GPU])


def _single_kind(gpu: str, jobs: Sequence[NamedJob], plans: Plans) -> SingleKind:
    choices = [plans.on_kind(each.name, each.job, gpu) for each in jobs]
    there = [each for each in choices if each is not None]
    if len(there) < len(jobs):
        return SingleKind(gpu, len(there), None, None, None)
    seconds = [each.total_s for each in there]
    return SingleKind(gpu, len(there), sum(each.total_usd for each in there), max(seconds), sum(seconds))


def own_machines(offers: Sequence[Offer] | None = None) -> list[Offer]:
    """The user's own and reserved, each as often as there are (`max_nodes` of `tunecast offers add`)."""
    known = store.kept(store.OWN) if offers is None else offers
    return [offer for offer in known if offer.kind in (OWNED, RESERVED) for _ in range(offer.max_nodes or 1)]


def place_shared(
    jobs: Sequence[NamedJob], options: PlanOptions, tick: Tick = no_tick, offers: Sequence[Offer] | None = None
) -> PlacedTogether:
    """All of them on the user's own and reserved machines, one at a time on each, by one deadline; as in any plan, the
    cards are chosen, whatever a job says of them. Raises `UsageError`
    where there are none, `DoesNotFit` where a job fits none of them or they are not over in time, `OverBudget`."""
    machines = own_machines(offers)
    if not machines:
        raise UsageError(
            "--share: no machine of your own is known. To fix: tunecast offers add FILE (see tunecast offers --help)",
            field="share",
        )
    plans = Plans({**options, "within": None}, tick)
    kinds = list(dict.fromkeys(machines))
    by_kind = [[_on_offer(plans, each, offer) for offer in kinds] for each in jobs]
    table = [[row[kinds.index(offer)] for offer in machines] for row in by_kind]
    lost = [each for each, row in zip(jobs, table, strict=True) if not any(row)]
    if lost:
        told = "; ".join(f"{each.name}: {_why(plans.plan(each.name, each.job, **_only(kinds[0])))}" for each in lost)
        raise DoesNotFit(f"none of your machines runs {told}. To fix: leave --share out, or tunecast fit")
    within = options.get("within")
    within_s = duration_s(within) if isinstance(within, str) else within
    found = share(
        [[None if each is None else each.total_s for each in row] for row in table],
        [[None if each is None else _cost_here(each) for each in row] for row in table],
        len(machines),
        within_s,
    )
    assert found is not None
    placed = PlacedTogether(
        tuple(_placements(found, jobs, table)),
        shared=True,
        least_s=found.least_s,
        within_s=within_s,
        max_usd=options.get("max_usd"),
    )
    require_in_time(placed)
    require_budget(placed)
    return placed


def _only(offer: Offer) -> dict[str, Any]:
    """Options of a plan that looks at this machine alone."""
    which = {"provider": offer.provider, "gpu": offer.gpu, "gpus": offer.gpus, "kind": offer.kind}
    return {**which, "reserved": True, "nodes_up_to": 1}


def _on_offer(plans: Plans, each: NamedJob, offer: Offer) -> Choice | None:
    plan = plans.plan(each.name, each.job, **_only(offer))
    return plan.picks["cheapest"] if isinstance(plan, Plan) and plan.is_answered else None


def _cost_here(choice: Choice) -> float:
    return 0.0 if choice.fleet.offer.kind == RESERVED else choice.total_usd


def _placements(
    found: Sharing, jobs: Sequence[NamedJob], table: Sequence[Sequence[Choice | None]]
) -> Sequence[Placement]:
    """In the order of the jobs given."""
    made: Mapping[int, Placement] = {
        turn.job: Placement(jobs[turn.job].name, choice, _cost_here(choice), turn.starts_s, machine=turn.machine)
        for turn in found.turns
        if (choice := table[turn.job][turn.machine]) is not None
    }
    return [made[n] for n in range(len(jobs))]


def require_in_time(placed: PlacedTogether) -> None:
    if placed.within_s is not None and placed.longest_s > placed.within_s:
        at_least = placed.least_s or 0.0
        proven = " No way to share them is sooner" if at_least > placed.within_s else " No sooner way was found"
        raise DoesNotFit(
            f"your machines end {len(placed.jobs)} jobs in {placed.longest_s / 3600:.1f} h, and --within is "
            f"{placed.within_s / 3600:.1f} h.{proven} (at least {at_least / 3600:.1f} h). To fix: a later --within, or "
            "leave --share out"
        )
