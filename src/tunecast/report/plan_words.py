"""What is said of a plan, in words and cells: text, page and Markdown say the same. Pure: a `Plan` in, strings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tunecast.job.job import Job
from tunecast.offers.jurisdiction import EU27, told
from tunecast.offers.offer import LISTED, NOT_AVAILABILITY, OWNED, Offer, age
from tunecast.offers.provider import provider, tenancy
from tunecast.offers.store import sources
from tunecast.plan.choice import Beside, Choice, Money, Plan
from tunecast.plan.constraints import unreachable
from tunecast.report.advice import value_in_yaml
from tunecast.report.figures import shown
from tunecast.report.time import PHASES, duration, span
from tunecast.units import GB, GIB, gib, percent

PLACES = 2
"""Countries an offer names before it counts the rest."""
SEVERAL_USD = 1000
"""From here on cents say nothing."""
RENTED = ("hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect", "hardware.inter_node_gbps")
"""Changes the machine's name already tells."""
SHARE_SHOWN = 0.005
"""Of the total, from which on a line of the bill is shown by itself."""
STALE_DAYS_OF_LIST = 14
MOST_OUTLIERS, MOST_UNPROVEN = 2, 4
RANGES = "Ranges hold in four of five cases. Costs are from the order of the machine to the saved model."


class Pick(NamedTuple):
    """A choice and what it was picked as: the same one may be cheapest and balanced."""

    names: tuple[str, ...]
    choice: Choice

    @property
    def told(self) -> str:
        return ", ".join(self.names)

    @property
    def spoken(self) -> str:
        """`cheapest, fastest and balanced`."""
        *rest, last = self.names
        return f"{', '.join(rest)} and {last}" if rest else last


def picks(plan: Plan) -> list[Pick]:
    """Each choice once, in the order of the picks, the one the answer is about first."""
    names = sorted((n for n, one in plan.picks.items() if one is not None), key=lambda name: name != plan.best_name)
    found: list[Pick] = []
    for name in names:
        one = plan.picks[name]
        same = next((index for index, pick in enumerate(found) if pick.choice is one), None)
        if same is not None:
            found[same] = found[same]._replace(names=(*found[same].names, name))
        elif one is not None:
            found.append(Pick((name,), one))
    return found


def picked_as(plan: Plan, choice: Choice) -> str:
    return ", ".join(name for name, one in plan.picks.items() if one is choice)


def marks(plan: Plan, choice: Choice) -> str:
    """`cheapest, deadline`; and what is uncertain about it, wherever it is shown."""
    names = [picked_as(plan, choice)]
    names += [] if choice.fits_surely else ["may not fit"]
    names += [] if choice.validated else ["not validated"]
    return ", ".join(filter(None, names))


def answer(plan: Plan, choice: Choice) -> str:
    """`Rent 1 x h100-sxm-80gb at lambda (US), on-demand: 4 h 12 min (3.8 to 4.7 h), $14.31 (12.90 to 15.90)`."""
    offer = choice.machine.offer
    if offer.kind == OWNED:
        what = f"Use {choice.hardware}, your own"
    else:
        what = f"Rent {choice.hardware} at {seller(offer)} ({place(offer)}), {kind(offer)}"
    if not choice.fits_surely:
        what += ", though it may not fit"
    if not choice.validated:
        what += ", not validated by a run"
    return shown(f"{what}: {time_told(choice)}, {cost_told(choice, plan.money)}")


def nothing(plan: Plan) -> str:
    """Why there is no pick: nothing runs the job, or nothing keeps to the limits; with what comes nearest."""
    if not plan.pareto:
        return "Nothing to rent was found for this job"
    return shown(unreachable(plan, lambda usd: amount(usd, plan.money)))


def job_told(plan: Plan) -> str:
    """`my-run: llama-3.1-8b, lora, 8 x 1024 tokens a step; --eu, --no-spot`."""
    job = plan.job
    name = f"{job.id}: " if job.id is not None else ""
    best = plan.best
    trained = "" if best is None else f", {_count(best.tokens)} tokens"
    trained += f" in {best.runs} runs, one after another" if best is not None and best.runs > 1 else ""
    asked = f"; {', '.join(plan.asked)}" if plan.asked else ""
    return shown(f"{name}{job.model}, {job.method}, {_batch(job)}{trained}{asked}")


