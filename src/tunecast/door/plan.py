"""Which machines to rent for a job, with which settings, how long it takes and what it costs in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Unpack, cast

from tunecast.door import filters
from tunecast.door.filters import FilterOptions, MoneyOptions, Names
from tunecast.door.offers import stock_of
from tunecast.door.read import Command, Source, read, script_of
from tunecast.errors import DoesNotFit, TunecastError, UsageError
from tunecast.job.job import Job, all_knobs
from tunecast.market import store
from tunecast.market.filters import Filters
from tunecast.market.offer import RESERVED, SPOT
from tunecast.market.selection import BESIDE, MARKETPLACE, Rules, Selection, select
from tunecast.planning.bill import Terms
from tunecast.planning.choice import Choice, Constraints, Money, Plan
from tunecast.planning.constraints import relaxations, verdict
from tunecast.planning.plan import Question, plan_of
from tunecast.planning.search import Progress
from tunecast.planning.space import Freedom, freed_fields, kept_fields
from tunecast.planning.taken import with_taken
from tunecast.records import replace
from tunecast.units import UNITS_S, duration_s

if TYPE_CHECKING:
    from tunecast.door.trace import ScriptTrace
    from tunecast.prediction.lessons.correction import Learned

Found = Callable[[Choice], None]


class PlanOptions(FilterOptions, MoneyOptions, total=False):
    """Every option of `tunecast plan`, by the name of its flag."""

    within: str | float | None
    """Deadline from order to model: `"6h"`, `"90min"`, `"2d"`, or seconds."""
    max_usd: float | None
    """Budget: the likely cost."""
    nodes_up_to: int | None
    """Machines joined at most; one, unless it is not enough."""
    runs: int
    """Variants, one after another on one machine."""
    validated: bool
    """Only cards and stacks whose runs were measured."""
    weekly: bool
    """It runs every week: also say what a year costs."""
    keep: Names
    """Fields to fix too."""
    allow: Names
    """Fields to choose too."""
    spot: bool
    """Spot machines may be picked too."""
    no_spot: bool
    """Say nothing of spot machines."""
    marketplace: bool
    """Marketplaces, and sellers without a known company, may be picked too."""
    reserved: bool
    """Reservations may be picked too, each at the cost of its whole term."""
    max_age: int | None
    """Of a price, in days; 180, of spot prices 30."""
    available: bool
    """Ask providers that tell anybody whether one is free."""
    as_of: date | str | None
    """Plan as on that day."""
    storage: int | str | None
    """Kept for a month: bytes, or `"20GB"`; checkpoints and model."""
    egress: int | str | None
    """Taken home; the model, or its adapters."""
    interruptions: float | None
    """Of a spot machine, per hour."""
    no_calibration: bool
    """Leave out what was learned from measured runs."""
    traces: int
    """Further cards that a script is traced on at most; of a script alone."""


def plan(
    job: Source | Command | ScriptTrace,
    overrides: Mapping[str, object] | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """The cheapest, the fastest and the balanced choice, and with `within` the cheapest that makes the deadline.

    What the job says stays as it is; chosen are the cards, how the job is spread over them, how the global batch is
    split, and, where the job does not say them, gradient_checkpointing and kernels. Where nothing keeps to the limits
    every pick is None, `failure` says why, and `choices` has what comes nearest.

    A list of words is the command of a script, which is traced (`trace`), and so is its trace: `plan(["train.py"])`.
    Of a script nothing but the machine is chosen.

    Raises `DoesNotFit` where no offer is left.
    """
    script = script_of(job)
    if script is not None:
        from tunecast.door.script_plan import ScriptPlanner

        return ScriptPlanner(script, options).plan()
    return Planner(read(cast(Source, job), overrides), options).plan()


def field_names(given: Names) -> list[str]:
    """Of fields dashes and underscores are alike."""
    return [name.replace("-", "_") for name in filters.split_names(given)]


class Planner:
    """One question, asked of more or fewer offers, with more or less freedom."""

    def __init__(
        self,
        job: Job | None,
        options: PlanOptions,
        progress: Progress | None = None,
        found: Found | None = None,
        launcher_share: float = 0.0,
    ) -> None:
        """`found` is told of each hardware's cheapest choice while the search goes on; `launcher_share`: of a job that
        is to be launched, `planning.bill.Terms.launcher_share`."""
        self.job, self.progress, self.found, self.launcher_share = job, progress, found, launcher_share
        self.options = every = filters.with_defaults("plan", options, PlanOptions.__annotations__)
        every["keep"], every["allow"] = field_names(every["keep"]), field_names(every["allow"])
        every["within"] = _seconds(every["within"])
        every["runs"] = 1 if every["runs"] is None else every["runs"]
        self.today = _day(every["as_of"])
        self.vat_fraction = (every["vat"] or 0.0) / 100
        self.freedom = Freedom(
            frozenset() if job is None else _written(job),
            kept_fields(every["keep"]),
            freed_fields(every["allow"]),
            every["nodes_up_to"],
        )
        self.question = self._question()
        self.known, self.own = store.offers(), frozenset(store.kept(store.OWN))

    def _question(self) -> Question:
        given = self.options
        terms = Terms(
            given["interruptions"],
            filters.size_of("storage", given["storage"]),
            filters.size_of("egress", given["egress"]),
            self.vat_fraction,
            given["runs"],
            chooses_saves=not self.freedom.written & {"run.save_strategy", "run.save_steps", "run.saves_per_epoch"},
            launcher_share=self.launcher_share,
        )
        return Question(
            self.today,
            self.freedom,
            Constraints(given["within"], given["max_usd"]),
            terms,
            tuple(asked_flags(given)),
            Money(bool(given["eur"]), filters.rate_of(given["usd_per_eur"], self.today), self.vat_fraction),
            bool(given["weekly"]),
            bool(given["validated"]),
            *self._learned(),
        )

    def _learned(self) -> tuple[Mapping[str, Learned], str]:
        """Of a job; how long a script's steps take no run says."""
        if self.job is None or self.options["no_calibration"]:
            return {}, ""
        from tunecast.learn.lessons import learned_elsewhere

        return learned_elsewhere()

    def plan(self, *, front_in_full: bool = False, unstated: bool = False) -> Plan:
        """`front_in_full`: with the predictions of the whole front. `unstated`: with what the job does not say, and
        what other values of it would change."""
        offers = self.select(filters.filters_of(self.options))
        if not offers.offers:
            raise self._no_offer(offers)
        found = self._search(offers, self.question, front_in_full=front_in_full, found=self.found)
        failure = verdict(found)
        if isinstance(failure, DoesNotFit):
            failure = verdict(found, self._nearest(offers, is_known=_is_known(found)))
        if unstated:
            found = with_taken(found, self.question.terms, self.question.learned)
        if self.options["available"]:
            rented = dict.fromkeys(each.fleet.offer for each in found.picks.values() if each is not None)
            found = found.with_availability({offer: each.answer for offer, each in stock_of(rented).items()})
        return replace(found, failure=failure)

    def select(self, wanted: Filters, *, everything: bool = False) -> Selection:
        given = self.options
        named = {SPOT: given["spot"], MARKETPLACE: given["marketplace"], RESERVED: given["reserved"]}
        allow = frozenset(name for name, allowed in named.items() if allowed or name in given["kind"] or everything)
        show = frozenset(BESIDE) - ({SPOT} if given["no_spot"] else set())
        return select(self.known, wanted, Rules(allow, show, given["max_age"]), self.today, self.own)

    def _search(
        self, offers: Selection, question: Question, *, front_in_full: bool = False, found: Found | None = None
    ) -> Plan:
        assert self.job is not None
        return plan_of(self.job, offers, question, progress=self.progress, front_in_full=front_in_full, found=found)

    def _no_offer(self, offers: Selection) -> DoesNotFit:
        """What is said where no offer is left, with what would leave some."""
        after = f" after {', '.join(self.question.asked)}" if self.question.asked else ""
        tries = [f"--{name} would leave {len(of)}" for name, of in offers.beside.items()]
        tries += [f"{n} left out: {why}" for why, n in offers.unknown.items()]
        tries += [f"not proven of {', '.join(sorted(offers.unproven))}"] if offers.unproven else []
        tries += [f"{offers.old} left out for the age of their prices: --max-age"] if offers.old else []
        tries += ["your own machines: tunecast offers add"] if self.options["gpu"] else []
        return DoesNotFit("; ".join([f"no offer is left{after}: {offers.cut} leaves none", *tries]))

    def _nearest(self, offers: Selection, *, is_known: bool) -> list[str]:
        """What would run the job: each of these is a plan that was made. Where no setting of it is known at all, only
        another method can help."""
        question, flags = self.question, filters.flags_of(self.options)
        tried: list[tuple[str, Freedom, Selection]] = []
        everything = self.select(Filters(), everything=True)
        if is_known and len(everything.offers) > len(offers.offers):
            name = f"without {', '.join(flags)}" if flags else "--spot --marketplace"
            tried.append((name, question.freedom, everything))
        wider = relaxations(question.freedom)
        tried += [(name, wider[name], offers) for name in wider if is_known or name == "--allow method"]
        for name, freedom, of in tried:
            try:
                found = self._search(of, replace(question, freedom=freedom))
            except TunecastError:
                continue
            if found.choices:
                best = found.choices[0]
                what = f"{best.hardware} at {best.offer.provider} for {best.total_usd:.2f} USD"
                before, after = self.job, best.job
                changed = before is not None and after is not None and before.method != after.method
                method = f", method {after.method}" if changed and after is not None else ""
                return [f"what would: {name}: {what}{method}"]
        return ["what would: nothing that was tried; a smaller model, or shorter rows"]


