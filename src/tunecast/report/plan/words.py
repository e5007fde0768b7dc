"""What is said of a plan, in words and cells: text, page and Markdown say the same. Pure: a `Plan` in, strings out."""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.job.names import PAIRS, TITLES
from tunecast.market.listed import RentedOffer
from tunecast.market.offer import LISTED, OWNED, Offer
from tunecast.market.provider import provider
from tunecast.planning.choice import Choice, Money, Plan
from tunecast.planning.constraints import unreachable
from tunecast.records import NamedTuple
from tunecast.report.draw.adapters import adapters_words
from tunecast.report.draw.figures import shown
from tunecast.report.run.time import PHASES, duration, span
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.units import GIB, digits, percent

UNPLACED = "country not known"
PLACES = 2
"""Countries an offer names before it counts the rest."""
SEVERAL_USD = 1000
"""From here on cents say nothing."""
RENTED = ("hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect", "hardware.inter_node_gbps")
"""Changes the machine's name already tells."""
SHARE_SHOWN = 0.02
"""Of the total, from which on a line of the bill is shown by itself."""
RANGES = "Ranges are 80 % ranges. Time and cost run from ordering the machine to the saved model."


class Pick(NamedTuple):
    """A choice and what it was picked as: the same one may be cheapest and balanced."""

    names: tuple[str, ...]
    choice: Choice

    @property
    def title(self) -> str:
        return ", ".join(self.names)

    @property
    def spoken(self) -> str:
        """`cheapest, fastest and balanced`; that the cheapest makes the deadline is said with the deadline."""
        *rest, last = [name for name in self.names if name != "deadline" or "cheapest" not in self.names]
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


def headline(plan: Plan) -> str:
    """What to rent, or why there is nothing to."""
    chosen = picks(plan)
    return answer(plan, chosen[0].choice) if chosen else nothing(plan)


def doubts(choice: Choice) -> list[str]:
    """What may go wrong with it."""
    return [text for text in (choice.risk, None if choice.validated else choice.evidence) if text]


def answer(plan: Plan, choice: Choice) -> str:
    """`Rent 1 x h100-sxm-80gb at lambda (US), on-demand: 4 h 12 min (3.8 to 4.7 h), $14.31 (12.90 to 15.90)`."""
    offer = choice.fleet.offer
    if offer.kind == OWNED:
        what = f"Use {choice.hardware}, your own"
    else:
        what = f"Rent {choice.hardware} at {seller(offer)} ({place(offer)}), {kind(offer)}"
    if not choice.fits_surely:
        what += ", though it may not fit"
    if not choice.validated:
        what += ", not validated by measured runs"
    return shown(f"{what}: {time_and_range(choice)}, {cost_and_range(choice, plan.money)}")


def nothing(plan: Plan) -> str:
    """Why there is no pick: nothing runs the job, or nothing keeps to the limits; with what comes nearest."""
    if not plan.pareto:
        return "No machine to rent was found for this job"
    return shown(unreachable(plan, lambda usd: amount(usd, plan.money)))


def job_words(plan: Plan) -> str:
    """`my-run: llama-3.1-8b, lora, 8 x 1024 tokens a step; --eu, --no-spot`."""
    job = plan.job
    asked = f"; {', '.join(plan.asked)}" if plan.asked else ""
    if job is None:
        return shown(f"{plan.script}{asked}")
    name = f"{job.id}: " if job.id is not None else ""
    best = plan.best
    epochs = job.data.epochs
    passes = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    trained = "" if best is None else f", {_count(best.tokens / epochs / best.runs)} tokens x {passes}"
    if best is not None and job.run.max_steps is not None:
        trained = f", {_count(best.tokens / best.runs)} tokens"
    trained += f" in {best.runs} runs, one after another" if best is not None and best.runs > 1 else ""
    task = f"{TITLES[job.task]}, " if job.task in TITLES else ""
    return shown(f"{name}{job.model}, {task}{_method(job)}, {_batch(job)}{trained}{asked}")


def _method(job: Job) -> str:
    """`lora (rank 16 on q_proj, v_proj)`."""
    if job.method == "full":
        return job.method if job.trained is None else f"full ({', '.join(job.trained)} alone)"
    return f"{job.method} ({adapters_words(job)})"


def _batch(job: Job) -> str:
    longest = max(job.lengths) if job.lengths else job.seq_len
    kind = "pairs of rows" if job.task in PAIRS else "rows"
    seen = " with images" if job.vision.images else ""
    return f"{kind} of {'up to ' if job.lengths else ''}{longest:,} tokens{seen}"