def _batch(job: Job) -> str:
    longest = max(job.lengths) if job.lengths else job.seq_len
    return f"rows of {'up to ' if job.lengths else ''}{longest:,} tokens"


def _count(tokens: float) -> str:
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if tokens >= size:
            return f"{tokens / size:.3g} {name}"
    return f"{tokens:,.0f}"


def seller(offer: Offer) -> str:
    return offer.provider + (f" through {offer.via}" if offer.via else "")


def kind(offer: Offer) -> str:
    return offer.kind.replace("on-demand", "on demand") + (
        f" for {offer.term_hours:,.0f} h" if offer.term_hours is not None else ""
    )


def offer_told(offer: Offer) -> str:
    """`lambda, on-demand, US?`; of one's own machine that it is."""
    if offer.kind == OWNED:
        return short_offer(offer)
    return shown(f"{short_offer(offer)}, {place(offer)}")


def place(offer: Offer) -> str:
    """`FI`; `BE, FI or 1 more`; `one of 14 countries`; `country not known`."""
    if offer.kind == OWNED:
        return "your own"
    known = sorted(offer.known_countries)
    if not known:
        return provider(offer.provider).places or "country not known"
    if offer.placed == LISTED:
        return f"{known[0]}?" if len(known) == 1 else f"one of {len(known)} countries"
    rest = len(known) - PLACES
    return " or ".join(known) if rest <= 0 else f"{', '.join(known[:PLACES])} or {rest} more"


def short_offer(offer: Offer) -> str:
    return shown(f"{seller(offer)}, {kind(offer)}")


def time_told(choice: Choice) -> str:
    return f"{duration(choice.total_s)} ({span(*choice.total_range_s)})"


def cost_told(choice: Choice, money: Money) -> str:
    return f"{amount(choice.total_usd, money)} ({amounts(*choice.usd_range, money)})"


def amount(usd: float, money: Money) -> str:
    """`$14.31`, `EUR 12,340`, `$0.0312`."""
    return f"{_sign(money)}{_number(_shown_in(usd, money))}"


def amounts(low_usd: float, high_usd: float, money: Money) -> str:
    """`12.90 to 15.90`: the sign stands with the figure it goes around."""
    return f"{_number(_shown_in(low_usd, money))} to {_number(_shown_in(high_usd, money))}"


def _shown_in(usd: float, money: Money) -> float:
    return money.rate.eur(usd) if money.eur else usd


def _sign(money: Money) -> str:
    return "EUR " if money.eur else "$"


def _number(value: float) -> str:
    if abs(value) >= SEVERAL_USD:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 or not value else f"{value:.2g}"


class Room(NamedTuple):
    """Memory of the fullest card, as cells."""

    used: str
    """`53.1 of 79.1 GiB`."""
    left: str
    """`26.0 free (33 %)`."""
    between: str
    """`52.8 to 54.0 GiB`."""
    surely: bool


def room(choice: Choice) -> Room:
    low, high = choice.device_range_bytes
    free = choice.capacity_bytes - choice.device_bytes
    return Room(
        f"{choice.device_bytes / GIB:.1f} of {choice.capacity_bytes / GIB:.1f} GiB",
        f"{free / GIB:.1f} free ({percent(free / choice.capacity_bytes)})",
        f"{low / GIB:.1f} to {high / GIB:.1f} GiB",
        choice.fits_surely,
    )


def changes(choice: Choice) -> list[str]:
    """What differs from the user's job, as a job's file has it, but for the machine itself."""
    return [f"{shown(name)}: {value_in_yaml(_plain(v))}" for name, v in choice.changes.items() if name not in RENTED]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


class Bill(NamedTuple):
    name: str
    amount: str
    share: float
    """Of the total."""
    told: str


