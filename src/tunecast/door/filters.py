"""Which offers are meant: the options that `tunecast offers` and `tunecast plan` share, by the names of their flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, TypedDict

from tunecast.errors import UsageError, nearest_hint
from tunecast.market.cost import RATE, Rate, given
from tunecast.market.filters import Filters
from tunecast.market.jurisdiction import country as country_code
from tunecast.units import bytes_from

Names = str | Sequence[str]
"""One name, or several."""


class FilterOptions(TypedDict, total=False):
    """Each narrows the offers down."""

    gpu: str | None
    """A card, by any usual spelling."""
    gpus: int | None
    """Cards in the machine."""
    provider: Names
    exclude_provider: Names
    kind: Names
    """on-demand, spot, reserved, owned."""
    country: Names
    eu: bool
    """In one of the EU's 27 countries for sure; with `country` both."""
    no_cloud_act: bool
    """No parent under US law is known."""
    certified: str | None
    """Such as iso27001, where a source confirms it."""
    interconnect: str | None
    """In the machine: nvlink, xgmi, pcie, host, or a link."""
    vendor: str | None
    """NVIDIA, AMD or Intel."""


class MoneyOptions(TypedDict, total=False):
    """How prices are shown."""

    eur: bool
    usd_per_eur: float | None
    vat: float | None
    """Percent."""


def names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def split_names(given: Names) -> tuple[str, ...]:
    """`["method,optimizer"]` and `["method", "optimizer"]` are alike."""
    return tuple(name.strip() for text in names(given) for name in text.split(",") if name.strip())


def with_defaults(what: str, options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Every option: as given, else None, or nothing of what there may be several of. Raises `UsageError` for others."""
    several = ("provider", "exclude_provider", "kind", "country", "keep", "allow")
    every: dict[str, Any] = {name: () if name in several else None for name in known}
    for name, value in options.items():
        if name not in every:
            allowed = f"{', '.join(every)}{nearest_hint(name, every)}"
            raise UsageError(f"{what}: got {name!r}; allowed: {allowed}", field=name)
        every[name] = names(value) if name in several else value
    if every.get("spot") and every.get("no_spot"):
        raise UsageError("--spot: got it with --no-spot; allowed: one of the two", field="--spot")
    return every


def filters_of(options: Mapping[str, Any]) -> Filters:
    return Filters(
        gpu=options["gpu"],
        gpus=options["gpus"],
        providers=tuple(name.lower() for name in options["provider"]),
        excluded=tuple(name.lower() for name in options["exclude_provider"]),
        kinds=options["kind"],
        countries=tuple(country_code(name) for name in options["country"]),
        eu=bool(options["eu"]),
        no_cloud_act=bool(options["no_cloud_act"]),
        certified=options["certified"],
        interconnect=options["interconnect"],
        vendor=options["vendor"],
    )


FILTERS = (
    *("gpu", "gpus", "certified", "interconnect", "vendor", "provider", "exclude_provider", "kind", "country"),
    *("spot", "no_spot", "marketplace", "reserved", "eu", "no_cloud_act"),
)


def flags_of(options: Mapping[str, Any], names: Iterable[str] = FILTERS) -> list[str]:
    """Those that were given, as they are typed: a switch alone, of several values one flag each."""
    flags = []
    for name in names:
        flag, value = f"--{name.replace('_', '-')}", options.get(name)
        if isinstance(value, (tuple, list)):
            flags += [f"{flag} {each}" for each in value]
        elif value is not None and value is not False:
            flags.append(flag if value is True else f"{flag} {value}")
    return flags


def rate_of(usd_per_eur: float | None, today: date) -> Rate:
    return RATE if usd_per_eur is None else given(usd_per_eur, today)


def size_of(name: str, value: int | str | None) -> int | None:
    """Bytes: 2 GiB as `2 * 2**30` or `"2GiB"`."""
    nbytes = bytes_from(value) if isinstance(value, str) else value
    if isinstance(value, str) and nbytes is None:
        raise UsageError(f"{name}: got {value!r}; allowed: a size such as 2GiB or 2GB", field=name)
    return nbytes