def _count(tokens: float) -> str:
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if tokens >= size:
            return f"{digits(tokens / size)} {name}"
    return f"{tokens:,.0f}"


def seller(offer: Offer | RentedOffer) -> str:
    return offer.provider + (f" through {offer.via}" if offer.via else "")


def kind(offer: Offer) -> str:
    return offer.kind.replace("on-demand", "on demand") + (
        f" for {offer.term_hours:,.0f} h" if offer.term_hours is not None else ""
    )


def offer_name(offer: Offer) -> str:
    """`lambda, on-demand, US?`; of one's own machine that it is."""
    if offer.kind == OWNED:
        return short_offer(offer)
    where = place(offer)
    return shown(short_offer(offer) if where == UNPLACED else f"{short_offer(offer)}, {where}")


def place(offer: Offer) -> str:
    """`FI`; `BE, FI or 1 more`; `one of 14 countries`; `country not known`."""
    if offer.kind == OWNED:
        return "your own"
    known = sorted(offer.known_countries)
    if not known:
        return provider(offer.provider).places.partition(",")[0] or UNPLACED
    if offer.placed == LISTED:
        return f"{known[0]}?" if len(known) == 1 else f"one of {len(known)} countries"
    rest = len(known) - PLACES
    return " or ".join(known) if rest <= 0 else f"{', '.join(known[:PLACES])} or {rest} more"


def short_offer(offer: Offer) -> str:
    return shown(f"{seller(offer)}, {kind(offer)}")


def time_and_range(choice: Choice) -> str:
    return f"{duration(choice.total_s)} ({span(*choice.total_range_s)})"


def cost_and_range(choice: Choice, money: Money) -> str:
    return with_range(choice.total_usd, choice.usd_range, money)


def with_range(usd: float, usd_range: tuple[float, float], money: Money) -> str:
    """`$14.31 (12.90 to 15.90)`; the figure alone where the ends of its range read the same."""
    between = amounts(*usd_range, money)
    return f"{amount(usd, money)} ({between})" if between else amount(usd, money)


def amount(usd: float, money: Money) -> str:
    """`$14.31`, `EUR 12,340`, `$0.0312`."""
    return f"{_sign(money)}{_number(_shown_in(usd, money))}"


def amounts(low_usd: float, high_usd: float, money: Money) -> str:
    """`12.90 to 15.90`: the sign stands with the figure it goes around. '' where both ends read the same."""
    low, high = _number(_shown_in(low_usd, money)), _number(_shown_in(high_usd, money))
    return "" if low == high else f"{low} to {high}"


def _shown_in(usd: float, money: Money) -> float:
    return money.rate.eur(usd) if money.eur else usd


def _sign(money: Money) -> str:
    return "EUR " if money.eur else "$"


def _number(value: float) -> str:
    if abs(value) >= SEVERAL_USD:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 or not value else f"{value:.2g}"


class ChoiceCells(NamedTuple):
    """What every list shows of a choice."""

    hardware: str
    offer: str
    used: str
    left: str
    """Of the card's memory; `may not fit` where that is so."""
    time: str
    time_range: str
    cost: str
    cost_range: str


def cells(choice: Choice, money: Money) -> ChoiceCells:
    memory = room(choice)
    return ChoiceCells(
        choice.hardware,
        offer_name(choice.fleet.offer),
        memory.used,
        memory.left if memory.surely else "may not fit",
        duration(choice.total_s),
        span(*choice.total_range_s),
        amount(choice.total_usd, money),
        amounts(*choice.usd_range, money),
    )


class RoomCells(NamedTuple):
    """Memory of the fullest card, as cells."""

    used: str
    """`53.1 of 79.1 GiB`."""
    left: str
    """`26.0 free (33 %)`."""
    between: str
    """`52.8 to 54.0 GiB`."""
    surely: bool


def room(choice: Choice) -> RoomCells:
    low, high = choice.device_range_bytes
    free = choice.capacity_bytes - choice.device_bytes
    return RoomCells(
        f"{choice.device_bytes / GIB:.1f} of {choice.capacity_bytes / GIB:.1f} GiB",
        f"{free / GIB:.1f} free ({percent(free / choice.capacity_bytes)})",
        f"{low / GIB:.1f} to {high / GIB:.1f} GiB",
        choice.fits_surely,
    )


def changes(choice: Choice, wording: Wording = FIELDS) -> list[str]:
    """What differs from the user's job, as its file has it or as it is typed, but for the machine itself."""
    return [wording.change({name: _plain(v)}) for name, v in choice.changes.items() if name not in RENTED]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


