"""`tunecast offers [TEXT...]`, `offers update`, `offers add FILE`: what machines cost, and where that was read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tunecast.cli.arguments import Parser, count, number
from tunecast.cli.filters import add_filter_flags, add_money_flags, asked_from, rate_from
from tunecast.cli.terminal import terminal_of
from tunecast.errors import DoesNotFit, NotResolved, UsageError, nearest
from tunecast.hardware.catalog import gpus
from tunecast.offers import store
from tunecast.offers.asked import Asked, Left, asked
from tunecast.offers.offer import NOT_AVAILABILITY, Offer
from tunecast.offers.outliers import outliers
from tunecast.offers.own import joined, own_offers
from tunecast.offers.provider import terms
from tunecast.offers.update import feeds, update
from tunecast.records import replace
from tunecast.report.offers import break_even_text, offer_dict, offer_page, offer_table, update_text

USAGE = "tunecast offers [TEXT...] [options] | offers update | offers add FILE"
DESCRIPTION = """\
What machines with GPUs cost, the cheapest card-hour first: on demand, spot, reserved, and one's own. Each price has the
day it was seen and its source. A price is not availability. TEXT narrows them down by card, provider, machine or
region; of a single offer all is shown.

  update      fetches newer prices (SkyPilot's catalogue, gpuhunt's feed); what cannot be trusted changes nothing
  add FILE    takes your own prices or machines, from TOML:
                [[offer]]
                provider = "lab"
                gpu = "rtx-4090"
                gpus = 2
                eur_per_kwh = 0.31        # owned: electricity; or usd_per_hour / eur_per_hour of a rented machine"""
EPILOG = """\
examples:
  tunecast offers h100 sxm --gpus 8                   eight H100 in one machine
  tunecast offers --gpu l40s --eu --no-cloud-act      in the EU for sure, and no US parent known
  tunecast offers a100 --spot --max-usd 10
  tunecast offers --country DE --json | jq '.offers[0]'
"""
SCHEMA = "tunecast.offers/1"
SHOWN = 30


def parser() -> Parser:
    made = Parser("offers", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="words of a card, provider, machine or region")
    add_filter_flags(made)
    made.add_argument("--spot", action="store_true", help="as --kind spot")
    made.add_argument("--no-spot", action="store_true", help="all but spot")
    made.add_argument("--max-usd", metavar="N", type=number(0, 1e6, "dollars"), help="an hour, of the machine")
    made.add_argument("--max-age", metavar="DAYS", type=count, help="leave out older prices")
    add_money_flags(made)
    made.add_argument("--all", action="store_true", help=f"all of them, not the {SHOWN} cheapest")
    made.add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    words = [word for text in arguments.texts for word in text[:80].lower().split()]
    today = date.today()
    if words[:1] == ["update"]:
        return _update(words[1:], today, as_json=arguments.json)
    rate = rate_from(arguments, today)
    if words[:1] == ["add"]:
        if len(arguments.texts) != 2:
            raise UsageError("offers add: allowed: one FILE. See tunecast offers --help", field="FILE")
        new = own_offers(Path(arguments.texts[1]), today, rate)
        path = store.keep(store.OWN, joined(store.kept(store.OWN), new))
        print(f"{len(new)} offer{'' if len(new) == 1 else 's'} added: {path}")
        return 0
    wanted = replace(
        asked_from(arguments),
        words=tuple(words),
        kinds=tuple(arguments.kind) or (("spot",) if arguments.spot else ()),
        no_spot=arguments.no_spot,
        max_usd_per_hour=arguments.max_usd,
        max_age_days=arguments.max_age,
    )
    known = store.offers()
    left = asked(known, wanted, today)
    if not left.offers:
        raise _none(known, wanted, left)
    terminal = terminal_of(sys.stdout)
    shown = left.offers if arguments.all or arguments.json else left.offers[:SHOWN]
    named = outliers(shown, known)
    if arguments.json:
        rows = [offer_dict(offer, today, store.sources(), named.get(offer, "")) for offer in shown]
        print(json.dumps({"schema": SCHEMA, "note": NOT_AVAILABILITY, "unknown": dict(left.unknown), "offers": rows}))
    elif len(left.offers) == 1:
        (offer,) = left.offers
        where = store.sources().get(offer.source, offer.source)
        reason = named.get(offer, "")
        print(offer_page(offer, terms(offer), where, rate, today, terminal, outlier=reason), end="")
    else:
        more = len(left.offers) - len(shown)
        vat = (arguments.vat or 0.0) / 100
        table = offer_table(
            shown, rate, today, terminal, more=more, eur=arguments.eur, vat_fraction=vat, outliers=named
        )
        print(table, end="")
        print(break_even_text(shown, known, terminal), end="")
        for why, n in left.unknown.items():
            print(terminal.plain(f"{n} left out: {why}."))
    return 0


def _update(rest: Sequence[str], today: date, *, as_json: bool) -> int:
    if rest:
        raise UsageError(f"offers update: got {rest[0]!r}; allowed: nothing more", field="update")
    updated = update(today, feeds(), begins=_begins)
    if as_json:
        lists = [each._asdict() for each in updated.outcomes]
        path = None if updated.path is None else str(updated.path)
        print(json.dumps({"schema": "tunecast.offers-update/1", "lists": lists, "path": path}))
    else:
        print(update_text(updated, terminal_of(sys.stdout)), end="")
    if updated.path is None:
        raise NotResolved("no list could be fetched; the offers are as they were")
    return 0


def _begins(source: str) -> None:
    """Some lists take a while; told only where somebody watches."""
    if sys.stderr.isatty():
        print(f"fetching {source}", file=sys.stderr)


def _none(known: Sequence[Offer], wanted: Asked, left: Left) -> UsageError | DoesNotFit:
    """A word that names nothing is wrong usage; words that name something nobody offers is nothing found."""
    names = {name for offer in known for name in (offer.provider, offer.gpu)} | set(gpus())
    for word in wanted.words:
        if not any(word in f"{offer.gpu} {offer.provider} {offer.instance}".lower() for offer in known):
            near = nearest(word, sorted(names))
            if not any(word in name for name in names):
                hint = f"; nearest: {near}" if near else ""
                return UsageError(f"TEXT: got {word!r}, which matches nothing{hint}", field="TEXT")
    told = "".join(f"; {n} left out: {why}" for why, n in left.unknown.items())
    last = f"; {left.cut} leaves none" if left.cut else ""
    return DoesNotFit(f"no offer matches all of that{last}{told}")
