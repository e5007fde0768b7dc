"""`tunecast offers [TEXT...]`, `offers update`, `offers add FILE`, `offers remove TEXT...`: what machines cost, and
where that was read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import cast

from tunecast.cli.arguments import Parser, add_json_flag, count, number
from tunecast.cli.files import require_writable
from tunecast.cli.filters import add_filter_flags, add_money_flags, options_from
from tunecast.cli.terminal import terminal_of
from tunecast.door.filters import rate_of
from tunecast.door.offers import OfferOptions, filters_from, offers, stock_of
from tunecast.errors import DoesNotFit, NotResolved, UsageError, printable
from tunecast.job.writer import write_file
from tunecast.market import store
from tunecast.market.cost import Rate
from tunecast.market.filters import Filters, matching
from tunecast.market.listed import Offers, listed
from tunecast.market.offer import Offer
from tunecast.market.own import joined, own_offers, same_price
from tunecast.market.provider import terms
from tunecast.market.selection import Rules, is_fresh
from tunecast.market.update import feeds, update
from tunecast.records import replace
from tunecast.report.lists.offers import break_even_text, offer_line, offer_page, offer_table, update_text

USAGE = "tunecast offers [TEXT...] [options] | offers update | offers add FILE | offers remove TEXT..."
DESCRIPTION = """\
Lists what machines with GPUs cost, cheapest GPU-hour first (old and suspiciously low prices last): on demand, spot,
reserved, and your own. Each price has its date and source. A price does not mean that a machine is available. TEXT
narrows them down by card, provider, machine or region; a single match is shown in full.

  update      fetch newer prices (SkyPilot's catalogue, gpuhunt's feed); a list that cannot be trusted changes nothing
  add FILE    add your own prices or machines, from TOML:
                [[offer]]
                provider = "lab"
                gpu = "rtx-4090"
                gpus = 2
                eur_per_kwh = 0.31        # owned: electricity; or usd_per_hour / eur_per_hour of a rented machine
  remove TEXT remove one of your own that matches; with --all, several. Published prices are not touched"""
EPILOG = """\
examples:
  tunecast offers h100 sxm --gpus 8                   eight H100 in one machine
  tunecast offers --gpu l40s --eu --no-cloud-act      certainly in the EU, and no known US parent
  tunecast offers a100 --spot --max-usd 10
  tunecast offers --country DE --json | jq '.offers[0]'
  tunecast offers verda h200 --gpus 8 --no-spot --md offer.md    what a data protection officer asks about one
  tunecast offers runpod h200 --available             whether one is free, if the provider says so openly
  tunecast offers remove lab rtx-4090                 remove one of your own
"""
SHOWN = 30
NAMED = 5
"""Of one's own offers, in a message."""
SHORT = (
    *("--gpu", "--gpus", "--provider", "--kind", "--spot", "--no-spot", "--country", "--eu", "--no-cloud-act"),
    *("--max-usd", "--max-age", "--available", "--eur", "--all", "--json", "--md", "--help-all"),
)
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("offers", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="word in a card, provider, machine or region")
    add_filter_flags(made)
    made.add_argument("--spot", action="store_true", help="only spot, like --kind spot")
    made.add_argument("--no-spot", action="store_true", help="everything but spot")
    made.add_argument(
        "--max-usd", metavar="N", type=number(0, 1e6, "dollars"), help="most US dollars per machine and hour"
    )
    made.add_argument("--max-age", metavar="DAYS", type=count, help="leave out older prices")
    add_money_flags(made)
    made.add_argument(
        "--all", action="store_true", help=f"show all, not only the {SHOWN} cheapest; remove: all that match"
    )
    add_json_flag(made)
    made.add_argument(
        "--available", action="store_true", help="ask providers that need no account whether one is free now"
    )
    made.add_argument("--md", metavar="FILE", help="write what compliance asks about one offer, as Markdown")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    words = [word for text in arguments.texts for word in text[:80].lower().split()]
    today = date.today()
    if words[:1] == ["update"]:
        return _update(words[1:], today, as_json=arguments.json)
    rate = rate_of(arguments.usd_per_eur, today)
    if words[:1] == ["add"]:
        if len(arguments.texts) != 2:
            raise UsageError("offers add: allowed: one FILE. See tunecast offers --help", field="FILE")
        return _add(Path(arguments.texts[1]), today, rate, as_json=arguments.json)
    options = cast(OfferOptions, options_from(arguments, OfferOptions.__annotations__))
    if words[:1] == ["remove"]:
        wanted = filters_from(words[1:], options)
        return _remove(wanted, today, all_of_them=arguments.all, as_json=arguments.json)
    require_writable("--md", arguments.md)
    found = offers(*words, available=arguments.available and arguments.json, **options)
    if arguments.md is not None:
        _write_page(arguments.md, found)
    if arguments.json:
        print(json.dumps(found.to_dict()))
        return 0
    shown = current_first(found, arguments.max_age)
    shown = shown if arguments.all else shown[:SHOWN]
    found = replace(found, free=stock_of(shown) if arguments.available else {})
    _show(found, shown, rate, eur=arguments.eur, vat_fraction=(arguments.vat or 0.0) / 100)
    return 0


