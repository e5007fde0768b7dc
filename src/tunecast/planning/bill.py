"""What a timed run costs on an offer, and when it is over: phases from the prediction, terms from the provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, sqrt

from tunecast.job.job import Job
from tunecast.market.clean import order
from tunecast.market.cost import (
    EGRESS_USD_PER_GB,
    INTERRUPTIONS_PER_HOUR,
    MONTH_S,
    ROUGH_PER_HOUR,
    Cost,
    total_cost,
)
from tunecast.market.offer import OWNED, RESERVED, SPOT, Offer
from tunecast.market.provider import Provider, terms
from tunecast.planning.estimate import Timed
from tunecast.prediction.data.batches import steps_between_saves
from tunecast.prediction.memory.vllm import server_cards
from tunecast.records import NamedTuple, dataclass
from tunecast.units import GB, HOUR_S

USUAL_START_S = (120.0, 300.0)
"""From the order to a shell, of a provider of whom nobody says it: what most of providers.toml have."""


@dataclass(frozen=True)
class Terms:
    """What the user says of bills; None: as the job, the provider and the sources have it."""

    interruptions_per_hour: float | None = None
    storage_bytes: float | None = None
    """Kept for a month; None: what the run keeps, as long as it lasts."""
    egress_bytes: float | None = None
    """Taken home; None: the final model or its adapters."""
    vat_fraction: float = 0.0
    runs: int = 1
    """Variants of the job, one after another on one machine."""
    chooses_saves: bool = True
    """Whether the steps between two checkpoints of a spot machine may be chosen: the job does not say them."""
    launcher_share: float = 0.0
    """Of the start of the training's own Python, what its launcher takes before, where that is decided: `launch`."""


ONCE = ("provisioning", "image", "download", "preparation")
"""Phases that several runs on one machine share."""


class StartTime(NamedTuple):
    """Seconds from the order to a shell."""

    low_s: float
    likely_s: float
    high_s: float


class Bill(NamedTuple):
    cost: Cost
    total_s: float
    range_s: tuple[float, float]
    """80 %, of speed and of how soon the machine is there."""
    usd_range: tuple[float, float]
    save_steps: int | None = None
    """Steps between two checkpoints, where they were chosen."""
    rough: Cost | None = None
    """Of a spot machine that is interrupted as often as the roughest one measured."""


def start_of(offer: Offer, of: Provider, job: Job | None) -> StartTime:
    """The provider's own where it is known, the user's where the job has it."""
    own = 0.0 if job is None else job.hardware.provisioning_s
    if own or offer.kind == OWNED:
        return StartTime(own, own, own)
    low, high = of.provisioning_s or USUAL_START_S
    return StartTime(low, (low + high) / 2, high)


