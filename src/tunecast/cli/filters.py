"""Flags that say which offers are meant, and in what money: `offers` and `plan` have the same."""

from __future__ import annotations

import argparse
from datetime import date

from tunecast.cli.arguments import count, number
from tunecast.offers.asked import Asked
from tunecast.offers.jurisdiction import country
from tunecast.offers.money import RATE, Rate, given
from tunecast.offers.offer import KINDS

FILTERS = ("--gpu", "--gpus", "--country", "--interconnect")
"""Flags that are also fields of a job, by the same name."""


def add_filter_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--gpu", metavar="NAME", help="a card, as in tunecast gpus")
    parser.add_argument("--gpus", metavar="N", type=count, help="cards in the machine")
    parser.add_argument("--provider", metavar="NAME", action="append", default=[], help="(repeatable)")
    parser.add_argument("--exclude-provider", metavar="NAME", action="append", default=[], help="(repeatable)")
    parser.add_argument("--kind", choices=KINDS, action="append", default=[], help="(repeatable)")
    parser.add_argument("--country", metavar="NAME", action="append", default=[], help="such as DE (repeatable)")
    parser.add_argument(
        "--eu", action="store_true", help="in one of the EU's 27 countries for sure; with --country both"
    )
    parser.add_argument("--no-cloud-act", action="store_true", help="no parent under US law is known")
    parser.add_argument("--certified", metavar="NAME", help="such as iso27001, where a source confirms it")
    parser.add_argument("--interconnect", metavar="KIND", help="in the machine: nvlink, xgmi, pcie, host, or a link")
    parser.add_argument("--vendor", metavar="NAME", help="NVIDIA, AMD or Intel")


def asked_from(arguments: argparse.Namespace) -> Asked:
    return Asked(
        gpu=arguments.gpu,
        gpus=arguments.gpus,
        providers=tuple(name.lower() for name in arguments.provider),
        excluded=tuple(name.lower() for name in arguments.exclude_provider),
        kinds=tuple(arguments.kind),
        countries=tuple(country(name) for name in arguments.country),
        eu=arguments.eu,
        no_cloud_act=arguments.no_cloud_act,
        certified=arguments.certified,
        interconnect=arguments.interconnect,
        vendor=arguments.vendor,
    )


def flags_told(arguments: argparse.Namespace) -> list[str]:
    """The filters that were given, as they are typed."""
    told = []
    for name in ("gpu", "gpus", "certified", "interconnect", "vendor"):
        value = getattr(arguments, name)
        told += [] if value is None else [f"--{name} {value}"]
    several = ("provider", "exclude_provider", "kind", "country")
    told += [f"--{name.replace('_', '-')} {value}" for name in several for value in getattr(arguments, name)]
    switches = ("spot", "no_spot", "marketplace", "reserved", "eu", "no_cloud_act")
    return told + [f"--{name.replace('_', '-')}" for name in switches if getattr(arguments, name, False)]


def add_money_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--eur", action="store_true", help="show euros")
    parser.add_argument("--usd-per-eur", metavar="N", type=number(0, 100), help=f"(default: {RATE.usd_per_eur:g})")
    parser.add_argument("--vat", metavar="PERCENT", type=number(0, 100), help="show prices with it")


def rate_from(arguments: argparse.Namespace, today: date) -> Rate:
    return RATE if arguments.usd_per_eur is None else given(arguments.usd_per_eur, today)
