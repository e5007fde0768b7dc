"""What can be rented (or is owned), for how much, and where it was read.

A price is not availability: a catalogue says what something costs, not that there is one free. Every offer keeps the
day it was seen and its source, so that age can be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from tunecast.hardware.links import NodeType, nodes

ON_DEMAND, SPOT, RESERVED, OWNED = "on-demand", "spot", "reserved", "owned"
KINDS = (ON_DEMAND, SPOT, RESERVED, OWNED)
PROVEN, LISTED = "proven", "listed"
PLACED = (PROVEN, LISTED)
STALE_DAYS = 90
"""From when on a price is called old: in the lists at hand DigitalOcean's H100 went from 3.39 to 4.41 USD an hour
within 106 days of 2026."""
NOT_AVAILABILITY = "A price is not availability: whether one is free right now, only the provider knows."


@dataclass(frozen=True)
class Offer:
    """One price of one machine. What nobody has said is None or ''."""

    provider: str
    """Who runs the machine: a name of providers.toml where it is known."""
    kind: str
    """on-demand, spot, reserved or owned (then the price is that of its electricity)."""
    gpu: str
    """A name of hardware/gpus.toml."""
    gpus: int
    """Of one machine."""
    usd_per_hour: float
    """Of the whole machine, without VAT."""
    dated: date
    """When the price was seen."""
    source: str
    """A name of catalog/sources.csv, or in words."""
    regions: tuple[str, ...] = ()
    """The provider's own names of where it has this price; none where nobody says."""
    countries: tuple[str, ...] = ()
    """Of each region, ISO 3166-1 alpha-2, in the same order; '' where it is not known."""
    placed: str = PROVEN
    """`listed`: the source lists every machine in every region, or names none: where one is, is not proven."""
    instance: str = ""
    vcpus: int | None = None
    ram_bytes: int | None = None
    interconnect: str | None = None
    """Inside the machine: a link of hardware/links.toml; None: the card's own."""
    max_nodes: int | None = None
    """1 where several cannot be joined; None where nobody says."""
    via: str = ""
    """A broker that sells it: then the contract is with that one too."""
    term_hours: float | None = None
    """Of a reservation: paid for whether used or not."""
    disk_bytes: int | None = None
    """That comes with the machine at this price."""
    tenancy: str = ""
    """Of the host, where it is known of this machine: dedicated or shared; else the provider's holds."""
    assumed: str = ""
    """What the list does not say and was taken, in words."""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus

    @property
    def known_countries(self) -> frozenset[str]:
        return frozenset(self.countries) - {""}

    @property
    def node(self) -> NodeType | None:
        """The machine of hardware/nodes.toml: its adapters, its host."""
        found = nodes().get(self.instance)
        return found if found is not None and (found.gpu, found.gpus) == (self.gpu, self.gpus) else None

    def age_days(self, today: date) -> int:
        return max(0, (today - self.dated).days)

    def is_stale(self, today: date) -> bool:
        return self.kind != OWNED and self.age_days(today) > STALE_DAYS


def age(days: int) -> str:
    """`12 days`, `85 days`, `4 months`, `23 months`."""
    return f"{days} day{'' if days == 1 else 's'}" if days < 100 else f"{round(days / 30.44)} months"
