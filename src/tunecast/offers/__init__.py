"""Offers: what can be rented, where, under whose law, and what a run on it costs.

sources/ ► listing ► names, clean ► offer ► store      price lists become offers; bundled, fetched, the user's own
provider, jurisdiction, places                         who rents it out, and where it stands
cost, money                                            what a run costs, line by line
level, outliers                                        which prices are off the others, or too low to count on
availability                                           whether one is free, where a provider tells anybody
"""

from __future__ import annotations

from tunecast.offers.cost import Cost, break_even_hours, total_cost
from tunecast.offers.offer import Offer
from tunecast.offers.provider import Provider, provider, terms
from tunecast.offers.store import offers

__all__ = ["Cost", "Offer", "Provider", "break_even_hours", "offers", "provider", "terms", "total_cost"]
