"""Whether a machine is free right now, where a provider says so to anybody: `tunecast offers --available`.

Vast.ai's search and RunPod's GraphQL answer without a key. Of all others the answer is "not known": Verda's, Lyceum's,
Hot Aisle's and Crusoe's APIs want an account, and price lists say nothing of it. Only the card, the number of cards and
the kind are sent. TUNECAST_VAST_API and TUNECAST_RUNPOD_API name mirrors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

from tunecast.errors import NotResolved
from tunecast.market.offer import Offer
from tunecast.market.sources import runpod, vast
from tunecast.market.sources.replies import Stock, address
from tunecast.records import NamedTuple
from tunecast.units import MIB

Answer = Literal["free now", "none free", "not known"]
FREE: Answer = "free now"
NONE_FREE: Answer = "none free"
NOT_KNOWN: Answer = "not known"

VAST = "https://console.vast.ai/api/v0/bundles/"
RUNPOD = "https://api.runpod.io/graphql"
TIMEOUT_S = 10.0
MOST_BYTES = 8 * MIB
"""An offer of Vast.ai's has three kilobytes; 200 are asked for."""
MOST_QUESTIONS = 20
"""Of one command: further offers are not asked about."""


class Availability(NamedTuple):
    answer: Answer
    asked_at: datetime | None = None
    """None where nobody was asked."""
    source: str = ""
    """Who was asked; or why there is no answer."""
    usd_per_hour: float | None = None
    """What one that is free costs now, the whole machine."""


NOBODY = Availability(NOT_KNOWN, None, "the provider tells nobody without an account")


class Door(NamedTuple):
    """Where a provider is asked, how, and how its answer is read."""

    url: str
    question: Callable[[Offer], bytes | None]
    stock: Callable[[bytes, Offer], Stock]


Post = Callable[[str, bytes, float], bytes]


def doors(environ: Mapping[str, str] = os.environ) -> Mapping[str, Door]:
    """By provider. Raises `NotResolved` for a mirror that is no address."""
    return {
        "vast.ai": Door(address(environ, "TUNECAST_VAST_API", VAST), vast.question, vast.stock),
        "runpod": Door(address(environ, "TUNECAST_RUNPOD_API", RUNPOD), runpod.question, runpod.stock),
    }


def availability(
    offers: Iterable[Offer], now: datetime, where: Mapping[str, Door], post: Post | None = None
) -> Mapping[Offer, Availability]:
    """Of each; the same question is asked once. Never raises: who does not answer leaves it not known."""
    ask = post or post_question
    replies: dict[tuple[str, bytes], bytes | NotResolved] = {}
    found: dict[Offer, Availability] = {}
    for offer in offers:
        door = where.get(offer.provider) if not offer.via else None
        question = None if door is None else door.question(offer)
        if door is None or question is None:
            found[offer] = NOBODY
            continue
        key = door.url, question
        if key not in replies and len(replies) >= MOST_QUESTIONS:
            found[offer] = Availability(NOT_KNOWN, None, f"not asked: at most {MOST_QUESTIONS} questions at once")
            continue
        if key not in replies:
            try:
                replies[key] = ask(door.url, question, TIMEOUT_S)
            except NotResolved as error:
                replies[key] = error
        found[offer] = _answer(replies[key], door, offer, now)
    return found


def _answer(reply: bytes | NotResolved, door: Door, offer: Offer, now: datetime) -> Availability:
    try:
        if isinstance(reply, NotResolved):
            raise reply
        stock = door.stock(reply, offer)
    except NotResolved as error:
        return Availability(NOT_KNOWN, now, error.message)
    return Availability(FREE if stock.is_free else NONE_FREE, now, door.url, stock.usd_per_hour)


def post_question(url: str, body: bytes, timeout_s: float) -> bytes:
    """Raises `NotResolved`."""
    from tunecast.job.fetch import content_of

    return content_of(url, MOST_BYTES, timeout_s, body)
