"""What a job costs on its own hardware: the cheapest offer of exactly these machines that a plan would pick unasked.

    prediction ──► Timed ─┐
    offers ─► select ─────┴─► Biller, as for a plan ──► Rent

Nothing is searched and nothing changed: the job, its card, cards and machines are as they were written. The offers are
read here and only here, so whoever does not ask for a price does not pay for reading them.
"""

from __future__ import annotations

from datetime import date
from typing import ClassVar

from tunecast.hardware.catalog import gpu
from tunecast.hardware.cluster import cluster_of
from tunecast.job.job import Job
from tunecast.market import store
from tunecast.market.filters import Filters, inside
from tunecast.market.listed import RentedOffer, rented
from tunecast.market.offer import Offer
from tunecast.market.selection import Rules, select
from tunecast.planning.bill import Bill, Biller, Terms
from tunecast.planning.choice import Fleet
from tunecast.planning.estimate import Timed
from tunecast.planning.space import joined_up_to, least_ram_bytes
from tunecast.prediction.memory.vllm import server_cards
from tunecast.prediction.outside.needs import machine_ram_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.time.whole import WholeTime
from tunecast.records import dataclass
from tunecast.result import Alias, Result
from tunecast.units import HOUR_S


@dataclass(frozen=True)
class Rent(Result):
    """The machines of a job, rented."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("offer", "nodes", "usd_per_hour", "usd_per_million_tokens", "total_usd", "usd_range", "total_s"),
        "total_range_s",
    )

    fleet: Fleet
    bill: Bill | None
    """From the order of the machines to the saved model; None where the job does not say how much data it trains on."""
    usd_per_million_tokens: float | None
    """Of the whole bill; without one of the steps alone. None where no time is known."""

    @property
    def offer(self) -> RentedOffer:
        return rented(self.fleet.offer)

    nodes = Alias[int]("fleet.nodes")
    usd_per_hour = Alias[float]("fleet.usd_per_hour")
    """Of all machines."""
    total_usd = Alias[float | None]("bill.cost.total_usd")
    usd_range = Alias[tuple[float, float] | None]("bill.usd_range")
    """80 %."""
    total_s = Alias[float | None]("bill.total_s")
    total_range_s = Alias[tuple[float, float] | None]("bill.range_s")


def rent_of(done: Prediction, today: date) -> Rent | None:
    """None where no such offer is at hand, as for a count of cards nobody rents out.

    `done` with its time, where it has one. Of a job without an amount of data the cheapest hour is taken.
    """
    job, offers = done.job, offers_for(done, today)
    if not offers:
        return None
    nodes, time, timed = job.hardware.nodes, done.time, timed_of(done)
    if timed is None:
        cheapest = min(offers, key=lambda offer: offer.usd_per_hour)
        fleet = _fleet(job, cheapest)
        rate = None if time is None else time.tokens_per_s
        return Rent(fleet, None, fleet.usd_per_hour / HOUR_S / rate * 1e6 if rate else None)
    biller = Biller(job, Terms())
    cheapest = min(offers, key=lambda offer: biller.likely(timed, offer, nodes).total_usd)
    bill, tokens = biller.bill(timed, cheapest, nodes), timed.whole.real_tokens
    return Rent(_fleet(job, cheapest), bill, bill.cost.usd_per_million_tokens(tokens) if tokens else None)


def _fleet(job: Job, offer: Offer) -> Fleet:
    return Fleet(gpu(offer.gpu), offer.gpus, job.hardware.nodes, offer, server_cards(job))


def offers_for(done: Prediction, today: date) -> list[Offer]:
    """Of exactly the job's machines, by the rules of a plan: on demand, from companies on record, or one's own; with
    the links the job was predicted with, and enough memory in the host."""
    job, wanted = done.job, done.job.hardware
    card = gpu(wanted.gpu)
    own = frozenset(store.kept(store.OWN))
    filters = Filters(gpu=card.name, gpus=wanted.gpus)
    found = select(store.offers(), filters, Rules(show=frozenset()), today, own).offers
    if wanted.nodes > 1:
        found = tuple(offer for offer in found if (joined_up_to(offer) or 1) >= wanted.nodes)
    if wanted.gpus > 1:
        link = cluster_of(job, card).inside.name
        found = tuple(offer for offer in found if inside(offer).name == link)
    needs = machine_ram_bytes(job, done.model)
    if needs is None or not found:
        return list(found)
    least = least_ram_bytes(found).get((card.name, wanted.gpus))
    hosts = [(offer, least if offer.ram_bytes is None else offer.ram_bytes) for offer in found]
    return [offer for offer, has in hosts if has is None or has >= needs]


def timed_of(done: Prediction) -> Timed | None:
    """A prediction's time as bills take it; None where it has none, or of an unknown amount of data."""
    time = done.time
    if time is None or time.total_s is None:
        return None
    low_s, high_s = time.total_range_s or (time.total_s, time.total_s)
    whole = WholeTime(
        total_s=time.total_s,
        low_s=low_s,
        high_s=high_s,
        phases_s=time.phases_s or {},
        steps=time.steps or 0,
        step_s=time.step_s,
        real_tokens=time.real_tokens or 0,
        padded_tokens=time.padded_tokens or 0,
        evaluations=time.evaluations or 0,
        checkpoints=time.checkpoints or 0,
    )
    disk = None if done.files is None else done.files.disk
    return Timed(time.step_s, whole, disk.weights_bytes if disk else 0, disk.checkpoint_bytes if disk else 0)