class BillRow(NamedTuple):
    name: str
    amount: str
    share: float
    """Of the total."""
    note: str


def bill(choice: Choice, money: Money) -> list[BillRow]:
    """Every line of the cost with as many decimals, so that the column can be added up; the total last."""
    total = _shown_in(choice.total_usd, money)
    decimals = 2 if total >= 1 else 4
    return [
        BillRow(
            shown(PHASES.get(line.name, line.name)),
            f"{_shown_in(line.usd, money):,.{decimals}f}",
            line.usd / choice.total_usd if choice.total_usd else 0.0,
            "" if line.name in PHASES else shown(line.told),
        )
        for line in choice.cost.lines
    ] + [BillRow("total", f"{_sign(money)}{total:,.{decimals}f}", 1.0, f"{amounts(*choice.usd_range, money)}")]


def measures(choice: Choice, money: Money) -> list[tuple[str, str]]:
    """The same total by other measures, what it was billed for, and the energy it takes."""
    fleet, cost = choice.fleet, choice.cost
    each = hourly(fleet.offer.usd_per_hour, money)
    several = f"{fleet.nodes} machines at {each} each" if fleet.nodes > 1 else f"one machine at {each}"
    rows = [("billed", f"{duration(cost.billed_s)} of {several}")]
    totals = (
        ("per run", choice.total_usd / choice.runs if choice.runs > 1 else None),
        ("per epoch", cost.usd_per_epoch),
        ("per million tokens", cost.usd_per_million_tokens),
        ("weekly for a year", cost.usd_per_year_weekly),
    )
    rows += [(name, amount(usd, money)) for name, usd in totals if usd is not None]
    return [*rows, *(("energy", used) for used in [energy(choice)] if used)]


def energy(choice: Choice) -> str:
    """`2.8 kWh, 0.21 kg CO2 (FI)`; '' where it is not known."""
    if choice.kwh is None or choice.fleet.offer.kind == OWNED:
        return ""
    used = f"{digits(choice.kwh)} kWh"
    if choice.co2_kg is None:
        return f"{used}; CO2 not known (country not known)"
    low, high = choice.co2_kg
    countries = sorted(choice.fleet.offer.known_countries)
    where = countries[0] if len(countries) == 1 else f"{len(countries)} countries"
    between = digits(low, 2) if high - low < 0.05 * high else f"{digits(low, 2)} to {digits(high, 2)}"
    return f"{used}, {between} kg CO2 ({where})"


def short_bill(choice: Choice, money: Money) -> list[BillRow]:
    """The lines that matter, what is left in one, and the total."""
    *lines, total = bill(choice, money)
    large = [line for line in lines if line.share >= SHARE_SHOWN]
    rest = sum(line.share for line in lines if line not in large)
    if not rest:
        return [*large, total]
    decimals = 2 if choice.total_usd >= 1 else 4
    amount_left = f"{_shown_in(rest * choice.total_usd, money):,.{decimals}f}"
    return [*large, BillRow("the rest", amount_left, rest, ""), total]


def hourly(usd_per_hour: float, money: Money) -> str:
    """With VAT where the other figures have it: an offer's price never does."""
    return f"{amount(usd_per_hour * (1 + money.vat_fraction), money)} per hour"


def tax(money: Money) -> str:
    vat = f"with {percent(money.vat_fraction)} VAT" if money.vat_fraction else "without VAT"
    if not money.eur:
        return f"Prices are {vat}."
    return f"Prices are {vat}; 1 EUR = {money.rate.usd_per_eur:g} USD ({money.rate.dated}: {shown(money.rate.source)})."


def search_words(plan: Plan) -> str:
    """`61,440 configurations in 1.8 s: 59,110 cut by a bound, 412 predicted.`"""
    of = plan.searched
    return (
        f"{of.configurations:,} configurations in {duration(of.seconds)}: {of.bounded:,} ruled out by a proven bound, "
        f"{of.predicted:,} predicted."
    )


def ruled_out_words(plan: Plan) -> str:
    return f"Ruled out by a proven bound, since an option is both cheaper and faster: {', '.join(plan.ruled_out)}."


def limits(plan: Plan) -> list[str]:
    """`within 6 h`, `at most $50.00`."""
    within_s, max_usd = plan.limits.within_s, plan.limits.max_usd
    found = [] if within_s is None else [f"within {duration(within_s)}"]
    return found if max_usd is None else [*found, f"at most {amount(max_usd, plan.money)}"]
