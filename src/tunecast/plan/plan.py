"""A plan from a job and offers: searched, picked, explained."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from tunecast.job.job import Job
from tunecast.job.model import ModelConfig, resolve_model
from tunecast.offers.cost import break_even_hours
from tunecast.offers.offer import ON_DEMAND, RESERVED, Offer
from tunecast.plan.bill import USUAL_START_S, Biller, Terms
from tunecast.plan.choice import DOLLARS, NO_LIMITS, PICKS, SETTINGS, Choice, Limits, Machine, Money, Plan, Searched
from tunecast.plan.constraints import affordable, refusals, ruled_out
from tunecast.plan.estimate import Estimator
from tunecast.plan.objective import balanced, cheapest, fastest, reasons
from tunecast.plan.pareto import Point
from tunecast.plan.search import Found, Outcome, Progress, Search
from tunecast.plan.space import Freedom, Space, space_of
from tunecast.records import replace
from tunecast.units import GIB

ASSUMED_TOKENS = 10_000_000
"""Of a job that does not say how much there is to train on: enough that starting up is a small part of it."""


def planned(
    job: Job,
    offers: Sequence[Offer],
    *,
    today: date,
    freedom: Freedom | None = None,
    limits: Limits = NO_LIMITS,
    terms: Terms | None = None,
    asked: Sequence[str] = (),
    money: Money = DOLLARS,
    known: Sequence[Offer] | None = None,
    model: ModelConfig | None = None,
    progress: Progress | None = None,
    bounds: bool = True,
    front_in_full: bool = False,
) -> Plan:
    """`offers` are those that may be rented; `known` all there are, for what a reservation is compared with.
    `front_in_full` gives the whole front its predictions, which picks always have.

    Raises what reading the model raises; that nothing fits is a plan without choices (`constraints.verdict`).
    """
    assumed: list[str] = []
    job = with_data(job, assumed)
    space = space_of(job, freedom or Freedom(), offers)
    estimator = Estimator(space, model or resolve_model(job.model))
    biller = Biller(job, terms or Terms())
    search = Search(space, estimator, biller, within_s=limits.within_s, bounds=bounds, progress=progress)
    outcome = search.run()
    made: dict[tuple[int, ...], Choice] = {}

    def choice(point: Point[Found]) -> Choice:
        """One object, wherever it is in the plan."""
        if point.order not in made:
            made[point.order] = choice_of(point, space, biller)
        return made[point.order]

    front = [choice(point) for point in outcome.front]
    others = [choice(point) for point in sorted(outcome.best.values(), key=lambda point: point[:3])]
    sure = [choice(point) for point in outcome.sure or outcome.front]
    within = affordable(sure, limits)
    picks: dict[str, Choice | None] = dict.fromkeys(PICKS)
    if within:
        picks.update(cheapest=cheapest(within), fastest=fastest(within), balanced=balanced(within))
    if outcome.in_time is not None and affordable([choice(outcome.in_time)], limits):
        picks["deadline"] = choice(outcome.in_time)
    refused = refusals(space, outcome)
    final = _explained(picks, within, limits, estimator)
    if front_in_full:
        rest = [each for each in front if id(each) not in final]
        final |= {id(each): replace(each, prediction=estimator.said(each.job)) for each in rest}
    return Plan(
        job=job,
        today=today,
        picks={name: None if each is None else final[id(each)] for name, each in picks.items()},
        pareto=tuple(final.get(id(each), each) for each in front),
        choices=tuple(final.get(id(each), each) for each in others),
        refused=refused,
        ruled_out=ruled_out(space, outcome, refused),
        searched=Searched(outcome.configurations, outcome.bounded, outcome.predicted, outcome.seconds),
        limits=limits,
        asked=tuple(asked),
        money=money,
        notes=tuple(_notes(picks, known or offers)),
        assumptions=(*assumed, *_assumptions(space, outcome, picks)),
        warnings=estimator.model.notes,
    )


def with_data(job: Job, assumed: list[str]) -> Job:
    """The job with an amount of data, where it says none; that is then the first thing assumed."""
    data = job.data
    is_told = data.tokens is not None or data.samples is not None or isinstance(data.lengths, tuple)
    if is_told or job.run.max_steps is not None:
        return job
    rows = f"{ASSUMED_TOKENS:,} tokens, {data.epochs:g} times over"
    assumed.append(f"there is no data in the job: {rows} are taken; say yours with --tokens or --samples")
    if data.lengths is not None:
        return replace(job, data=replace(data, samples=max(1, ASSUMED_TOKENS // job.seq_len)))
    return replace(job, data=replace(data, tokens=ASSUMED_TOKENS))


def choice_of(point: Point[Found], space: Space, biller: Biller) -> Choice:
    rig, setting, offer, timed, held = point.of
    bill = biller.bill(timed, offer, rig.nodes)
    _, start = biller.terms(offer)
    job = space.job_of(rig, setting)
    job = replace(job, hardware=replace(job.hardware, provisioning_s=start.likely_s))
    before, after = space.job.flat(), job.flat()
    return Choice(
        machine=Machine(rig.card, rig.gpus, rig.nodes, offer),
        job=job,
        changes={name: after[name] for name in SETTINGS if before[name] != after[name]},
        device_bytes=held.device_bytes,
        device_range_bytes=held.range_bytes,
        capacity_bytes=held.capacity_bytes,
        step_s=timed.step_s,
        total_s=bill.total_s,
        total_range_s=bill.range_s,
        cost=bill.cost,
        usd_range=bill.usd_range,
        tokens=timed.whole.real_tokens,
        phases_s=biller.phases(timed, start),
        risk=_risk(held.range_bytes[1], held.capacity_bytes),
    )


def _risk(high_bytes: int, capacity_bytes: int) -> str | None:
    if high_bytes <= capacity_bytes:
        return None
    over = (high_bytes - capacity_bytes) / GIB
    return f"may not fit: the high end of its range is {over:.1f} GiB over what the card has"


def _explained(
    picks: dict[str, Choice | None], front: Sequence[Choice], limits: Limits, estimator: Estimator
) -> dict[int, Choice]:
    """Each pick with its reasons and its whole prediction; one that is several is said why for each."""
    told = reasons(picks, front, limits.within_s)
    final: dict[int, Choice] = {}
    for name, choice in sorted(picks.items(), key=lambda each: each[0] != "deadline"):  # what the answer is about first
        if choice is None:
            continue
        known = final.get(id(choice))
        if known is None:
            final[id(choice)] = replace(choice, why=told[name], prediction=estimator.said(choice.job))
        elif told[name] not in known.why:
            final[id(choice)] = replace(known, why=f"{known.why}; {told[name]}")
    return final


def _notes(picks: dict[str, Choice | None], known: Sequence[Offer]) -> list[str]:
    """Where the machine of a pick can also be reserved, or had on demand: from how many hours on that pays."""
    told: dict[str, None] = {}
    for choice in picks.values():
        if choice is None or choice.machine.offer.kind not in (ON_DEMAND, RESERVED):
            continue
        own = choice.machine.offer
        alike = [each for each in known if (each.provider, each.gpu, each.gpus) == (own.provider, own.gpu, own.gpus)]
        on_demand = min(
            (each for each in alike if each.kind == ON_DEMAND), key=lambda each: each.usd_per_hour, default=None
        )
        for reserved in (each for each in alike if each.kind == RESERVED):
            if on_demand is None:
                continue
            hours = break_even_hours(reserved, on_demand)
            what = f"reserved {own.gpus} x {own.gpu} at {own.provider}"
            term = f"of its {reserved.term_hours:,.0f} hours"
            paid = f"{what} never pays" if hours is None else f"{what} pays from {hours:,.0f} {term} on"
            runs = "" if hours is None else f", {hours * 3600 / choice.total_s:,.0f} such runs"
            told[f"{paid}{runs} (against {on_demand.usd_per_hour:.2f} USD an hour on demand)"] = None
    return list(told)


def _assumptions(space: Space, outcome: Outcome, picks: dict[str, Choice | None]) -> list[str]:
    told = [f"the global batch stays {space.global_batch} rows, however it is split"]
    if space.freedom.nodes_up_to is None:
        told.append("up to 64 cards are looked at: --nodes-up-to for more machines or fewer")
    told.append("checkpoints are kept while the run lasts, the result is taken home: --storage, --egress")
    if not space.job.hardware.image_bytes:
        told.append("no container image has to be pulled: hardware.image_bytes")
    for choice in picks.values():
        told += [] if choice is None else choice.cost.assumptions
    starts = "-".join(f"{each / 60:.0f}" for each in USUAL_START_S)
    told.append(f"a machine is there within its provider's usual time, {starts} minutes where nobody says it")
    return list(dict.fromkeys(told))
