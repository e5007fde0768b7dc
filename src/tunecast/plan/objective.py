"""Which choices of a front are the answers, and why each and not the next."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from tunecast.plan.choice import Choice
from tunecast.units import HOUR_S

ALIKE = 0.01
"""Predictions differ from runs by more than this: who pays twice for it has gained nothing that is known."""


def cheapest(front: Sequence[Choice]) -> Choice | None:
    """The fastest of those that cost as much as the cheapest, or hardly more."""
    return max((each for each in front if each.total_usd <= front[0].total_usd * (1 + ALIKE)), key=_usd, default=None)


def fastest(front: Sequence[Choice]) -> Choice | None:
    """The cheapest of those that take as long as the fastest, or hardly longer."""
    return min((each for each in front if each.total_s <= front[-1].total_s * (1 + ALIKE)), key=_usd, default=None)


def _usd(choice: Choice) -> float:
    return choice.total_usd


def balanced(front: Sequence[Choice]) -> Choice | None:
    """The knee: furthest below the straight line from the cheapest to the fastest, in shares of cost and time.

    Both are taken as logarithms, so a tenth more of either counts the same wherever it is; without a bend it is the
    choice with the least cost x time.
    """
    if not front:
        return None
    first, last = front[0], front[-1]
    wide, high = log(last.total_usd / first.total_usd), log(first.total_s / last.total_s)
    if len(front) > 2 and wide > 0 and high > 0:
        below = [1 - log(c.total_usd / first.total_usd) / wide - log(c.total_s / last.total_s) / high for c in front]
        best = max(range(len(front)), key=lambda place: (below[place], -place))
        if below[best] > 0:
            return front[best]
    return min(front, key=lambda choice: choice.total_usd * choice.total_s)


def reasons(picks: dict[str, Choice | None], front: Sequence[Choice], within_s: float | None) -> dict[str, str]:
    """A sentence for each pick."""
    told = {}
    for name, choice in picks.items():
        if choice is not None:
            told[name] = _WHY[name](choice, front, picks, within_s)
    return told


def _cheapest(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], _: float | None) -> str:
    rest = [other for other in front if other.total_usd > choice.total_usd]
    if not rest:
        return "the cheapest, and nothing is faster"
    following = rest[0]
    told = f"{_less(choice.total_usd, following.total_usd)} cheaper than the next, {_named(following)}"
    return f"{told}, which takes {_less(following.total_s, choice.total_s)} less time"


def _fastest(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], _: float | None) -> str:
    rest = [other for other in front if other.total_s > choice.total_s]
    if not rest:
        return "the fastest, and nothing is cheaper"
    following = rest[-1]  # on a front the next slower one is the next cheaper one
    told = f"takes {_less(choice.total_s, following.total_s)} less time than the next, {_named(following)}"
    return f"{told}, which is {_less(following.total_usd, choice.total_usd)} cheaper"


def _balanced(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], _: float | None) -> str:
    cheap, fast, told = picks.get("cheapest"), picks.get("fastest"), []
    if cheap is not None and cheap.total_usd < choice.total_usd:
        saved = _less(choice.total_s, cheap.total_s)
        told.append(f"takes {saved} less time than the cheapest for {_more(choice.total_usd, cheap.total_usd)}")
    if fast is not None and fast.total_s < choice.total_s:
        saved = _less(fast.total_s, choice.total_s)
        told.append(f"the fastest takes {saved} less time for {_more(fast.total_usd, choice.total_usd)}")
    return "; ".join(told) or "the cheapest and the fastest"


def _deadline(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], within_s: float | None) -> str:
    assert within_s is not None
    high = _hours(choice.total_range_s[1])
    surely = "" if choice.fits_surely else ", though it may not fit: nothing that fits for sure is over by then"
    told = f"the cheapest that is over in {_hours(within_s)} at the high end of its range, {high}{surely}"
    cheap = picks.get("cheapest")
    if cheap is None or cheap.total_usd >= choice.total_usd:
        return told
    saved = _less(cheap.total_usd, choice.total_usd)
    high = _hours(cheap.total_range_s[1])
    return f"{told}; the cheapest of all, {_named(cheap)}, costs {saved} less but may take {high}"


_WHY = {"cheapest": _cheapest, "fastest": _fastest, "balanced": _balanced, "deadline": _deadline}


def _named(choice: Choice) -> str:
    offer = choice.machine.offer
    return f"{choice.hardware} at {offer.provider}{' (spot)' if offer.kind == 'spot' else ''}"


def _less(small: float, large: float) -> str:
    return f"{100 * (1 - small / large):.0f} %"


def _more(large: float, small: float) -> str:
    return f"{100 * (large / small - 1):.0f} % more" if large < 3 * small else f"{large / small:.1f} times the money"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.1f} h" if seconds >= HOUR_S else f"{seconds / 60:.0f} min"