def asked_flags(options: Mapping[str, Any]) -> list[str]:
    """The constraints, as flags."""
    within_s, max_usd, runs = options["within"], options["max_usd"], options["runs"]
    spelled = {
        "within": None if within_s is None else _spelled(within_s),
        "max_usd": None if max_usd is None else f"{max_usd:g}",
        "runs": None if runs == 1 else runs,
    }
    asked = ("max_age", "as_of", "validated", "runs", "within", "max_usd", "keep", "allow", "nodes_up_to")
    return filters.flags_of({**options, **spelled}, (*filters.FILTERS, *asked))


def _spelled(seconds: float) -> str:
    """As it may be typed."""
    unit, size = next((unit, UNITS_S[unit]) for unit in ("h", "min", "s") if seconds >= UNITS_S[unit] or unit == "s")
    return f"{seconds / size:g}{unit}"


def _seconds(given: str | float | None) -> float | None:
    if not isinstance(given, str):
        return given
    seconds = duration_s(given)
    if seconds is None:
        raise UsageError(f"within: got {given!r}; allowed: a time such as 6h, 90min or 2d", field="within")
    return seconds


def _day(given: date | str | None) -> date:
    if not isinstance(given, str):
        return given or date.today()
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise UsageError(f"as_of: got {given[:40]!r}; allowed: a day such as 2026-09-01", field="as_of") from None


def _written(job: Job) -> frozenset[str]:
    """What whoever wrote the job said: a plan keeps it, and may choose the rest."""
    return frozenset(name for name in all_knobs() if job.is_given(name))


def _is_known(plan: Plan) -> bool:
    """Whether more memory, or another way to use it, would help on most of what was refused."""
    small = sum(each.too_small for each in plan.refused)
    return 2 * small >= len(plan.refused)
