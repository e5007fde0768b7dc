"""A price list of SkyPilot's made of the bundled offers: its own is downloaded when it is first used, and is not here.

A CSV for each cloud as sky/catalog/common.py reads it. Google's machines and their cards are rows of their own there,
whose prices are added: here the machine is free, and the cards have the whole price.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tunecast.launching.engines.names import SKYPILOT_CARDS, SKYPILOT_CLOUDS, SKYPILOT_LISTS
from tunecast.market.names import chip
from tunecast.market.offer import ON_DEMAND, SPOT, Offer
from tunecast.market.store import offers
from tunecast.units import GIB

COLUMNS = (
    *("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo", "Region"),
    *("AvailabilityZone", "Price", "SpotPrice"),
)


def write_catalogue(folder: Path) -> dict[str, int]:
    """By cloud, how many machines are in its list."""
    tables: dict[str, dict[tuple[str, str], dict[str, object]]] = defaultdict(dict)
    for offer in offers():
        for cloud, row in _rows(offer):
            key = str(row["InstanceType"]), str(row["Region"])
            tables[cloud].setdefault(key, row)[_price(offer)] = offer.usd_per_hour
    for cloud, table in tables.items():
        rows = list(table.values())
        _write(folder / cloud / "vms.csv", _google(rows) if cloud == "gcp" else rows)
    names: dict[str, list[str]] = defaultdict(list)
    for each in SKYPILOT_CARDS.values():
        for name, clouds in each.items():
            names[name] += clouds
    (folder / "common").mkdir(parents=True)
    lines = ["AcceleratorName,Clouds", *(f'{name},"{sorted(clouds)}"' for name, clouds in sorted(names.items()))]
    (folder / "common" / "accelerators.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "common" / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\n", encoding="utf-8")
    return {cloud: len({instance for instance, _ in table}) for cloud, table in sorted(tables.items())}


def _price(offer: Offer) -> str:
    return "SpotPrice" if offer.kind == SPOT else "Price"


def _rows(offer: Offer) -> Iterator[tuple[str, dict[str, object]]]:
    listed = offer.source.removeprefix("skypilot/")
    cloud = listed if listed in SKYPILOT_LISTS else SKYPILOT_CLOUDS.get(offer.provider)
    if cloud is None or offer.kind not in (ON_DEMAND, SPOT):
        return
    names = SKYPILOT_CARDS.get(offer.gpu, {})
    # where a cloud has one name for two cards, it is that of the chip: H100, A100
    name = next((name for name, clouds in names.items() if cloud in clouds), next(iter(names), chip(offer.gpu).upper()))
    for region in offer.regions or ("anywhere",):
        yield (
            cloud,
            {
                "InstanceType": offer.instance or f"{offer.gpus}x_{name}",
                "vCPUs": offer.vcpus or 8 * offer.gpus,
                "MemoryGiB": round((offer.ram_bytes or 64 * GIB * offer.gpus) / GIB),
                "AcceleratorName": name,
                "AcceleratorCount": offer.gpus,
                "GpuInfo": "{'Gpus': [{'MemoryInfo': {'SizeInMiB': 1}}], 'TotalGpuMemoryInMiB': 1}",
                "Region": region,
                "AvailabilityZone": f"{region}-a",
            },
        )


def _google(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    machines = [
        {**row, "AcceleratorName": "", "AcceleratorCount": "", "GpuInfo": "", "Price": 0, "SpotPrice": 0}
        for row in rows
    ]
    cards = [{**row, "InstanceType": "", "vCPUs": "", "MemoryGiB": ""} for row in rows]
    return [*machines, *cards]


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
