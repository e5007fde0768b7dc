"""What the worker answers: at once what a file says and whether it fits, then what takes longer, piece by piece.

look      problems and verdict, in the process that keeps what it built; of a job's own batches the first alone
details   in a child that ends with whoever asked: the verdict of all its batches, time and price, what each key costs,
          what would make it fit
keys      what may be written here
plan, fit, launch   as the commands say it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.door.predict import rent_of
from tunecast.door.suggestions import rent_of_run
from tunecast.errors import TunecastError
from tunecast.lsp.asked import Asked
from tunecast.lsp.commands import COMMANDS, command_result
from tunecast.lsp.costs import breakdown, costs
from tunecast.lsp.reading import NOTHING, Reading, reading
from tunecast.lsp.remedies import remedies
from tunecast.lsp.writing import cards, writing
from tunecast.planning.choice import DOLLARS
from tunecast.prediction.prediction import Prediction
from tunecast.report.plan.price import cost_words
from tunecast.report.plan.words import hourly, seller
from tunecast.report.run.time import per_step, whole_job
from tunecast.result import json_value

Event = tuple[str, Any]
IN_PLACE = ("look", "remedies")
"""Questions that begin with what a file says."""


def read_asked(question: Mapping[str, Any], *, brief: bool = True) -> Reading:
    asked, known_before = Asked(*question["asked"]), question["known_before"]
    return reading(Path(question["path"]), question["text"], asked, known_before=known_before, brief=brief)


def details(question: Mapping[str, Any], read: Reading) -> Iterator[Event]:
    """What is worth waiting for, the quickest first."""
    if read.job is not None and read.job.data.has_lengths:
        at_once, read = read.look, read_asked(question, brief=False)
        if read.look != at_once:
            yield "look", read.look.to_dict()
    found = read.prediction
    if found is None or read.recipe is None:
        return
    yield "time", time_and_price(found)
    for cost in costs(read):
        yield "cost", cost.to_dict()
    if found.on_card.verdict != "fits":
        yield "remedies", fitting(question, read)


def further(question: Mapping[str, Any], read: Reading) -> Iterator[Event]:
    """What a child answers."""
    kind = question["kind"]
    if kind == "look":
        yield from details(question, read)
    elif kind == "remedies":
        yield "remedies", fitting(question, read)
    elif kind == "keys":
        found = writing(Path(question["path"]), question["text"])
        yield "keys", {**found.to_dict(), "cards": cards()}
    else:
        yield "shown", command(question)


def fitting(question: Mapping[str, Any], read: Reading) -> Any:
    if read.recipe is None or read.prediction is None:
        return []
    try:
        _, found = remedies(Path(question["path"]), question["text"], read.overrides, read.recipe)
    except TunecastError:
        return []
    return [json_value(each) for each in found]


def time_and_price(found: Prediction) -> dict[str, Any]:
    time = found.time
    rent = None
    with contextlib.suppress(TunecastError):
        rent = rent_of_run(found) or rent_of(found)
    return {
        "breakdown": breakdown(found),
        "step": None if time is None else per_step(time),
        "whole": [] if time is None else whole_job(time),
        "price": None if rent is None else f"{_price(rent)} at {seller(rent.fleet.offer)}",
    }


def _price(rent: Any) -> str:
    hour = hourly(rent.usd_per_hour, DOLLARS)
    return hour if rent.bill is None else f"{cost_words(rent)}, {hour}"


def command(question: Mapping[str, Any]) -> Any:
    return command_result(
        question["kind"], Path(question["path"]), question["text"], Asked(*question["asked"])
    ).to_dict()


__all__ = ["COMMANDS", "IN_PLACE", "NOTHING", "further", "read_asked", "time_and_price"]
