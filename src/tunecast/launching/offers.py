"""What a plan says of machines: its pick, what else it compared, and the most an hour of each may cost.

tunecast plan --json ──► PlannedMachines ──► predicted for the settings that are launched ──► Order.offers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from tunecast.errors import TunecastError, UsageError
from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.launching.rendering import MachineOffer, Order
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, replace
from tunecast.units import HOUR_S

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+/ ()-]{0,79}")
"""What providers, regions and instances are called in price lists."""
PLACES = ("--provider", "--exclude-provider", "--country", "--eu", "--no-cloud-act", "--certified")
"""Constraints of a plan on who rents a machine out, and where it stands."""


class PlannedMachines(NamedTuple):
    """Of a plan; its times are those of its own choices."""

    offers: tuple[MachineOffer, ...] = ()
    """The pick first, then other cards of the same number, in the plan's order."""
    anywhere: bool = True
    max_usd: float | None = None


def planned_machines(plan: Mapping[str, Any], where: str) -> PlannedMachines:
    """Of what `tunecast plan --json` writes. Raises `UsageError` where it is not that."""
    try:
        pick = plan["picks"][plan["best"]]
        first = _offer(pick)
        others = [each for each in map(_offer, plan.get("choices") or ()) if _is_alternative(each, first)]
        asked, limit = plan.get("asked") or (), (plan.get("limits") or {}).get("max_usd")
        anywhere = not any(str(flag).partition(" ")[0] in PLACES for flag in asked)
        return PlannedMachines((first, *others), anywhere, None if limit is None else float(limit))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: not a plan's machines ({error}). To fix: plan again", field="source") from None


def _offer(choice: Mapping[str, Any]) -> MachineOffer:
    offer, hardware = dict(choice["offer"]), choice["job"]["hardware"]
    if offer["kind"] == "owned":  # nobody orders it: its names are the owner's words
        offer |= {"provider": "own", "regions": (), "instance": "", "source": ""}
    made = MachineOffer(
        _word(offer["provider"]),
        _word(offer["kind"]),
        _word(offer["gpu"]),
        int(offer["gpus"]),
        int(hardware.get("nodes") or 1),
        float(offer["usd_per_hour"]),
        float(choice["total_s"]),
        tuple(map(_word, offer.get("regions") or ())),
        _word(offer.get("instance")),
        _word(offer.get("source")),
    )
    if not (made.gpus > 0 and made.nodes > 0 and made.usd_per_hour >= 0 and made.total_s > 0):
        raise ValueError("a machine without cards, price or time")
    return made


def _word(value: object) -> str:
    text = "" if value is None else str(value)
    if text and not WORD.fullmatch(text):
        raise ValueError(f"the name {text[:40]!r}")
    return text


def _is_alternative(offer: MachineOffer, pick: MachineOffer) -> bool:
    """The same files train on as many cards, whichever they are."""
    same = (offer.gpus, offer.nodes) == (pick.gpus, pick.nodes)
    return same and (offer.gpu, offer.provider) != (pick.gpu, pick.provider)


def ranked(pick: MachineOffer, others: Sequence[MachineOffer]) -> tuple[MachineOffer, ...]:
    """The plan's pick stays the first; of the others the cheapest run comes next."""
    return (pick, *sorted(others, key=lambda each: each.total_usd))


def most_usd_per_hour(offers: Sequence[MachineOffer], max_usd: float | None = None) -> Iterator[float]:
    """Of each offer, per machine: the price at which its run costs as much as the next one's, so that beyond it the
    next one is the better choice; never less than the price that was planned with, and of the last one just that. A
    limit of the whole run holds in any case."""
    for place, offer in enumerate(offers):
        machine_hours = offer.nodes * offer.total_s / HOUR_S
        following = offers[place + 1].total_usd if place + 1 < len(offers) else 0.0
        most = max(offer.usd_per_hour, following / machine_hours)
        yield cents(most if max_usd is None else min(most, max_usd / machine_hours))


def most_anywhere(order: Order) -> float:
    """Of the pick's card at anyone's, per machine: as much as of the pick itself."""
    return next(most_usd_per_hour(order.offers, order.max_usd))


def cents(usd: float) -> float:
    """Rounded up: a price is not to be refused for a fraction of a cent."""
    return ceil(round(usd * 100, 6)) / 100


def with_offers(order: Order, planned: PlannedMachines, predict: Callable[[Job], Prediction]) -> Order:
    """The order with the plan's machines. The training's files hold the pick's settings, so the others are predicted
    with those; what does not surely fit so is left out."""
    pick = _predicted(planned.offers[0], order.expected_s) if planned.offers else None
    if pick is None or (pick.gpu, pick.gpus, pick.nodes) != _hardware(order.job):
        return order
    others = []
    for offer in planned.offers[1:]:
        try:
            if gpu(offer.gpu).vendor != gpu(pick.gpu).vendor:  # another torch is installed there
                continue
            found = predict(replace(order.job, hardware=replace(order.job.hardware, gpu=offer.gpu, interconnect=None)))
        except TunecastError:
            continue
        if found.fits_surely and found.time is not None:
            others.append(_predicted(offer, found.time.total_s))
    known = tuple(each for each in others if each is not None)
    return replace(order, offers=ranked(pick, known), anywhere=planned.anywhere, max_usd=planned.max_usd)


def _predicted(offer: MachineOffer, total_s: float | None) -> MachineOffer | None:
    return None if total_s is None else replace(offer, total_s=total_s)


def _hardware(job: Job) -> tuple[str, int, int]:
    """Other flags may have changed it since it was planned: then its prices say nothing."""
    return job.hardware.gpu, job.hardware.gpus, job.hardware.nodes