def _show(found: Offers, shown: Sequence[Offer], rate: Rate, *, eur: bool, vat_fraction: float) -> None:
    terminal, today = terminal_of(sys.stdout), found.today
    if len(found.found) == 1:
        (offer,) = found.found
        where = store.sources().get(offer.source, offer.source)
        reason, free = found.outliers.get(offer, ""), found.free.get(offer)
        print(offer_page(offer, terms(offer), where, rate, today, terminal, outlier=reason, free=free), end="")
        return
    more = len(found.found) - len(shown)
    table = offer_table(
        shown, rate, today, terminal, more=more, eur=eur, vat_fraction=vat_fraction, outliers=found.outliers,
        free=found.free or None,
    )  # fmt: skip
    print(table, end="")
    print(break_even_text(shown, store.offers(), terminal), end="")
    for why, n in found.unknown.items():
        print(terminal.plain(f"{n} left out: {why}."))


def current_first(found: Offers, max_age_days: int | None) -> tuple[Offer, ...]:
    """What a plan counts on, the cheapest card-hour first; then prices that are too old or too low for that."""
    own = frozenset(store.kept(store.OWN))
    newest = max((offer.dated for offer in found.found if offer not in own), default=None)
    rules = Rules(max_age_days=max_age_days)

    def is_doubtful(offer: Offer) -> bool:
        return offer in found.outliers or not (offer in own or is_fresh(offer, rules, newest))

    return tuple(sorted(found.found, key=is_doubtful))


def _add(path: Path, today: date, rate: Rate, *, as_json: bool) -> int:
    new = own_offers(path, today, rate)
    old = store.kept(store.OWN)
    after = joined(old, new)
    kept_at = store.keep(store.OWN, after)
    replaced = len(old) + len(new) - len(after)
    _print_own("added", new, today, kept_at, as_json=as_json, replaced=replaced)
    if replaced and not as_json:
        print(f"{_counted(replaced)} of before of the same machine replaced")
    return 0


def _print_own(what: str, offers: Sequence[Offer], today: date, path: Path, *, as_json: bool, **more: int) -> None:
    """Which of one's own were added or removed."""
    if as_json:
        rows = [listed(each, today).to_dict() for each in offers]
        print(json.dumps({"schema": "tunecast.offers-own/1", what: rows, "path": str(path), **more}))
        return
    print(f"{_counted(len(offers))} {what}: {printable(str(path))}")
    for offer in offers:
        print(terminal_of(sys.stdout).plain(f"  {offer_line(offer)}"))


def _remove(wanted: Filters, today: date, *, all_of_them: bool, as_json: bool) -> int:
    """Of the user's own only, one unless told otherwise; the file is written whole."""
    own = store.kept(store.OWN)
    if not own:
        raise DoesNotFit("you have no offers of your own; tunecast offers add FILE adds some")
    if wanted == Filters() and not all_of_them:
        raise UsageError(f"offers remove: say which, or --all. Yours: {_named(own)}", field="TEXT")
    found = matching(own, wanted, today).offers
    chosen = [offer for offer in own if any(same_price(offer, each) for each in found)]
    if not chosen:
        raise DoesNotFit(f"no offer of your own matches all of that. Yours: {_named(own)}")
    if len(chosen) > 1 and not all_of_them:
        raise UsageError(
            f"offers remove: {len(chosen)} of your own match: {_named(chosen)}. Say more of it, or --all", field="TEXT"
        )
    path = store.keep(store.OWN, (offer for offer in own if offer not in chosen))
    _print_own("removed", chosen, today, path, as_json=as_json)
    return 0


def _counted(n: int) -> str:
    return f"{n} offer{'' if n == 1 else 's'}"


def _named(offers: Sequence[Offer]) -> str:
    more = f" and {len(offers) - NAMED} more" if len(offers) > NAMED else ""
    return "; ".join(map(offer_line, offers[:NAMED])) + more


def _write_page(name: str, found: Offers) -> None:
    """Of one offer only: a page that speaks of several would say of none where its data go."""
    offer, *others = found.found
    if others:
        example = f"{offer.provider} {offer.gpu} --gpus {offer.gpus} --kind {offer.kind}"
        raise UsageError(
            f"--md: {len(found.found)} offers match, and the page is of one. Narrow them down, as in {example} "
            "--country DE, or by the machine's name",
            field="--md",
        )
    from tunecast.report.lists.offer_md import offer_markdown

    where = store.sources().get(offer.source, offer.source)
    page = offer_markdown(offer, where, found.today, found.outliers.get(offer, ""))
    write_file(Path(name), page, flag="--md")


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
