"""SkyPilot's catalogue: a CSV a cloud, refreshed by its own jobs. github.com/skypilot-org/skypilot-catalog

    InstanceType, vCPUs, MemoryGiB, AcceleratorName, AcceleratorCount, GpuInfo, Region, AvailabilityZone (of some),
    Price, SpotPrice

Traps, each met in the lists themselves: Google's machines and their cards are priced in rows of their own, to be added;
a region has several zones with a spot price each; RunPod and Lambda are listed in every region; spot prices that repeat
the price are none; what Shadeform sells carries its maker in the machine's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from statistics import median

from tunecast.market.listing import Listing, count, number, price, words
from tunecast.market.names import country_of
from tunecast.market.sources.replies import rows

CLOUDS: Mapping[str, str] = {
    "aws": "aws", "gcp": "gcp", "lambda": "lambda", "nebius": "nebius", "runpod": "runpod", "seeweb": "seeweb",
    "shadeform": "", "verda": "verda",
}  # fmt: skip
"""Lists that change with the market (11 to 1,313 versions each in v8 of the catalogue), and whose they are. Others
there were written once (Oracle, Hyperstack: one or two versions): fetching those would make old prices look new."""
COLUMNS = frozenset(("InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "Price", "SpotPrice"))
NAMES = {"lambdalabs": "lambda", "datacrunch": "verda"}

_MEMORY = re.compile(r"SizeInMiB['\"]{1,2}: ?([0-9]{1,9})")
_GOOGLE: Mapping[tuple[str, int], str] = {
    **{("A100", gpus): f"a2-highgpu-{gpus}g" for gpus in (1, 2, 4, 8)},
    ("A100", 16): "a2-megagpu-16g",
    **{("A100-80GB", gpus): f"a2-ultragpu-{gpus}g" for gpus in (1, 2, 4, 8)},
    **{("H100", gpus): f"a3-highgpu-{gpus}g" for gpus in (1, 2, 4, 8)},
    ("H100-MEGA", 8): "a3-megagpu-8g",
    ("H100-MEGA-80GB", 8): "a3-megagpu-8g",
    ("H200", 8): "a3-ultragpu-8g",
    ("B200", 8): "a4-highgpu-8g",
    **{("L4", gpus): f"g2-standard-{cpus}" for gpus, cpus in ((1, 8), (2, 24), (4, 48), (8, 96))},
}
"""The machine a number of cards comes with at Google; of the L4's several, the one with about 4 GiB a vCPU and card."""


def listings(content: bytes, cloud: str, dated: date) -> list[Listing]:
    """The machines with cards of one cloud's list, a row a region. Raises `NotResolved`."""
    where = f"SkyPilot's list of {cloud}"
    table: Iterable[Mapping[str, str]] = rows(content, COLUMNS, where)
    if cloud == "gcp":
        table = _google(list(table))
    found = (_listing(row, cloud, dated) for row in table)
    return _by_region(each for each in found if each is not None)


def _listing(row: Mapping[str, str], cloud: str, dated: date) -> Listing | None:
    """None for machines without cards."""
    gpu, gpus = words(row["AcceleratorName"]), count(row["AcceleratorCount"])
    instance = words(row["InstanceType"])
    if not gpu or gpus is None or not instance:
        return None
    maker, via = CLOUDS[cloud], ""
    if not maker:
        maker, via = NAMES.get(instance.partition("_")[0].lower(), instance.partition("_")[0].lower()), cloud
        if re.fullmatch(r"[a-z0-9.-]{1,40}", maker) is None:
            return None
    region = words(row["Region"])
    memory = _MEMORY.search(row.get("GpuInfo", "")[:1000])
    size = None if memory is None else float(memory[1])
    vcpus = number(row.get("vCPUs"))
    return Listing(
        provider=maker,
        gpu=gpu,
        gpus=gpus,
        usd_per_hour=price(row["Price"]),
        dated=dated,
        source=f"skypilot/{cloud}",
        spot_usd_per_hour=price(row["SpotPrice"]),
        form="SXM" if "sxm" in instance.lower() else "",
        gpu_memory_gib=size if size is None or size < 1024 else size / 1024,  # Shadeform's MiB are GiB
        region=region,
        country=country_of(maker, region, via),
        instance=instance,
        vcpus=int(vcpus) if vcpus is not None and 1 <= vcpus <= 10_000 else None,
        ram_gib=number(row.get("MemoryGiB")) or None,
        via=via,
    )


def _by_region(found: Iterable[Listing]) -> list[Listing]:
    """A region's zones together: the least price (they are the same), the median of the spot prices."""
    alike: dict[tuple[str, str, str, int], list[Listing]] = defaultdict(list)
    for each in found:
        alike[each.instance, each.region, each.gpu, each.gpus].append(each)
    return [_region(zones) for zones in alike.values()]


def _region(zones: list[Listing]) -> Listing:
    asked = [each.usd_per_hour for each in zones if each.usd_per_hour is not None]
    spot = [each.spot_usd_per_hour for each in zones if each.spot_usd_per_hour is not None]
    return zones[0]._replace(
        usd_per_hour=min(asked, default=None), spot_usd_per_hour=round(median(spot), 6) if spot else None
    )


def _google(table: list[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Cards with the machine they come in, zone by zone; cards whose machine is not listed there are left out."""
    hosts = {
        (row["InstanceType"], row.get("AvailabilityZone", "")): row
        for row in table
        if not row["AcceleratorName"].strip()
    }
    joined: list[Mapping[str, str]] = []
    for row in table:
        gpus = count(row["AcceleratorCount"])
        if gpus is None or row["InstanceType"].strip():
            continue
        instance = _GOOGLE.get((row["AcceleratorName"].strip(), gpus), "")
        host = hosts.get((instance, row.get("AvailabilityZone", "")))
        if host is not None:
            sums = {name: _sum(host[name], row[name]) for name in ("Price", "SpotPrice")}
            sizes = {name: host.get(name, "") for name in ("vCPUs", "MemoryGiB")}
            joined.append({**row, "InstanceType": instance, **sums, **sizes})
    return joined


def _sum(host: str, cards: str) -> str:
    both = price(host), price(cards)
    return "" if both[0] is None or both[1] is None else repr(round(both[0] + both[1], 6))
