"""Which card of hardware/gpus.toml, and which country, a price list means. What could be two cards is neither.

Source  of countries, catalog/regions.csv: the price lists themselves where they say it; Azure's:
        learn.microsoft.com/azure/reliability/regions-list. A dozen newer regions of AWS and Google no list at hand has
        a price for are from their documentation, unchecked.

A region that is not there has no country: none is guessed from its name, as eu-west-2 is London.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from tunecast.errors import UsageError
from tunecast.hardware.catalog import gpus
from tunecast.hardware.grids import grid
from tunecast.market.listing import Listing
from tunecast.records import NamedTuple

NOT_KNOWN = "card not in hardware/gpus.toml"
NOT_TOLD = "form factor or memory of the card cannot be told"

# names that mean several cards: the form factor has to be told; those that mean one are the cards' own (gpus.toml)
_BY_FORM: Mapping[tuple[str, str], str] = {
    ("A10040GB", "SXM"): "a100-sxm-40gb",
    ("A10040GB", "PCIE"): "a100-pcie-40gb",
    ("A10080GB", "SXM"): "a100-sxm-80gb",
    ("A10080GB", "PCIE"): "a100-pcie-80gb",
    ("H100", "SXM"): "h100-sxm-80gb",
    ("H100", "PCIE"): "h100-pcie-80gb",
    ("H100", "NVL"): "h100-nvl-94gb",
    ("H200", "SXM"): "h200-sxm-141gb",
    ("H200", "NVL"): "h200-nvl-141gb",
}
_AMBIGUOUS = frozenset(("A100", "V100", "V10032GB", "RTXPRO6000", *(name for name, _ in _BY_FORM)))
GH200_GIB = 97.0
"""The one with 96 GB of HBM3; with 144 GB of HBM3e it is another."""


class CardMatch(NamedTuple):
    gpu: str | None
    """None where it cannot be told; then `why`."""
    gpus: int
    why: str = ""


class _Rule(NamedTuple):
    instance: re.Pattern[str]
    gpu: str
    gpus: int | None


def card(listing: Listing) -> CardMatch:
    """By the machine's own name where that is known to mean a card, else by what the list calls it."""
    name = _plain(listing.gpu, listing.gpu_memory_gib)
    for rule in _rules().get(listing.provider, ()):
        if rule.instance.fullmatch(listing.instance):
            gpus = rule.gpus or listing.gpus
            found = _BY_FORM.get((name, rule.gpu)) if rule.gpu == "PCIE" else rule.gpu
            return CardMatch(found or None, gpus, "" if found else NOT_TOLD)
    if name == "GH200":
        small = listing.gpu_memory_gib is None or listing.gpu_memory_gib <= GH200_GIB
        return CardMatch("gh200-96gb" if small else None, listing.gpus, "" if small else NOT_KNOWN)
    found = _offered().get(name) or _BY_FORM.get((name, listing.form.upper()))
    if found is not None:
        return CardMatch(found, listing.gpus)
    return CardMatch(None, listing.gpus, NOT_TOLD if name in _AMBIGUOUS else NOT_KNOWN)


def slower(listing: Listing) -> str | None:
    """Of the cards a name may mean the slowest, where its memory is told: PCIe, of the H200 NVL."""
    name = _plain(listing.gpu, listing.gpu_memory_gib)
    return _BY_FORM.get((name, "PCIE")) or _BY_FORM.get((name, "NVL"))


def is_ambiguous(gpu: str) -> bool:
    """Whether the name alone means several cards."""
    return _plain(gpu, None) in _AMBIGUOUS | {"H100NVL", "H200NVL"}


def chip(gpu: str) -> str:
    """What a card is but for its mounting: `h100` of H100-NVL and of h100-sxm-80gb, `a100 80gb` of a100-pcie-80gb."""
    parts = re.split(r"[^a-z0-9]+", gpu[:64].lower())
    if parts[0] != "a100":  # the one that comes with two sizes of memory
        return parts[0]
    return " ".join(part for part in parts if part == "a100" or re.fullmatch(r"\d\dgb", part))


def _plain(gpu: str, memory_gib: float | None) -> str:
    name = re.sub(r"[^A-Z0-9]", "", gpu[:64].upper().replace("NVIDIA", "").replace("GEFORCE", ""))
    if name == "A100" and memory_gib is not None:
        return "A10040GB" if memory_gib < 60 else "A10080GB"
    return name


@cache
def _offered() -> Mapping[str, str]:
    return {name: card.name for card in gpus().values() for name in card.offered_as}


@cache
def _rules() -> Mapping[str, tuple[_Rule, ...]]:
    """catalog/instances.csv, by provider, each row with its reason."""
    text = (files("tunecast.market") / "catalog" / "instances.csv").read_text("utf-8")
    rules: dict[str, list[_Rule]] = {}
    for row in csv.DictReader(text.splitlines()):
        gpus = int(row["gpus"]) if row["gpus"] else None
        rules.setdefault(row["provider"], []).append(_Rule(re.compile(row["instance"]), row["gpu"], gpus))
    return {name: tuple(each) for name, each in rules.items()}


NAMED_BY_COUNTRY = frozenset(("runpod", "vast.ai"))
"""Whose regions are countries."""


def country_of(provider: str, region: str, via: str = "") -> str:
    """Two letters; '' where it is not known."""
    if via == "shadeform":  # city-country-number
        parts = region.split("-")
        return _named(parts[-2]) if len(parts) == 3 else ""
    if provider in NAMED_BY_COUNTRY:
        return region if len(region) == 2 and region.isupper() else ""
    return _regions().get((provider, region), "")


def _named(country: str) -> str:
    try:
        return grid(country).country
    except UsageError:
        return ""


@cache
def _regions() -> Mapping[tuple[str, str], str]:
    text = (files("tunecast.market") / "catalog" / "regions.csv").read_text("utf-8")
    return {(row["provider"], row["region"]): row["country"] for row in csv.DictReader(text.splitlines())}