class Biller:
    """`job`: None of a script, of whose checkpoints nothing is known."""

    def __init__(self, job: Job | None, said: Terms) -> None:
        self.job, self.said, self.serving = job, said, 0 if job is None else server_cards(job)
        self._terms: dict[Offer, tuple[Provider, StartTime]] = {}

    def terms(self, offer: Offer) -> tuple[Provider, StartTime]:
        if offer not in self._terms:
            of = terms(offer)
            self._terms[offer] = of, start_of(offer, of, self.job)
        return self._terms[offer]

    def phases(self, timed: Timed, offer: Offer, nodes: int) -> dict[str, float]:
        """Of all runs, without interruptions."""
        _, start = self.terms(offer)
        once = {**timed.whole.phases_s, "provisioning": start.likely_s}
        if self.said.launcher_share:
            once["start"] = once.get("start", 0.0) * (1 + self.said.launcher_share)
        if self.save_steps(timed, offer, nodes) is not None:
            once["checkpoints"] = self.checkpoints(timed, offer, nodes) * _save_s(timed)
        return {name: seconds * (1 if name in ONCE else self.said.runs) for name, seconds in once.items()}

    def save_steps(self, timed: Timed, offer: Offer, nodes: int) -> int | None:
        """Between two checkpoints of spot machines, as few as pay: sqrt(2 C M) seconds, C being what writing one takes
        and M the mean time between interruptions of the job. A job stops where any of its n machines does, so M is a
        machine's divided by n, as `total_cost` has it. None where the job says them, or saves nothing on the way.

        Source  Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974); M of n machines:
                Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006),
                whose further terms shorten it by 5 % where C is a hundredth of M.
        """
        if offer.kind != SPOT or not self.said.chooses_saves or not timed.whole.checkpoints or not timed.step_s:
            return None
        rate = self.said.interruptions_per_hour
        of_one = (INTERRUPTIONS_PER_HOUR if rate is None else rate) / HOUR_S
        if of_one <= 0:
            return None
        between_s = 1 / (of_one * ceil(self._machines(offer, nodes)))
        return min(timed.whole.steps, max(1, round(sqrt(2 * _save_s(timed) * between_s) / timed.step_s)))

    def checkpoints(self, timed: Timed, offer: Offer, nodes: int) -> int:
        """Written in one run."""
        steps = self.save_steps(timed, offer, nodes)
        return timed.whole.checkpoints if steps is None else timed.whole.steps // steps

    def cost(
        self, timed: Timed, phases_s: Mapping[str, float], step_s: float, offer: Offer, nodes: int, rate: float | None
    ) -> Cost:
        of, _ = self.terms(offer)
        said = self.said
        steps = self.save_steps(timed, offer, nodes)
        saved = self.checkpoints(timed, offer, nodes)
        kept = min(saved, (None if self.job is None else self.job.run.save_total_limit) or saved)
        stored = (kept * timed.checkpoint_bytes + timed.weights_bytes) * said.runs
        return total_cost(
            phases_s,
            offer,
            of,
            nodes=nodes,
            beside=self.serving,
            checkpoint_every_s=_between_saves_s(timed, step_s, self.job) if steps is None else steps * step_s,
            interruptions_per_hour=said.interruptions_per_hour if rate is None else rate,
            storage_bytes=stored if said.storage_bytes is None else said.storage_bytes,
            storage_s=sum(phases_s.values()) if said.storage_bytes is None else MONTH_S,
            egress_bytes=timed.weights_bytes * said.runs if said.egress_bytes is None else said.egress_bytes,
            vat_fraction=said.vat_fraction,
        )

    def likely(self, timed: Timed, offer: Offer, nodes: int) -> Cost:
        return self.cost(timed, self.phases(timed, offer, nodes), timed.step_s, offer, nodes, None)

    def bill(self, timed: Timed, offer: Offer, nodes: int) -> Bill:
        """With ranges: phases err independently. How often a spot machine is interrupted is known least of all, and
        told apart (`rough`)."""
        _, start = self.terms(offer)
        whole, phases = timed.whole, self.phases(timed, offer, nodes)
        likely = self.cost(timed, phases, timed.step_s, offer, nodes, None)
        ends = []
        for run_s, before_s, sign in (
            ((whole.low_s - whole.total_s) * self.said.runs, start.low_s - start.likely_s, -1),
            ((whole.high_s - whole.total_s) * self.said.runs, start.high_s - start.likely_s, 1),
        ):
            off = sign * sqrt(run_s**2 + before_s**2)
            moved = {**phases, "training": max(0.0, phases["training"] + off)}
            scale = moved["training"] / phases["training"] if phases["training"] else 1.0
            ends.append(self.cost(timed, moved, timed.step_s * scale, offer, nodes, None))
        low, high = ends
        rough = None
        if offer.kind == SPOT and self.said.interruptions_per_hour is None:
            rough = self.cost(timed, phases, timed.step_s, offer, nodes, ROUGH_PER_HOUR)
        return Bill(
            likely,
            likely.wall_s,
            (min(low.wall_s, likely.wall_s), max(high.wall_s, likely.wall_s)),
            (min(low.total_usd, likely.total_usd), max(high.total_usd, likely.total_usd)),
            self.save_steps(timed, offer, nodes),
            rough,
        )

    def worth_asking(self, offers: Sequence[Offer]) -> list[Offer]:
        """Of offers on the same terms only the cheapest: whatever runs, the others cost more and take as long. A dearer
        one with a larger host may be needed all the same."""
        alike: dict[tuple[object, ...], list[Offer]] = {}
        for offer in sorted(offers, key=lambda offer: (offer.usd_per_hour, order(offer))):
            of, start = self.terms(offer)
            same = (
                *(offer.kind, offer.term_hours, of.billing_step_s, of.minimum_s(offer.instance), of.bills_start),
                *(of.egress_usd_per_gb, of.egress_free_gb, of.storage_usd_per_gb_month, start),
            )
            cheaper = alike.setdefault(same, [])
            if not any(_is_as_large(other, offer) for other in cheaper):
                cheaper.append(offer)
        return sorted((offer for each in alike.values() for offer in each), key=order)

    def least_usd_per_s(self, offer: Offer, nodes: int) -> float:
        """Of a reservation none: it is paid whatever runs."""
        if offer.kind == RESERVED:
            return 0.0
        return offer.usd_per_hour * self._machines(offer, nodes) / HOUR_S * (1 + self.said.vat_fraction)

    def _machines(self, offer: Offer, nodes: int) -> float:
        """With the cards that serve, as shares of one."""
        return nodes + self.serving / offer.gpus

    def fixed_usd(self, offer: Offer, nodes: int, weights_bytes: float) -> float:
        """Whatever runs: the result is taken home, and a reservation is paid."""
        of, _ = self.terms(offer)
        nbytes = weights_bytes * self.said.runs if self.said.egress_bytes is None else self.said.egress_bytes
        rate = EGRESS_USD_PER_GB if of.egress_usd_per_gb is None else of.egress_usd_per_gb
        usd = max(0.0, nbytes / GB - of.egress_free_gb) * rate
        if offer.kind == RESERVED:
            usd += offer.usd_per_hour * (offer.term_hours or 0.0) * self._machines(offer, nodes)
        return usd * (1 + self.said.vat_fraction)

    def starts_billed(self, offer: Offer) -> bool:
        of, _ = self.terms(offer)
        return not (of.bills_start is False or offer.kind == OWNED)


def _is_as_large(one: Offer, other: Offer) -> bool:
    """Whether its host has at least as much; what nobody says may be any amount."""
    pairs = ((one.ram_bytes, other.ram_bytes), (one.vcpus, other.vcpus))
    return all(mine == theirs or (mine is not None and theirs is not None and mine > theirs) for mine, theirs in pairs)


def _save_s(timed: Timed) -> float:
    """Of one checkpoint."""
    return timed.whole.phases_s.get("checkpoints", 0.0) / max(1, timed.whole.checkpoints)


def _between_saves_s(timed: Timed, step_s: float, job: Job | None) -> float | None:
    """None where nothing is saved on the way."""
    if job is None:
        return None
    if job.run.save_strategy == "steps":
        return steps_between_saves(job, timed.whole.steps) * step_s
    if job.run.save_strategy == "epoch" and timed.whole.checkpoints:
        return timed.whole.steps / timed.whole.checkpoints * step_s
    return None