def bill(choice: Choice, money: Money) -> list[Bill]:
    """Every line of the cost with as many decimals, so that the column can be added up; the total last."""
    total = _shown_in(choice.total_usd, money)
    decimals = 2 if total >= 1 else 4
    return [
        Bill(
            shown(PHASES.get(line.name, line.name)),
            f"{_shown_in(line.usd, money):,.{decimals}f}",
            line.usd / choice.total_usd if choice.total_usd else 0.0,
            "" if line.name in PHASES else shown(line.told),
        )
        for line in choice.cost.lines
    ] + [Bill("total", f"{_sign(money)}{total:,.{decimals}f}", 1.0, f"{amounts(*choice.usd_range, money)}")]


def also(choice: Choice, money: Money) -> list[tuple[str, str]]:
    """The same total by other measures, and what it was billed for."""
    machine, cost = choice.machine, choice.cost
    each = hourly(machine.offer.usd_per_hour, money)
    several = f"{machine.nodes} machines at {each} each" if machine.nodes > 1 else f"one machine at {each}"
    rows = [("billed", f"{duration(cost.billed_s)} of {several}")]
    if (epoch := choice.usd_per_epoch) is not None:
        rows.append(("per epoch", amount(epoch, money)))
    if (million := choice.usd_per_million_tokens) is not None:
        rows.append(("per million tokens", amount(million, money)))
    rows.append(("per year, weekly", amount(cost.usd_per_year(), money)))
    return rows


def short_bill(choice: Choice, money: Money) -> list[Bill]:
    """The lines that matter, what is left in one, and the total."""
    *lines, total = bill(choice, money)
    large = [line for line in lines if line.share >= SHARE_SHOWN]
    rest = sum(line.share for line in lines if line not in large)
    if not rest:
        return [*large, total]
    decimals = 2 if choice.total_usd >= 1 else 4
    amount_left = f"{_shown_in(rest * choice.total_usd, money):,.{decimals}f}"
    names = ", ".join(line.name for line in lines if line not in large and line.share > 0)
    return [*large, Bill("the rest", amount_left, rest, names), total]


def beside(plan: Plan, *, details: bool = True) -> list[tuple[str, str]]:
    """What is not picked unasked, each kind with what it would cost: (kind, sentence)."""
    best = plan.best
    assert best is not None
    found = []
    for each in plan.beside:
        choice, offer = each.choice, each.choice.machine.offer
        what = f"{choice.hardware} at {seller(offer)} ({place(offer)}), {duration(choice.total_s)}"
        costs = f"{amount(choice.total_usd, plan.money)} instead of {amount(best.total_usd, plan.money)}"
        if each.kind == "spot":
            found.append((each.kind, f"{costs}: {what}; {interrupted(choice, plan.money)}. --spot"))
        elif each.kind == "marketplace":
            found.append((each.kind, f"{costs}: {what}; the machine is somebody's, without a contract. --marketplace"))
        elif each.kind == "validated":
            costs = amount(choice.total_usd, plan.money)
            found.append(("measured", f"{costs}: {what}; {choice.evidence}"))
        elif each.kind == "deadline":
            found.append(("no deadline", f"{costs}: {what}"))
    doubts: dict[str, list[Beside]] = {}
    for each in sorted(plan.beside, key=_nearest):
        if each.kind == "unproven":
            doubts.setdefault(each.why, []).append(each)
    for why, of in doubts.items():
        named = [_unproven(each, plan.money) for each in of[: None if details else MOST_UNPROVEN]]
        rest = len(of) - len(named)
        found.append(("not proven", f"{why}: {'; '.join(named)}{f'; {rest} more (--details)' if rest else ''}"))
    if plan.dearer:
        least = sorted(plan.dearer.items(), key=lambda each: each[1])
        named = [f"{name} {amount(usd, plan.money)}" for name, usd in least[: None if details else MOST_UNPROVEN]]
        rest = len(least) - len(named)
        more = f"; {rest} more (--details)" if rest else ""
        found.append(("not proven", f"and dearer anyway, at least: {'; '.join(named)}{more}"))
    return [(kind, shown(told)) for kind, told in found]


def _nearest(each: Beside) -> tuple[bool, float]:
    """Companies with a seat in the EU first: of those it is asked most."""
    return provider(each.choice.machine.offer.provider).seat not in EU27, each.choice.total_usd


