"""Which offers are meant: every filter of `tunecast offers`, and how many only might match.

Where certainty is asked for (--eu, --country, --no-cloud-act), an offer of which it is not known is left out, and
counted: the answer says how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from tunecast.errors import UsageError, nearest
from tunecast.hardware.catalog import gpus, meant_by
from tunecast.hardware.cluster import own_link
from tunecast.hardware.links import Link, inside_names, links
from tunecast.market.clean import order
from tunecast.market.jurisdiction import EU27, Answer, beyond_us_law, narrowed, stands_in
from tunecast.market.offer import SPOT, Offer
from tunecast.market.provider import provider, providers

NOT_KNOWN = {
    "--certified": "no source at hand names the certificate",
    "--country": "the country is not known, or not proven",
    "--eu": "whether it is in the EU is not known, or not proven",
    "--no-cloud-act": "how far US law reaches who runs or sells it is not known",
}
LINK_KINDS = ("nvlink", "xgmi", "pcie", "host")


@dataclass(frozen=True)
class Filters:
    """Each field narrows down; what is left as it is does not."""

    words: tuple[str, ...] = ()
    gpu: str | None = None
    gpus: int | None = None
    providers: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    """Providers, and brokers, that are left out."""
    kinds: tuple[str, ...] = ()
    no_spot: bool = False
    countries: tuple[str, ...] = ()
    eu: bool = False
    no_cloud_act: bool = False
    certified: str | None = None
    interconnect: str | None = None
    vendor: str | None = None
    max_usd_per_hour: float | None = None
    max_age_days: int | None = None


@dataclass(frozen=True)
class Matches:
    offers: tuple[Offer, ...]
    """The cheapest card-hour first; where countries were asked for, with their regions there."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """How many were left out because it is not known, by what is not."""
    unproven: tuple[tuple[Offer, str], ...] = ()
    """Those, each with what is not known first: they may match, and nothing is known to speak against it."""
    cut: str = ""
    """The flag that left none, where one did."""


_Test = Callable[[Offer], Answer]


def matching(offers: Iterable[Offer], filters: Filters, today: date) -> Matches:
    """Raises `UsageError` for a card, provider or link that is not known."""
    left = list(offers)
    doubted: list[tuple[Offer, str]] = []
    cut = ""
    for flag, test in _tests(filters, left, today):
        doubted = [each for each in doubted if test(each[0]) != "no"]
        answers = [(offer, test(offer)) for offer in left]
        doubted += [(offer, NOT_KNOWN.get(flag, flag)) for offer, answer in answers if answer == "unknown"]
        left = [offer for offer, answer in answers if answer == "yes"]
        cut = cut or ("" if left else flag)
    if filters.countries or filters.eu:
        left = [narrowed(offer, _wanted_countries(filters)) for offer in left]
    left.sort(key=lambda offer: (offer.usd_per_gpu_hour, order(offer)))
    unknown = Counter(why for _, why in doubted)
    return Matches(tuple(left), dict(unknown), tuple(doubted), cut)


def _tests(filters: Filters, offers: Iterable[Offer], today: date) -> Iterator[tuple[str, _Test]]:
    """The plain ones first: how many are unknown counts only what else would match."""
    if filters.words:
        yield "TEXT", lambda offer: _is(all(word in _words_of(offer) for word in filters.words))
    if filters.gpu is not None:
        meant = meant_by(filters.gpu)
        cards = {meant.card.name, *(meant.others if meant.is_size else ())}
        yield "--gpu", lambda offer: _is(offer.gpu in cards)
    if filters.vendor is not None:
        vendor = _one_of("--vendor", filters.vendor, {card.vendor for card in gpus().values()})
        yield "--vendor", lambda offer: _is(gpus()[offer.gpu].vendor == vendor)
    if filters.gpus is not None:
        yield "--gpus", lambda offer: _is(offer.gpus == filters.gpus)
    if filters.providers:
        known = {*providers(), *(offer.provider for offer in offers)}
        names = {_one_of("--provider", name, known) for name in filters.providers}
        yield "--provider", lambda offer: _is(offer.provider in names)
    if filters.excluded:
        known = {*providers(), *(name for offer in offers for name in (offer.provider, offer.via) if name)}
        without = {_one_of("--exclude-provider", name, known) for name in filters.excluded}
        yield "--exclude-provider", lambda offer: _is(not {offer.provider, offer.via} & without)
    if filters.kinds:
        yield "--kind", lambda offer: _is(offer.kind in filters.kinds)
    if filters.no_spot:
        yield "--no-spot", lambda offer: _is(offer.kind != SPOT)
    if filters.max_usd_per_hour is not None:
        most = filters.max_usd_per_hour
        yield "--max-usd", lambda offer: _is(offer.usd_per_hour <= most)
    if filters.max_age_days is not None:
        oldest = filters.max_age_days
        yield "--max-age", lambda offer: _is(offer.age_days(today) <= oldest)
    if filters.interconnect is not None:
        link = _one_of("--interconnect", filters.interconnect.lower(), {*LINK_KINDS, *inside_names()})
        yield "--interconnect", lambda offer: _is(link in (inside(offer).kind, inside(offer).name))
    if filters.certified is not None:
        named = filters.certified.lower().replace(" ", "").replace("-", "")
        certificate = _one_of("--certified", named, {name for of in providers().values() for name in of.certificates})
        yield "--certified", lambda offer: _certified(offer, certificate)
    countries = _wanted_countries(filters)
    if filters.countries:
        yield "--country", lambda offer: stands_in(offer, countries)
    if filters.eu:
        yield "--eu", lambda offer: stands_in(offer, countries)
    if filters.no_cloud_act:
        yield "--no-cloud-act", beyond_us_law


def _wanted_countries(filters: Filters) -> frozenset[str]:
    """With --eu those of --country in the EU: an offer with one region here and one there meets neither wish in both.

    Raises `UsageError` where none is left.
    """
    named = frozenset(filters.countries)
    if not filters.eu:
        return named
    if named and not named & EU27:
        got = ", ".join(filters.countries)
        raise UsageError(
            f"--country: got {got} with --eu; allowed: countries of the EU, or one of the two flags", field="--country"
        )
    return named & EU27 if named else EU27


def inside(offer: Offer) -> Link:
    """What joins the cards of the machine: as said, or the card's own."""
    if offer.interconnect is not None:
        return links()[offer.interconnect]
    node = offer.node
    if node is not None and node.interconnect is not None:
        return links()[node.interconnect]
    return own_link(gpus()[offer.gpu], offer.gpus)


def _certified(offer: Offer, certificate: str) -> Answer:
    """`yes` only where a source names it. That a provider has none, no list can prove: then unknown."""
    return "yes" if certificate in provider(offer.provider).verified_certificates else "unknown"


def _words_of(offer: Offer) -> str:
    return f"{offer.gpu} {offer.provider} {offer.instance} {offer.kind} {' '.join(offer.regions)}".lower()


def _is(answer: bool) -> Answer:
    return "yes" if answer else "no"


def _one_of(flag: str, given: str, allowed: Iterable[str]) -> str:
    names = {name.lower(): name for name in allowed}
    if given.lower() in names:
        return names[given.lower()]
    near = nearest(given[:80], sorted(names))
    hint = f"; nearest: {names[near]}" if near else ""
    shown = ", ".join(sorted(names.values()))
    raise UsageError(f"{flag}: got {given[:80]!r}; allowed: {shown}{hint}", field=flag)
