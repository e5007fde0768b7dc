"""Who rents machines out: seat, whose law reaches it, how it bills. One table, `providers.toml`.

A provider that is not in the table is one of whom nothing is known; it is not an error, and it is never taken for safe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

from tunecast.market.offer import OWNED, Offer

EXPOSURES = ("no-known-us-parent", "other-law", "eu-seat-us-nexus", "unknown", "us-controlled")
"""To US law, the least first. `unknown` is worse than a nexus that is known: nothing can be said of it."""

FACTS: Mapping[str, tuple[str, ...]] = {
    "company": ("entity", "seat"),
    "law": ("exposure",),
    "billing": ("billing_step_s", "billing_minimum_s", "bare_metal_minimum_s"),
    "start": ("bills_start",),
    "egress": ("egress_usd_per_gb", "egress_free_gb"),
    "storage": ("storage_usd_per_gb_month",),
    "provisioning": ("provisioning_s",),
    "nodes": ("joins_nodes",),
    "marketplace": ("marketplace",),
    "parent": ("parent",),
    "tenancy": ("tenancy",),
    "places": ("places",),
    "certificates": ("certificates",),
}
"""What has a source of its own, and the fields it holds for."""
SHARED_CARD = "shared card"
"""Of a provider that puts several customers on one card."""
TENANCIES = ("dedicated", "shared", SHARED_CARD)
"""Of the host: nobody else's machine on it, or other customers' too."""


@dataclass(frozen=True)
class Provider:
    """What nobody has said is None or ''. `unverified` names the fields no source at hand confirms."""

    name: str
    entity: str = ""
    """The company the contract is with."""
    seat: str = ""
    """ISO 3166-1 alpha-2."""
    parent: str = ""
    """Who owns the company, in words."""
    exposure: str = "unknown"
    billing_step_s: int | None = None
    billing_minimum_s: int | None = None
    bare_metal_minimum_s: int | None = None
    """Of machines whose name begins with BM. (Oracle)."""
    bills_start: bool | None = None
    """Whether the time until the machine can be used is paid for."""
    egress_usd_per_gb: float | None = None
    egress_free_gb: float = 0.0
    """A month."""
    storage_usd_per_gb_month: float | None = None
    provisioning_s: tuple[float, float] | None = None
    """From the order to a shell: what is usual, from and to."""
    joins_nodes: bool | None = None
    """Whether several machines can be joined into one run."""
    marketplace: bool = False
    """Whether the machines are other people's, whom one has no contract with."""
    tenancy: str = ""
    """One of `TENANCIES`, where the provider says it."""
    places: str = ""
    """In words, where the regions of its list do not say which country."""
    certificates: tuple[str, ...] = ()
    """As the provider's own pages name them, in lower case without spaces: iso27001, soc2, hds, secnumcloud."""
    notes: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By fact (`FACTS`)."""
    checked: date | None = None
    unverified: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """`company, law: one; billing: another`."""
        facts = {text: [fact for fact, of in self.sources.items() if of == text] for text in self.sources.values()}
        return "; ".join(f"{', '.join(named)}: {text}" for text, named in facts.items())

    @property
    def verified_certificates(self) -> tuple[str, ...]:
        """Those a source at hand names."""
        return () if "certificates" in self.unverified else self.certificates

    def minimum_s(self, instance: str) -> int | None:
        if self.bare_metal_minimum_s is not None and instance.startswith("BM."):
            return self.bare_metal_minimum_s
        return self.billing_minimum_s


def provider(name: str) -> Provider:
    """By name; of one that is not known, nothing."""
    return providers().get(name) or Provider(name)


def tenancy(offer: Offer) -> str:
    """One of `TENANCIES`: of this machine, else of the provider's machines; '' where nobody says."""
    return "dedicated" if offer.kind == OWNED else offer.tenancy or provider(offer.provider).tenancy


def terms(offer: Offer) -> Provider:
    """How an offer is billed: one's own machine by the second, and what a broker sells as the broker bills it."""
    of = provider(offer.provider)
    if offer.kind == OWNED:
        return replace(of, billing_step_s=1, billing_minimum_s=0, bills_start=False, egress_usd_per_gb=0.0)
    if not offer.via:
        return of
    broker = provider(offer.via)
    return replace(
        of,
        billing_step_s=broker.billing_step_s,
        billing_minimum_s=broker.billing_minimum_s,
        bare_metal_minimum_s=None,
        bills_start=broker.bills_start,
        egress_usd_per_gb=broker.egress_usd_per_gb,
        storage_usd_per_gb_month=broker.storage_usd_per_gb_month,
    )


@cache
def providers() -> Mapping[str, Provider]:
    """Every provider of the table, by name."""
    text = (files("tunecast.market") / "providers.toml").read_text("utf-8")
    return {name: _provider(name, fields) for name, fields in tomllib.loads(text).items()}


def _provider(name: str, fields: Mapping[str, Any]) -> Provider:
    known = dict(fields)
    for several in ("certificates", "unverified"):
        known[several] = tuple(known.get(several, ()))
    known["sources"] = known.pop("source", {})
    span = known.get("provisioning_s")
    known["provisioning_s"] = None if span is None else (float(span[0]), float(span[1]))
    return Provider(name, **known)