def _unproven(each: Beside, money: Money) -> str:
    choice = each.choice
    return f"{choice.machine.offer.provider} {amount(choice.total_usd, money)} ({choice.hardware})"


def interrupted(choice: Choice, money: Money) -> str:
    """What a spot machine's interruptions are expected to do, and what they do at worst."""
    cost, rough = choice.cost, choice.rough
    told = f"expect {cost.interruptions:.2g} interruptions"
    if rough is None:
        return told
    worse = f"{amount(rough.total_usd, money)} and {duration(rough.wall_s)}"
    return f"{told}; if interrupted as the roughest machine measured, {rough.interruptions:.2g} times: {worse}"


def saved(plan: Plan) -> list[str]:
    """`tokenise before you rent (data.prepared): saves $11.64 of $40.28 and 40 min`."""
    best = plan.best
    if best is None:
        return []
    whole = amount(best.total_usd, plan.money)
    return [
        f"{each.advice}: saves {amount(each.usd, plan.money)} of {whole} and {duration(each.seconds)}"
        for each in plan.savings
    ]


def energy(choice: Choice) -> str:
    """`2.8 kWh, 0.21 kg CO2 (FI)`; '' where it is not known."""
    if choice.kwh is None:
        return ""
    told = f"{choice.kwh:.3g} kWh"
    if choice.co2_kg is None:
        return f"{told}; CO2 not known, since the country is not"
    low, high = choice.co2_kg
    countries = sorted(choice.machine.offer.known_countries)
    where = countries[0] if len(countries) == 1 else f"{len(countries)} countries"
    between = f"{low:.2g}" if high - low < 0.05 * high else f"{low:.2g} to {high:.2g}"
    return f"{told}, {between} kg CO2 ({where})"


def conditions(choice: Choice) -> list[str]:
    """What the job needs of the machine, beside what the offer says it has."""
    offer = choice.machine.offer
    told = [offer.assumed] if offer.assumed else []
    told += [] if choice.availability is None else [f"whether one is free: {choice.availability}"]
    if offer.kind == OWNED:
        return told
    needs: list[tuple[str, int | None, int | None, Callable[[int], str]]] = [
        ("RAM", choice.ram_bytes, offer.ram_bytes, gib),
        ("vCPUs", _cores(choice), offer.vcpus, str),
        ("disk", choice.disk_bytes, offer.disk_bytes, lambda nbytes: f"{nbytes / GB:,.0f} GB"),
    ]
    each = [
        f"{name} {write(needed)} ({'not said' if has is None else f'has {write(has)}'})"
        for name, needed, has, write in needs
        if needed is not None
    ]
    host = {"dedicated": "the host is yours alone", "shared": "the host is shared with others"}
    told.append(
        f"needs of the machine: {', '.join(each)}; {host.get(tenancy(offer), 'whether the host is shared is not known')}"
    )
    if choice.machine.nodes > 1:
        node = offer.node
        told.append(f"between the machines: {'not known' if node is None else node.fabric or 'not known'}")
    return told


def _cores(choice: Choice) -> int | None:
    host = None if choice.prediction is None else (choice.prediction.utilization or {}).get("host")
    return None if host is None else host.get("cpu_cores")


def price_list(plan: Plan) -> str:
    """The age of the whole list, in one line."""
    listed = plan.prices.listed
    if listed is None:
        return ""
    days = max(0, (plan.today - listed).days)
    newer = "; tunecast offers update fetches newer ones" if days > STALE_DAYS_OF_LIST else ""
    old = f"; {plan.prices.old} older offers left out (--max-age)" if plan.prices.old else ""
    return f"Prices as of {listed}, {age(days)} ago{newer}{old}."


def outliers(plan: Plan, *, all_of_them: bool = True) -> list[str]:
    """Offers that are too cheap to count on; else only how many, and those of the cards that are shown."""
    found = [shown(f"left out as too cheap to count on: {offer}: {why}") for offer, why in plan.prices.outliers.items()]
    if all_of_them or not found:
        return found
    cards = {f"{one.machine.gpus} x {one.machine.gpu.name} " for one in plan.pareto}
    cards |= {f"{each.choice.machine.gpus} x {each.choice.machine.gpu.name} " for each in plan.beside}
    seen = [told for told in found if any(f": {card}" in told for card in cards)][:MOST_OUTLIERS]
    rest = len(found) - len(seen)
    more = (
        f"{rest} {'more ' if seen else ''}offer{'s' if rest > 1 else ''} left out as too cheap to count on (--details)"
    )
    return [*seen, *([more] if rest else [])]


