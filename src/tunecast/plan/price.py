"""What a job costs on its own hardware: the cheapest offer of exactly these machines that a plan would pick unasked.

    prediction ──► Timed ─┐
    offers ─► select ─────┴─► Biller, as for a plan ──► Rent

Nothing is searched and nothing changed: the job, its card, cards and machines are as they were written. The offers are
read here and only here, so whoever does not ask for a price does not pay for reading them.
"""

from __future__ import annotations

from datetime import date
from typing import Any, NamedTuple

from tunecast.errors import Unsupported
from tunecast.hardware.catalog import gpu
from tunecast.hardware.cluster import cluster_of
from tunecast.offers import store
from tunecast.offers.asked import Asked, inside
from tunecast.offers.offer import Offer
from tunecast.offers.selection import Rules, select
from tunecast.plan.bill import Bill, Biller, Terms
from tunecast.plan.choice import offer_dict
from tunecast.plan.estimate import Timed
from tunecast.plan.space import joined_up_to, least_ram_bytes
from tunecast.predict.outside import machine_ram_bytes, outside_of
from tunecast.predict.prediction import Predicted
from tunecast.predict.whole import WholeTime
from tunecast.units import HOUR_S


class Rent(NamedTuple):
    """The machines of a job, rented."""

    offer: Offer
    nodes: int
    bill: Bill | None
    """From the order of the machines to the saved model; None where the job does not say how much data it trains on."""
    usd_per_million_tokens: float | None
    """Of the whole bill; without one of the steps alone. None where no time is known."""

    @property
    def usd_per_hour(self) -> float:
        """Of all machines."""
        return self.offer.usd_per_hour * self.nodes

    @property
    def total_usd(self) -> float | None:
        return None if self.bill is None else self.bill.cost.total_usd

    @property
    def usd_range(self) -> tuple[float, float] | None:
        """80 %."""
        return None if self.bill is None else self.bill.usd_range

    def to_dict(self) -> dict[str, Any]:
        bill = self.bill
        return {
            "offer": offer_dict(self.offer),
            "nodes": self.nodes,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "total_usd": self.total_usd,
            "usd_range": None if bill is None else list(bill.usd_range),
            "total_s": None if bill is None else bill.total_s,
            "total_range_s": None if bill is None else list(bill.range_s),
        }


def rent_of(done: Predicted, today: date) -> Rent | None:
    """None where no such offer is at hand, as for a count of cards nobody rents out.

    `done` with its time, where it has one. Of a job without an amount of data the cheapest hour is taken.
    """
    job, offers = done.job, offers_for(done, today)
    if not offers:
        return None
    nodes, time, timed = job.hardware.nodes, done.prediction.time, timed_of(done)
    if timed is None:
        cheapest = min(offers, key=lambda offer: offer.usd_per_hour)
        rent = Rent(cheapest, nodes, None, None)
        if time is None or not time["tokens_per_s"]:
            return rent
        return rent._replace(usd_per_million_tokens=rent.usd_per_hour / HOUR_S / time["tokens_per_s"] * 1e6)
    biller = Biller(job, Terms())
    cheapest = min(offers, key=lambda offer: biller.likely(timed, offer, nodes).total_usd)
    bill, tokens = biller.bill(timed, cheapest, nodes), timed.whole.real_tokens
    return Rent(cheapest, nodes, bill, bill.cost.usd_per_million_tokens(tokens) if tokens else None)


def offers_for(done: Predicted, today: date) -> list[Offer]:
    """Of exactly the job's machines, by the rules of a plan: on demand, from companies on record, or one's own; with
    the links the job was predicted with, and enough memory in the host."""
    job, wanted = done.job, done.job.hardware
    card = gpu(wanted.gpu)
    own = frozenset(store.kept(store.OWN))
    asked = Asked(gpu=card.name, gpus=wanted.gpus)
    found = select(store.offers(), asked, Rules(show=frozenset()), today, own).offers
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


def timed_of(done: Predicted) -> Timed | None:
    """A prediction's time as bills take it; None where it has none, or of an unknown amount of data."""
    time = done.prediction.time
    if time is None or time["total_s"] is None:
        return None
    low_s, high_s = time["total_range_s"]
    whole = WholeTime(
        total_s=time["total_s"],
        low_s=low_s,
        high_s=high_s,
        phases_s=time["phases_s"],
        steps=time["steps"],
        step_s=time["step_s"],
        real_tokens=time["real_tokens"],
        padded_tokens=time["padded_tokens"],
        evaluations=time["evaluations"],
        checkpoints=time["checkpoints"],
    )
    return Timed(time["step_s"], whole, *_file_bytes(done))


def _file_bytes(done: Predicted) -> tuple[int, int]:
    """Of the result and of a checkpoint on disk; 0 where they are not known."""
    try:
        disk = outside_of(done.job, done.model).disk
    except Unsupported:
        return 0, 0
    return disk.weights_bytes, disk.checkpoint_bytes
