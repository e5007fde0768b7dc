"""Flags that say which offers are meant, and in what money: `offers` and `plan` have the same."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from tunecast.cli.arguments import count, number
from tunecast.market.cost import RATE
from tunecast.market.offer import KINDS

FILTERS = ("--gpu", "--gpus", "--country", "--interconnect")
"""Flags that are also fields of a job, by the same name."""


def add_filter_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--gpu", metavar="NAME", help="only this card, as named in tunecast gpus")
    parser.add_argument("--gpus", metavar="N", type=count, help="cards per machine")
    parser.add_argument(
        "--provider", metavar="NAME", action="append", default=[], help="only this provider (repeatable)"
    )
    parser.add_argument(
        "--exclude-provider", metavar="NAME", action="append", default=[], help="not this provider (repeatable)"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", default=[], help="only this kind (repeatable)")
    parser.add_argument(
        "--country", metavar="NAME", action="append", default=[], help="only this country, such as DE (repeatable)"
    )
    parser.add_argument(
        "--eu",
        action="store_true",
        help="only machines certain to be in one of the EU's 27 countries; with --country, both must hold",
    )
    parser.add_argument(
        "--no-cloud-act", action="store_true", help="only companies without a known parent under US law"
    )
    parser.add_argument(
        "--certified", metavar="NAME", help="only with this certificate, such as iso27001, confirmed by a source"
    )
    parser.add_argument(
        "--interconnect", metavar="KIND", help="link between a machine's cards: nvlink, xgmi, pcie, host, or its name"
    )
    parser.add_argument("--vendor", metavar="NAME", help="only cards of NVIDIA, AMD or Intel")


def add_money_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--eur", action="store_true", help="show prices in euros")
    parser.add_argument(
        "--usd-per-eur", metavar="N", type=number(0, 100), help=f"exchange rate (default: {RATE.usd_per_eur:g})"
    )
    parser.add_argument("--vat", metavar="PERCENT", type=number(0, 100), help="add this much VAT to prices")


def options_from(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What was given, by the names the functions of `door` have for it."""
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
