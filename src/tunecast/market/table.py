"""Offers as a CSV file: what is bundled, what an update fetched, what the user added. Read strictly, line by line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from datetime import date

from tunecast.errors import NotResolved
from tunecast.hardware.catalog import gpus
from tunecast.hardware.links import inside_names
from tunecast.market.listing import MOST_GPUS, MOST_USD_PER_HOUR, number, words
from tunecast.market.offer import KINDS, PLACED, Offer
from tunecast.market.provider import TENANCIES
from tunecast.units import GB, GIB, MIB

MOST_BYTES = 16 * MIB
MOST_ROWS = 100_000
FIRST_COLUMNS = (
    *("provider", "kind", "gpu", "gpus", "usd_per_hour", "places", "placed", "instance", "vcpus", "ram_gib"),
    *("interconnect", "max_nodes", "dated", "source", "via", "term_hours"),
)
COLUMNS = (*FIRST_COLUMNS, "disk_gb", "tenancy", "assumed")
"""A file without the last ones, as older versions wrote it, is read too."""
MOST = 1e9
"""GiB, GB or hours: beyond all machines and terms."""
_COUNTRY = re.compile(r"[A-Z]{2}|")
_NAME = re.compile(r"[a-z0-9][a-z0-9._ -]{0,63}")


def text_from(offers: Iterable[Offer]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(offer) for offer in offers)
    return out.getvalue()


def offers_from(text: str, where: str) -> tuple[Offer, ...]:
    """Raises `NotResolved` with the line that is wrong."""
    reader = csv.DictReader(io.StringIO(text))
    found: list[Offer] = []
    try:
        if tuple(reader.fieldnames or ()) not in (COLUMNS, FIRST_COLUMNS):
            raise NotResolved(f"{where}: not a table of offers: its first line has to be {','.join(COLUMNS)}")
        for row in reader:
            if len(found) >= MOST_ROWS:
                raise NotResolved(f"{where}: more than {MOST_ROWS} rows, the most that is read")
            found.append(_offer(row))
    except (csv.Error, ValueError) as error:
        raise NotResolved(f"{where}, line {reader.line_num}: {error}") from None
    return tuple(found)


def _row(offer: Offer) -> dict[str, object]:
    places = zip(offer.countries, offer.regions, strict=True)
    return {
        "provider": offer.provider,
        "kind": offer.kind,
        "gpu": offer.gpu,
        "gpus": offer.gpus,
        "usd_per_hour": f"{offer.usd_per_hour:.6g}",
        "places": ";".join(f"{country}:{region}" for country, region in places),
        "placed": offer.placed,
        "instance": offer.instance,
        "vcpus": offer.vcpus,
        "ram_gib": None if offer.ram_bytes is None else f"{offer.ram_bytes / GIB:g}",
        "interconnect": offer.interconnect,
        "max_nodes": offer.max_nodes,
        "dated": offer.dated.isoformat(),
        "source": offer.source,
        "via": offer.via,
        "term_hours": None if offer.term_hours is None else f"{offer.term_hours:g}",
        "disk_gb": None if offer.disk_bytes is None else f"{offer.disk_bytes / GB:.15g}",
        "tenancy": offer.tenancy,
        "assumed": offer.assumed,
    }


def _offer(row: Mapping[str, str | None]) -> Offer:
    """Raises ValueError, in words fit to print."""
    if None in row or None in row.values():
        raise ValueError("as many cells as the first line has columns")
    cells = {name: words(row.get(name), 4000) for name in COLUMNS}
    places = [cell.partition(":") for cell in cells["places"].split(";") if cell]
    ram_gib, term, disk_gb = (_positive(cells, name) for name in ("ram_gib", "term_hours", "disk_gb"))
    return Offer(
        provider=_matching(cells, "provider"),
        kind=_one_of(cells, "kind", KINDS),
        gpu=_one_of(cells, "gpu", tuple(gpus())),
        gpus=_count(cells, "gpus", MOST_GPUS),
        usd_per_hour=_price(cells),
        dated=_date(cells),
        source=_some(cells, "source"),
        regions=tuple(region for _, _, region in places),
        countries=tuple(_country(country) for country, _, _ in places),
        placed=_one_of(cells, "placed", PLACED),
        instance=cells["instance"],
        vcpus=None if not cells["vcpus"] else _count(cells, "vcpus", 10_000),
        ram_bytes=None if ram_gib is None else round(ram_gib * GIB),
        interconnect=None if not cells["interconnect"] else _one_of(cells, "interconnect", inside_names()),
        max_nodes=None if not cells["max_nodes"] else _count(cells, "max_nodes", 10_000),
        via=cells["via"],
        term_hours=term,
        disk_bytes=None if disk_gb is None else round(disk_gb * GB),
        tenancy=_one_of(cells, "tenancy", ("", *TENANCIES)),
        assumed=cells["assumed"],
    )


def _one_of(cells: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    if cells[name] not in allowed:
        raise ValueError(f"{name}: got {cells[name][:80]!r}; allowed: {', '.join(allowed)}")
    return cells[name]


def _matching(cells: Mapping[str, str], name: str) -> str:
    if _NAME.fullmatch(cells[name]) is None:
        raise ValueError(f"{name}: got {cells[name][:80]!r}; allowed: lower case letters, digits, dots and dashes")
    return cells[name]


def _some(cells: Mapping[str, str], name: str) -> str:
    if not cells[name]:
        raise ValueError(f"{name}: every row says where it is from")
    return cells[name]


def _count(cells: Mapping[str, str], name: str, most: int) -> int:
    value = number(cells[name])
    if value is None or value != int(value) or not 1 <= value <= most:
        raise ValueError(f"{name}: got {cells[name][:80]!r}; allowed: a whole number from 1 to {most}")
    return int(value)


def _price(cells: Mapping[str, str]) -> float:
    value = number(cells["usd_per_hour"])
    if value is None or not 0 < value <= MOST_USD_PER_HOUR:
        got = cells["usd_per_hour"][:80]
        raise ValueError(f"usd_per_hour: got {got!r}; allowed: above 0, at most {MOST_USD_PER_HOUR:g}")
    return value


def _positive(cells: Mapping[str, str], name: str) -> float | None:
    if not cells[name]:
        return None
    value = number(cells[name])
    if value is None or not 0 < value <= MOST:
        raise ValueError(f"{name}: got {cells[name][:80]!r}; allowed: a number above 0, at most {MOST:g}")
    return value


def _date(cells: Mapping[str, str]) -> date:
    try:
        return date.fromisoformat(cells["dated"])
    except ValueError:
        raise ValueError(f"dated: got {cells['dated'][:80]!r}; allowed: a day as 2026-11-15") from None


def _country(text: str) -> str:
    if _COUNTRY.fullmatch(text) is None:
        raise ValueError(f"places: got {text[:80]!r}; allowed: COUNTRY:region;…, the country with two letters")
    return text
