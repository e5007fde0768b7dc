"""What a run costs, line by line: the sum of the lines is the total, and a phase that is not paid for is a line of 0.

    machine time, phase by phase  +  rounding to the billing step and minimum  +  expected interruptions (spot)
    (of a reservation: its whole term instead, used or not)
    +  storage of checkpoints  +  egress of the result  +  VAT where it is asked for

Pure: phases in seconds come from prediction/time/whole.py, prices from an offer, terms from its provider. Prices are
kept in dollars, as the lists have them; a rate of euros has a day and a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import ceil, expm1, log, sqrt

from tunecast.market.offer import OWNED, RESERVED, SPOT, Offer
from tunecast.market.provider import Provider
from tunecast.records import NamedTuple
from tunecast.units import GB, HOUR_S, digits


class Rate(NamedTuple):
    usd_per_eur: float
    dated: date
    source: str

    def eur(self, usd: float) -> float:
        return usd / self.usd_per_eur


RATE = Rate(1.167, date(2025, 10, 28), "EUR/USD near 1.1670, fxstreet.com 2025-10-28; no newer one was at hand")
"""Say your own where it matters: --usd-per-eur."""


def given(usd_per_eur: float, today: date) -> Rate:
    return Rate(usd_per_eur, today, "as given")


LONGEST_STEP_S = 3600
"""Taken where a provider does not say how it bills: the longest step any of providers.toml has."""
STORAGE_USD_PER_GB_MONTH = 0.023
"""Taken where a provider's own is not known: S3 Standard (0.023 to 0.026, cloudhealthtech.com)."""
EGRESS_USD_PER_GB = 0.12
"""Taken where a provider's own is not known: the dearest first tier of providers.toml (Google's). What is not known is
not free."""
MONTH_S = 365.25 / 12 * 24 * HOUR_S
RUNS_A_YEAR = 52
"""Of a weekly pipeline."""

_MONTHLY = 0.175
"""AWS's Spot Instance Advisor of 2026-02-24 has p5.48xlarge at 15 to 20 % interrupted within a month (and p4d.24xlarge
at 5 to 10 %), as thundercompute.com/blog/cloud-gpu-spot-instance-availability quotes it."""
_TRACE = 10 / 44.0
"""Ten interruptions in the first 44 hours up of a p3.2xlarge in us-west-2b (skypilot-org/spot-traces,
preemption/1-node/aws-04-22-2023, the first two days of the file)."""
CALM_PER_HOUR = -log(1 - _MONTHLY) / (MONTH_S / HOUR_S)
ROUGH_PER_HOUR = _TRACE
INTERRUPTIONS_PER_HOUR = sqrt(CALM_PER_HOUR * ROUGH_PER_HOUR)
"""Of one spot machine, where the user does not say: the geometric mean of what the calmest and the roughest source at
hand have, which are almost a factor of a thousand apart. No more is known; it differs by card, region and week."""

RESTARTED = ("provisioning", "image", "download", "start", "load", "preparation", "first_step")
"""Done again after an interruption, on a new machine."""
_TOLD: Mapping[str, str] = {
    "provisioning": "the machine starts", "image": "image pulled", "download": "model downloaded",
    "start": "Python and CUDA start", "load": "weights loaded", "first_step": "first step, longer than the rest",
    "preparation": "data downloaded and tokenised", "training": "training", "new_lengths": "lengths not seen before",
    "evaluation": "evaluation", "checkpoints": "checkpoints written", "final_save": "model written",
}  # fmt: skip


class CostLine(NamedTuple):
    name: str
    usd: float
    told: str = ""


@dataclass(frozen=True)
class Cost:
    lines: tuple[CostLine, ...]
    """Their sum is the total."""
    wall_s: float
    """Expected, with interruptions and what is not billed."""
    billed_s: float
    """Of each machine."""
    interruptions: float
    """Expected."""
    assumptions: tuple[str, ...] = ()

    @property
    def total_usd(self) -> float:
        return sum(line.usd for line in self.lines)

    def usd_per_epoch(self, epochs: float) -> float:
        return self.total_usd / epochs

    def usd_per_million_tokens(self, tokens: float) -> float:
        return self.total_usd / tokens * 1e6

    def usd_per_year(self, runs: int = RUNS_A_YEAR) -> float:
        """Of a pipeline that runs every week."""
        return self.total_usd * runs


