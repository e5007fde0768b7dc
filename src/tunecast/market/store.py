"""The offers at hand: the bundled ones, those an update fetched, and the user's own.

$XDG_DATA_HOME/tunecast/market/fetched.csv, own.csv      (else ~/.local/share, on Windows %LOCALAPPDATA%)

What was fetched replaces the bundled rows of the same list (skypilot/azure, or gpuhunt/azure). A file is written whole
or not at all, so a reader never sees half of one.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from tunecast.errors import NotResolved
from tunecast.home import data_folder
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.writer import write_file
from tunecast.market.clean import order
from tunecast.market.offer import Offer
from tunecast.market.table import MOST_BYTES, offers_from, text_from

FETCHED, OWN = "fetched.csv", "own.csv"
KEEPERS = ("skypilot", "gpuhunt")
"""Of lists that are fetched: `skypilot/aws`."""


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(data_folder(environ), "market")


def offers(environ: Mapping[str, str] = os.environ) -> tuple[Offer, ...]:
    """All of them, in a lasting order."""
    return tuple(sorted((*with_fetched(kept(FETCHED, environ)), *kept(OWN, environ)), key=order))


def with_fetched(fetched: Sequence[Offer]) -> tuple[Offer, ...]:
    """What is bundled, but for lists of which something newer was fetched, and that."""
    replaced = {list_name(offer.source) for offer in fetched}
    return (*(offer for offer in bundled() if list_name(offer.source) not in replaced), *fetched)


def list_name(source: str) -> str:
    """`azure` of skypilot/azure and of gpuhunt/azure; others are their own."""
    keeper, _, name = source.partition("/")
    return name if keeper in KEEPERS else source


@cache
def bundled() -> tuple[Offer, ...]:
    text = (files("tunecast.market") / "catalog" / "offers.csv").read_text("utf-8")
    return offers_from(text, "offers.csv")


@cache
def sources() -> Mapping[str, str]:
    """Where a list is from, in full, by the short name offers carry."""
    text = (files("tunecast.market") / "catalog" / "sources.csv").read_text("utf-8")
    return {row["source"]: row["where"] for row in csv.DictReader(text.splitlines())}


def is_listed(offer: Offer) -> bool:
    """Whether its price is of a list, not of the user's own."""
    return offer.source in sources() or offer.source.partition("/")[0] in KEEPERS


def kept(name: str, environ: Mapping[str, str] = os.environ) -> tuple[Offer, ...]:
    """Of the user's folder; none where there is no such file."""
    path = folder(environ) / name
    try:
        if not path.exists():
            return ()
        return offers_from(bounded_text(path, MOST_BYTES), str(path))
    except (OSError, ValueError):  # a folder one may not look into, a name too long, a NUL in it
        raise NotResolved(f"{path}: cannot be read. To fix: XDG_DATA_HOME, or the folder's permissions") from None
    except NotResolved as error:
        raise NotResolved(f"{error.message}. To fix: delete it, or tunecast offers update") from None


def keep(name: str, rows: Iterable[Offer], environ: Mapping[str, str] = os.environ) -> Path:
    """Whole or not at all; what cannot be read back is not written."""
    text = text_from(sorted(rows, key=order))
    offers_from(text, name)
    path = folder(environ) / name
    write_file(path, text, folder_too=True)
    return path
