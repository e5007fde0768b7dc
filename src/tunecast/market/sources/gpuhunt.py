"""gpuhunt's feed: a ZIP of CSVs, one a provider, made daily by dstack. github.com/dstackai/gpuhunt

    instance_name, location, price, cpu, memory, gpu_count, gpu_name, gpu_memory, spot, disk_size (of some), …

Taken are the providers SkyPilot's catalogue has no fresh list of. A row is one price, on demand or spot; both of a
machine become one listing.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from datetime import date

from tunecast.errors import NotResolved
from tunecast.market.listing import Listing, count, number, price, words
from tunecast.market.names import country_of
from tunecast.market.sources.replies import rows
from tunecast.units import MIB

PROVIDERS: Mapping[str, str] = {"azure": "azure", "oci": "oracle"}
COLUMNS = frozenset(
    ("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot")
)
MOST_MEMBER_BYTES = 128 * MIB
"""Uncompressed: more is a bomb."""
_VERSION = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:-[0-9A-Za-z]{1,16})?")


def version(content: bytes) -> tuple[str, date]:
    """`20261114-231`, and its day. Raises `NotResolved`."""
    found = _VERSION.fullmatch(content[:64].decode("ascii", "replace").strip())
    if found is None or len(content) > 64:
        raise NotResolved("gpuhunt's version: not a day")
    try:
        return found[0], date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise NotResolved("gpuhunt's version: not a day") from None


def member(content: bytes, name: str) -> bytes:
    """One provider's CSV out of the ZIP, as far as it is not larger than it may be. Raises `NotResolved`."""
    where = f"gpuhunt's list of {name}"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(f"{name}.csv") as file:
            text = file.read(MOST_MEMBER_BYTES + 1)
    except KeyError:
        raise NotResolved(f"{where}: not in its archive") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError):
        raise NotResolved(f"{where}: an archive that cannot be read") from None
    if len(text) > MOST_MEMBER_BYTES:
        raise NotResolved(f"{where}: more than {MOST_MEMBER_BYTES} bytes, the most that is read")
    return text


def listings(content: bytes, name: str, dated: date) -> list[Listing]:
    """Of one provider's CSV, a row a machine and region. Raises `NotResolved`."""
    found: dict[tuple[str, str], Listing] = {}
    for row in rows(content, COLUMNS, f"gpuhunt's list of {name}"):
        listing = _listing(row, name, dated)
        if listing is None:
            continue
        key = listing.instance, listing.region
        other = found.get(key)
        if other is not None:
            listing = listing._replace(
                usd_per_hour=_least(listing.usd_per_hour, other.usd_per_hour),
                spot_usd_per_hour=_least(listing.spot_usd_per_hour, other.spot_usd_per_hour),
            )
        found[key] = listing
    return list(found.values())


def _listing(row: Mapping[str, str], name: str, dated: date) -> Listing | None:
    gpu, gpus, asked = words(row["gpu_name"]), count(row["gpu_count"]), price(row["price"])
    if not gpu or gpus is None or asked is None:
        return None
    spot = row["spot"].strip().lower() == "true"
    provider, region, vcpus = PROVIDERS[name], words(row["location"]), number(row["cpu"])
    return Listing(
        provider=provider,
        gpu=gpu,
        gpus=gpus,
        usd_per_hour=None if spot else asked,
        dated=dated,
        source=f"gpuhunt/{name}",
        spot_usd_per_hour=asked if spot else None,
        gpu_memory_gib=number(row["gpu_memory"]),
        region=region,
        country=country_of(provider, region),
        instance=words(row["instance_name"]),
        vcpus=int(vcpus) if vcpus is not None and 1 <= vcpus <= 10_000 else None,
        ram_gib=number(row["memory"]) or None,
        disk_gb=number(row.get("disk_size")) or None,
    )


def _least(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