class Spot(NamedTuple):
    """What interruptions are expected to do to a run."""

    interruptions: float
    wall_s: float
    """Added to the run."""
    billed_s: float
    """Added to the bill: waiting for the next machine may be free."""


def total_cost(
    phases_s: Mapping[str, float],
    offer: Offer,
    of: Provider,
    *,
    nodes: int = 1,
    beside: int = 0,
    checkpoint_every_s: float | None = None,
    interruptions_per_hour: float | None = None,
    storage_bytes: float = 0.0,
    storage_s: float = MONTH_S,
    egress_bytes: float = 0.0,
    vat_fraction: float = 0.0,
) -> Cost:
    """`of`: `terms(offer)`. `phases_s`: of the run without interruptions. `checkpoint_every_s`: None where nothing is
    saved on the way. `beside`: further cards, as long as the machines and for as much a card.

    Ignored  that a price may change during the run; that a new machine begins a new minimum after an interruption.
    """
    reserved = offer.kind == RESERVED and offer.term_hours is not None
    machines = nodes + beside / offer.gpus
    usd_per_s = 0.0 if reserved else offer.usd_per_hour * machines / HOUR_S
    assumptions: list[str] = []
    if beside:
        told = f"{beside} more {'card is' if beside == 1 else 'cards are'} rented for vLLM"
        assumptions.append(f"{told}, from the same provider at the same price a card, as long as those that train")
    free = _free_phases(of, offer)
    lines = [
        CostLine(name, 0.0 if name in free else seconds * usd_per_s, _TOLD.get(name, name))
        for name, seconds in phases_s.items()
        if seconds > 0
    ]
    used_s = sum(seconds for name, seconds in phases_s.items() if name not in free)
    spot = Spot(0.0, 0.0, 0.0)
    if offer.kind == SPOT:
        rate = INTERRUPTIONS_PER_HOUR if interruptions_per_hour is None else interruptions_per_hour
        spot = expected_interruptions(phases_s, rate * ceil(machines), checkpoint_every_s, free)
        lines.append(CostLine("interruptions", spot.billed_s * usd_per_s, f"{digits(spot.interruptions, 2)} expected"))
        if interruptions_per_hour is None:
            between = f"{1 / ROUGH_PER_HOUR:.0f} and {1 / CALM_PER_HOUR:.0f} hours"
            assumptions.append(
                f"a spot machine is interrupted every {1 / rate:.0f} hours (sources: between {between} apart)"
            )
    if reserved:
        billed_s = _terms(offer, used_s) * (offer.term_hours or 0.0) * HOUR_S
        told = f"{billed_s / HOUR_S:,.0f} h, used or not"
        lines.append(CostLine("reservation", offer.usd_per_hour * machines * billed_s / HOUR_S, told))
    else:
        billed_s = billed(used_s + spot.billed_s, of, offer, assumptions)
        lines.append(CostLine("rounding", (billed_s - used_s - spot.billed_s) * usd_per_s, _rounding(of, offer)))
    _add_storage(lines, assumptions, offer, of, storage_bytes, storage_s)
    _add_egress(lines, assumptions, of, egress_bytes)
    if vat_fraction:
        lines.append(CostLine("VAT", vat_fraction * sum(line.usd for line in lines), f"{vat_fraction:.1%}"))
    wall_s = sum(phases_s.values()) + spot.wall_s
    return Cost(tuple(lines), wall_s, billed_s, spot.interruptions, tuple(assumptions))


def _terms(offer: Offer, used_s: float) -> int:
    """Of a reservation, how many are paid for."""
    return max(1, ceil(round(used_s / HOUR_S / (offer.term_hours or 1.0), 9)))


def billed(used_s: float, of: Provider, offer: Offer, assumptions: list[str] | None = None) -> float:
    """Rounded up to the provider's step, and at least its minimum."""
    step_s = of.billing_step_s
    if step_s is None:
        step_s = LONGEST_STEP_S
        if assumptions is not None:
            assumptions.append(f"how {of.name} bills is not known: by the hour begun")
    least_s = of.minimum_s(offer.instance) or 0
    return max(ceil(round(used_s / step_s, 9)) * step_s, least_s)


LEAST_RATE_PER_S = 1e-12
"""One interruption in thirty thousand years is none; of rates near 0 floats keep too few digits."""


