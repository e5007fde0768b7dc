"""Which choices of a front are the answers, and why each and not the next."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from tunecast.planning.choice import PICKS, Choice
from tunecast.units import HOUR_S, hours

ALIKE = 0.01
"""Predictions differ from runs by more than this: who pays twice for it has gained nothing that is known."""
STEP = 0.05
"""Between two choices of a front that are worth telling apart: as much as predictions of one card differ from runs."""


ALONE = "no other option is cheaper or faster by more than predictions err"
"""Why all picks are one."""


def space_out(front: Sequence[Choice]) -> list[Choice]:
    """A front, the cheapest first, without choices that are hardly better than the next in one thing and worse in the
    other: 1 % at its ends, 5 % between them. What is left is what is shown and picked from, all of it."""
    if not front:
        return []
    first = max((each for each in front if each.total_usd <= front[0].total_usd * (1 + ALIKE)), key=_usd)
    last = min((each for each in front if each.total_s <= front[-1].total_s * (1 + ALIKE)), key=_usd)
    if first.total_usd >= last.total_usd:  # the ends meet: one choice is as cheap as any and as fast
        return [last]
    left = [first]
    for each in (each for each in front if first.total_usd < each.total_usd < last.total_usd):
        if each.total_s > left[-1].total_s * (1 - STEP):
            continue
        if each.total_usd < left[-1].total_usd * (1 + STEP) and len(left) > 1:
            left.pop()
        left.append(each)
    if len(left) > 1 and last.total_usd < left[-1].total_usd * (1 + STEP):
        left.pop()
    return [*left, last]


def _usd(choice: Choice) -> float:
    return choice.total_usd


def pick(front: Sequence[Choice], within_s: float | None) -> dict[str, Choice | None]:
    """The picks by name, all of the front given, the cheapest of it first."""
    found: dict[str, Choice | None] = dict.fromkeys(PICKS)
    if front:
        found.update(cheapest=front[0], fastest=front[-1], balanced=balanced(front))
        found["deadline"] = None if within_s is None else front[0]
    return found


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
    told: dict[str, str] = {}
    for name, choice in picks.items():
        if choice is not None:
            alone = len(front) == 1 and name != "deadline"
            told[name] = ALONE if alone else _WHY[name](choice, front, picks, within_s)
    return told


def _cheapest(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], _: float | None) -> str:
    rest = [other for other in front if other.total_usd > choice.total_usd]
    if not rest:
        return "the cheapest, and nothing is faster"
    following = rest[0]
    told = f"{_less(choice.total_usd, following.total_usd)} cheaper than the next option, {_named(following)}"
    return f"{told}, which takes {_less(following.total_s, choice.total_s)} less time"


def _fastest(choice: Choice, front: Sequence[Choice], picks: dict[str, Choice | None], _: float | None) -> str:
    rest = [other for other in front if other.total_s > choice.total_s]
    if not rest:
        return "the fastest, and nothing is cheaper"
    following = rest[-1]  # on a front the next slower one is the next cheaper one
    told = f"takes {_less(choice.total_s, following.total_s)} less time than the next option, {_named(following)}"
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
    high = hours(choice.total_range_s[1])
    surely = "" if choice.fits_surely else ", though it may not fit: nothing that fits for sure finishes by then"
    return f"cheapest option that finishes within {_limit(within_s)} even in the slow case ({high}){surely}"


def _limit(seconds: float) -> str:
    """`6 h`, `1.5 h`, `90 min`: as it was asked for."""
    return f"{seconds / HOUR_S:.3g} h" if seconds >= 2 * HOUR_S or seconds % HOUR_S == 0 else f"{seconds / 60:.3g} min"


_WHY = {"cheapest": _cheapest, "fastest": _fastest, "balanced": _balanced, "deadline": _deadline}


def _named(choice: Choice) -> str:
    offer = choice.fleet.offer
    return f"{choice.hardware} at {offer.provider}{' (spot)' if offer.kind == 'spot' else ''}"


def _less(small: float, large: float) -> str:
    return f"{100 * (1 - small / large):.0f} %"


def _more(large: float, small: float) -> str:
    return f"{100 * (large / small - 1):.0f} % more" if large < 3 * small else f"{large / small:.1f} times the money"
