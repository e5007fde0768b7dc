"""Values of an engine's own options that are numbers: `--option max_price=2.5`."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.errors import UsageError

MOST = 10**9
"""More of anything is a typing error."""


def whole_number(options: Mapping[str, str], name: str, default: int, unit: str = "") -> int:
    """From 0 on."""
    given = options.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(MOST))):
        raise _refusal(name, given, f"a whole number{unit}, such as 5")
    return int(given)


def price_usd(options: Mapping[str, str], name: str) -> float | None:
    """None where it was not given."""
    given = options.get(name)
    if given is None:
        return None
    try:
        usd = float(given)
    except ValueError:
        usd = 0.0
    if not 0 < usd < MOST:  # also what is no number at all
        raise _refusal(name, given, "USD per hour, such as 2.5")
    return usd


def _refusal(name: str, given: str, allowed: str) -> UsageError:
    return UsageError(f"--option {name}: got {given[:80]!r}; allowed: {allowed}", field="option")