def hourly(usd_per_hour: float, money: Money) -> str:
    """With VAT where the other figures have it: an offer's price never does."""
    return f"{amount(usd_per_hour * (1 + money.vat_fraction), money)} per hour"


def tax(money: Money) -> str:
    vat = f"with {percent(money.vat_fraction)} VAT" if money.vat_fraction else "without VAT"
    if not money.eur:
        return f"Prices are {vat}."
    return f"Prices are {vat}; 1 EUR = {money.rate.usd_per_eur:g} USD ({money.rate.dated}: {shown(money.rate.source)})."


def price_age(plan: Plan, offer: Offer) -> str:
    """`seen 2026-08-22, 85 days ago`."""
    if offer.kind == OWNED:
        return "your own figure"
    return f"seen {offer.dated}, {age(offer.age_days(plan.today))} ago"


def price_source(offer: Offer) -> str:
    return shown(sources().get(offer.source, offer.source))


class Renter(NamedTuple):
    """Who rents a machine out, and no more than its source says."""

    name: str
    company: str
    level: str
    law: str
    source: str
    doubtful: bool
    """Whether no source at hand confirms the level."""


def renters(offer: Offer) -> list[Renter]:
    """Who runs the machine, and the broker who sells it, where there is one. None of one's own."""
    if offer.kind == OWNED:
        return []
    found = [provider(name) for name in dict.fromkeys((offer.provider, offer.via)) if name]
    return [
        Renter(
            shown(of.name),
            shown(", ".join(part for part in (of.entity, of.seat and f"seat {of.seat}") if part))
            or "company not known",
            of.exposure,
            told(of),
            shown(of.source) or "no source",
            "exposure" in of.unverified or not of.source,
        )
        for of in found
    ]


class Refused(NamedTuple):
    """All hardware one reason holds for."""

    hardware: tuple[str, ...]
    reason: str
    remedy: str


def refusals(plan: Plan) -> list[Refused]:
    """One a reason and remedy, in the order they come."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in plan.refused:
        found.setdefault((shown(one.reason), shown(one.remedy)), []).append(shown(one.hardware))
    return [Refused(tuple(dict.fromkeys(names)), *why) for why, names in found.items()]


def assumed(plan: Plan, choices: Iterable[Choice]) -> list[str]:
    """The plan's own first, then those of the choices' costs and predictions; each once."""
    told: list[str] = list(plan.assumptions)
    for one in choices:
        told += one.cost.assumptions
        told += one.prediction.assumptions if one.prediction is not None else ()
    return list(dict.fromkeys(map(shown, told)))


def warned(plan: Plan, choices: Iterable[Choice]) -> list[str]:
    told: list[str] = list(plan.warnings)
    for one in choices:
        told += one.prediction.warnings if one.prediction is not None else ()
    return list(dict.fromkeys(map(shown, told)))


def searched_told(plan: Plan) -> str:
    """`61,440 configurations in 1.8 s: 59,110 cut by a bound, 412 predicted.`"""
    of = plan.searched
    return (
        f"{of.configurations:,} configurations in {duration(of.seconds)}: {of.bounded:,} ruled out by a proven bound, "
        f"{of.predicted:,} predicted."
    )


def ruled_out_told(plan: Plan) -> str:
    return f"Ruled out by a proven bound, since a choice is cheaper and faster: {', '.join(plan.ruled_out)}."


def limits_told(plan: Plan) -> list[str]:
    limits = plan.limits
    told = [] if limits.within_s is None else [f"within {duration(limits.within_s)}"]
    return told if limits.max_usd is None else [*told, f"at most {amount(limits.max_usd, plan.money)}"]


def price_notes(plan: Plan) -> list[str]:
    """What a price does not say."""
    return [text for text in (price_list(plan), f"{NOT_AVAILABILITY} {tax(plan.money)}") if text]
