"""`tunecast offers add FILE`: the user's own prices, and machines the user owns.

[[offer]]                       a price of one's own, or a reservation
provider = "acme-cloud"         usd_per_hour or eur_per_hour, of the whole machine
gpu = "h100"
form = "sxm"                    (or the card's whole name as `gpu`)
gpus = 8
eur_per_hour = 18.5
country = "DE"

[[offer]]                       a machine one owns: its electricity instead of rent
provider = "lab"
gpu = "rtx-4090"
gpus = 2
eur_per_kwh = 0.31              watts: of the whole machine while it trains; without it, from the cards' rated power
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, UsageError, nearest
from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.links import interconnect
from tunecast.hardware.spec import Gpu
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import bounded_text
from tunecast.market.cost import Rate
from tunecast.market.jurisdiction import country
from tunecast.market.listing import MOST_GPUS, MOST_USD_PER_HOUR, words
from tunecast.market.offer import KINDS, ON_DEMAND, OWNED, RESERVED, Offer
from tunecast.market.provider import TENANCIES
from tunecast.market.table import offers_from
from tunecast.units import GB, GIB, KILO, MIB

MOST_BYTES = 4 * MIB
MOST_OFFERS = 10_000
HOST_SHARE = 0.5
"""What a machine draws besides its cards, of their rated power: an 8-GPU H100 machine was measured at 8.4 kW with its
cards at their 5.6 kW (prediction/time/energy.py has the source)."""
PRICES = ("usd_per_hour", "eur_per_hour", "usd_per_kwh", "eur_per_kwh")
FIELDS = (
    *("provider", "kind", "gpu", "form", "gpus", *PRICES, "watts", "pue", "country", "region", "instance", "vcpus"),
    *("ram_gib", "disk_gb", "tenancy", "interconnect", "max_nodes", "term_hours", "dated", "source"),
)


def own_offers(path: Path, today: date, rate: Rate) -> tuple[Offer, ...]:
    """Of a TOML file as above, or of a CSV as catalog/offers.csv. Raises `UsageError`, `NotResolved`."""
    text = bounded_text(path, MOST_BYTES)
    if path.suffix.lower() == ".csv":
        return offers_from(text, str(path))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {words(str(error), 200)}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deep") from None
    except ValueError:  # int() refuses thousands of digits, datetime a day that is none
        raise UsageError(f"{path}: holds a number or a date that cannot be") from None
    rows = table.get("offer")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows) or len(table) > 1:
        raise UsageError(f"{path}: allowed: one [[offer]] or more, and nothing else. See tunecast offers --help")
    if len(rows) > MOST_OFFERS:
        raise NotResolved(f"{path}: more than {MOST_OFFERS} offers, the most that is read")
    return tuple(_offer(row, f"{path}, offer {n}", today, rate) for n, row in enumerate(rows, 1))


def joined(old: Sequence[Offer], new: Sequence[Offer]) -> tuple[Offer, ...]:
    """The new ones take the place of old ones of the same machine."""
    replaced = {_machine(offer) for offer in new}
    return (*(offer for offer in old if _machine(offer) not in replaced), *new)


def same_price(one: Offer, other: Offer) -> bool:
    """But for regions: a filter by country narrows those down."""
    return replace(one, regions=(), countries=()) == replace(other, regions=(), countries=())


def _machine(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.kind, offer.gpu, offer.gpus, offer.instance, offer.regions


def _offer(row: Mapping[str, Any], where: str, today: date, rate: Rate) -> Offer:
    for name in row:
        if name not in FIELDS:
            near = nearest(name[:80], FIELDS)
            hint = f"; nearest: {near}" if near else ""
            raise UsageError(f"{where}: got {name[:80]!r}; allowed: {', '.join(FIELDS)}{hint}")
    named = f"{_text(row, 'gpu', where)} {_text(row, 'form', where, '')}".strip()
    try:
        gpu = known_gpu(named)
        link = _text(row, "interconnect", where, "")
        inside = interconnect(link).name if link else None
        stands = country(_text(row, "country", where, "")) if "country" in row else ""
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from None
    gpus = _whole(row, "gpus", where, MOST_GPUS, 1) or 1
    given = [name for name in PRICES if name in row]
    if len(given) != 1:
        raise UsageError(f"{where}: needs one of {', '.join(PRICES)}; has {' and '.join(given) or 'none'}")
    owned = given[0].endswith("_per_kwh")
    amount = _number(row, given[0], where) * (rate.usd_per_eur if given[0].startswith("eur") else 1.0)
    told = ""
    if owned:
        watts, told = _watts(row, gpu, gpus, where)
        amount, told = amount * watts / KILO, f"; {row[given[0]]:g} {given[0][:3].upper()}/kWh, {told}"
    if not 0 < amount <= MOST_USD_PER_HOUR:
        raise UsageError(f"{where}: {amount:g} USD an hour; allowed: above 0, at most {MOST_USD_PER_HOUR:g}")
    term = _number(row, "term_hours", where) if "term_hours" in row else None
    kind = OWNED if owned else _text(row, "kind", where, ON_DEMAND if term is None else RESERVED)
    if kind not in KINDS or (kind == OWNED) != owned or (kind == RESERVED) != (term is not None):
        told = "on-demand, spot, reserved (with term_hours), owned (with a price a kWh)"
        raise UsageError(f"{where}: kind: got {kind!r}; allowed: {told}")
    ram_gib, disk_gb = (_number(row, name, where) if name in row else None for name in ("ram_gib", "disk_gb"))
    tenancy = _text(row, "tenancy", where, "")
    if tenancy not in ("", *TENANCIES):
        raise UsageError(f"{where}: tenancy: got {tenancy!r}; allowed: {', '.join(TENANCIES)}", field="tenancy")
    region = _text(row, "region", where, "own" if stands else "")
    return Offer(
        provider=_text(row, "provider", where, "own").lower(),
        kind=kind,
        gpu=gpu.name,
        gpus=gpus,
        usd_per_hour=amount,
        dated=_day(row, where, today),
        source=_text(row, "source", where, "own") + told,
        regions=(region,) if region else (),
        countries=(stands,) if region else (),
        instance=_text(row, "instance", where, ""),
        vcpus=_whole(row, "vcpus", where, 10_000, None),
        ram_bytes=None if ram_gib is None else round(ram_gib * GIB),
        interconnect=inside,
        max_nodes=_whole(row, "max_nodes", where, 10_000, 1 if owned else None),
        term_hours=term,
        disk_bytes=None if disk_gb is None else round(disk_gb * GB),
        tenancy=tenancy,
    )


def _watts(row: Mapping[str, Any], gpu: Gpu, gpus: int, where: str) -> tuple[float, str]:
    """Of the machine while it trains, with what cools it."""
    pue = _number(row, "pue", where) if "pue" in row else 1.0
    if "watts" in row:
        watts = _number(row, "watts", where)
        return watts * pue, f"{watts:g} W as given"
    if gpu.tdp_w is None:
        raise UsageError(f"{where}: watts: the rated power of {gpu.name} is not known; say what the machine draws")
    watts = gpu.tdp_w * gpus * (1 + HOST_SHARE)
    return watts * pue, f"{watts:g} W: {gpus} x {gpu.tdp_w} W and half of that besides"


def _text(row: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if not isinstance(value, str) or (default is None and not value) or ";" in value or ":" in value:
        allowed = "a text without ; and :"
        raise UsageError(f"{where}: {name}: got {shown(value)}; allowed: {allowed}", field=name)
    return words(value)


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UsageError(f"{where}: {name}: got {shown(value)}; allowed: a number above 0", field=name)
    return float(value)


def _whole(row: Mapping[str, Any], name: str, where: str, most: int, default: int | None) -> int | None:
    value = row.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
        told = f"got {shown(value)}; allowed: a whole number from 1 to {most}"
        raise UsageError(f"{where}: {name}: {told}", field=name)
    return value


def _day(row: Mapping[str, Any], where: str, today: date) -> date:
    value = row.get("dated", today)
    if not isinstance(value, date) or type(value) is not date:
        raise UsageError(f"{where}: dated: got {shown(value)}; allowed: a day as 2026-11-15", field="dated")
    return value
