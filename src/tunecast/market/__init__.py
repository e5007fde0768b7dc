"""Offers: what can be rented, where, under whose law, and what a run on it costs.

availability.py  Whether a machine is free right now, where a provider says so to anybody: `tunecast offers
                 --available`
clean.py         From price lists to offers: what is not to be trusted is left out, and counted by its reason
cost.py          What a run costs, line by line: the sum of the lines is the total, and a phase that is not paid for
                 is a line of 0
filters.py       Which offers are meant: every filter of `tunecast offers`, and how many only might match
jurisdiction.py  Where a machine stands, and whose law reaches who runs it
listed.py        Offers as programs read them: those that a plan rents, and those that `tunecast offers` lists
listing.py       A row of somebody's price list, as it was read: not yet to be trusted
names.py         Which card of hardware/gpus.toml a price list means
offer.py         What can be rented (or is owned), for how much, and where it was read
outliers.py      Prices too low to count on, named with the reason: they stay in the catalogue, and a plan leaves them
                 out
own.py           `tunecast offers add FILE`: the user's own prices, and machines the user owns
provider.py      Who rents machines out: seat, whose law reaches it, how it bills
selection.py     Which offers a plan may pick, and which stand beside its picks
store.py         The offers at hand: the bundled ones, those an update fetched, and the user's own
table.py         Offers as a CSV file: what is bundled, what an update fetched, what the user added
update.py        `tunecast offers update`: newer prices, where there is a network
sources/         price lists of others, each read by a file of its own
"""

from __future__ import annotations

from tunecast.market.cost import Cost, break_even_hours, total_cost
from tunecast.market.offer import Offer
from tunecast.market.provider import Provider, provider, terms
from tunecast.market.store import offers

__all__ = ["Cost", "Offer", "Provider", "break_even_hours", "offers", "provider", "terms", "total_cost"]