def expected_interruptions(
    phases_s: Mapping[str, float], rate_per_hour: float, every_s: float | None, free: frozenset[str] = frozenset()
) -> Spot:
    """Interruptions come at a rate λ, at any time, and each costs R seconds before work goes on where it was saved.

    A segment of t seconds between two checkpoints is done at once with probability e^-λt; else, after s seconds, it
    costs R and begins anew:   E = t e^-λt + ∫(s + R + E) λ e^-λs ds,   so   E = (1/λ + R)(e^λt - 1),
    with e^λt - 1 interruptions. Without checkpoints the run is one segment.

    Ignored  warnings (2 minutes at AWS, 30 s at Google), which can save the work since the last checkpoint; that
             interruptions come in bursts, and during a restart too; how long no machine is to be had.
    """
    work_s = sum(seconds for name, seconds in phases_s.items() if name not in RESTARTED)
    rate = rate_per_hour / HOUR_S
    if work_s <= 0 or rate < LEAST_RATE_PER_S:
        return Spot(0.0, 0.0, 0.0)
    segment_s = work_s if every_s is None else min(max(every_s, 1.0), work_s)
    growth = expm1(min(rate * segment_s, 50.0))  # beyond e^50 the run never ends, and no number tells more
    segments = work_s / segment_s
    again_s = sum(phases_s.get(name, 0.0) for name in RESTARTED)
    billed_again_s = sum(phases_s.get(name, 0.0) for name in RESTARTED if name not in free)
    interruptions = segments * growth
    lost_s = max(0.0, segments * growth / rate - work_s)
    return Spot(interruptions, lost_s + interruptions * again_s, lost_s + interruptions * billed_again_s)


def break_even_hours(reserved: Offer, on_demand: Offer) -> float | None:
    """Hours of use within the term from which on the reservation is the cheaper; None where it never is."""
    if reserved.term_hours is None:
        return None
    hours = reserved.usd_per_gpu_hour * reserved.term_hours / on_demand.usd_per_gpu_hour
    return hours if hours < reserved.term_hours else None


def _free_phases(of: Provider, offer: Offer) -> frozenset[str]:
    """Not billed: an unknown provider is taken to bill from the order on."""
    return frozenset({"provisioning"}) if of.bills_start is False or offer.kind == OWNED else frozenset()


def _rounding(of: Provider, offer: Offer) -> str:
    least_s = of.minimum_s(offer.instance)
    step_s = of.billing_step_s or LONGEST_STEP_S
    step = {1: "by the second", 60: "by the minute", HOUR_S: "by the hour"}.get(step_s, f"in steps of {step_s} s")
    return f"billed {step}{'' if not least_s or least_s == of.billing_step_s else f', at least {least_s} s'}"


def _add_storage(
    lines: list[CostLine], assumptions: list[str], offer: Offer, of: Provider, nbytes: float, seconds: float
) -> None:
    if not nbytes or offer.kind == OWNED:
        return
    usd = of.storage_usd_per_gb_month
    if usd is None:
        usd = STORAGE_USD_PER_GB_MONTH
        assumptions.append(f"what {of.name} takes for storage is not known: {usd} USD per GB and month, as S3")
    kept = "a month" if seconds == MONTH_S else f"{digits(seconds / HOUR_S)} hours"
    kept = f"{seconds / 60:.0f} minutes" if seconds < HOUR_S else kept
    told = f"{_size(nbytes)} for {kept}"
    lines.append(CostLine("storage", nbytes / GB * usd * seconds / MONTH_S, told))


def _size(nbytes: float) -> str:
    return f"{digits(nbytes / GB)} GB"


def _add_egress(lines: list[CostLine], assumptions: list[str], of: Provider, nbytes: float) -> None:
    if not nbytes:
        return
    usd = of.egress_usd_per_gb
    if usd is None:
        usd = EGRESS_USD_PER_GB
        assumptions.append(f"what {of.name} takes for egress is not known: {usd} USD per GB, the dearest that is")
    doubt = ", its price not known: the dearest that is" if of.egress_usd_per_gb is None else ""
    charged = max(0.0, nbytes / GB - of.egress_free_gb)
    free = f", {of.egress_free_gb:g} GB per month free" if of.egress_free_gb else ""
    lines.append(CostLine("egress", charged * usd, f"{_size(nbytes)}{free}{doubt}"))
