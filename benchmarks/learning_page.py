"""Writes the figures of docs/learning.md from results/learning.json; the rest of that page is written by hand.

python benchmarks/learning_page.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load, table  # noqa: E402

from tunecast.prediction.lessons.correction import PRIORS, Prior  # noqa: E402

PAGE = HERE.parent / "docs" / "learning.md"
BEGIN, END = "<!-- figures: benchmarks/learning_page.py -->", "<!-- end of figures -->"
Row = dict[str, Any]
SHOWN = (0, 1, 3, 5, 12, 20)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def at(curve: Sequence[Row], runs: int) -> Row | None:
    return next((each for each in curve if each["runs"] == runs), None)


def shares() -> list[str]:
    head = ["a step that waits for", "card", "stack", "model", "host", "the run itself"]
    rows = [
        [f"the {waits}", *(percent(share) for share in prior[: Prior._fields.index("freedom")])]
        for waits, prior in PRIORS.items()
    ]
    return [*table(head, rows)]


def curve_rows(name: str, curve: Sequence[Row]) -> list[str]:
    cells = []
    for runs in SHOWN:
        found = at(curve, runs)
        cells.append("" if found is None else f"{percent(found['median'])} ({100 * found['inside']:.0f})")
    return [name, *cells]


def cards(found: Row, which: str) -> list[str]:
    head = ["card", "rows", *(f"k = {runs}" for runs in SHOWN)]
    rows = []
    for card in found["cards"]:
        name, *cells = curve_rows(card["card"], card["curves"][which])
        rows.append([name, str(card["rows"]), *cells])
    return table(head, rows)


def few(found: Row) -> list[str]:
    head = ["card", "rows", "shipped", "learned from the others"]
    rows = [
        [
            each["card"],
            str(each["rows"]),
            *(f"{percent(side['median'])} ({100 * side['inside']:.0f})" for side in (each["without"], each["learned"])),
        ]
        for each in found["few"]
    ]
    return table(head, rows)


def mean(values: Iterable[float]) -> float:
    made = list(values)
    return sum(made) / len(made)


def halved(curve: Sequence[Row]) -> str:
    start = curve[0]["median"]
    found = next((each["runs"] for each in curve if each["median"] <= start / 2), None)
    return "never" if found is None else str(found)


def summary(found: Row) -> list[str]:
    """How far errors fall, cards counting the same, and how many runs halve one."""
    lines = []
    for which, words in (("rows", "other rows, of models learned from too"), ("models", "rows of other models")):
        pairs = [(card["curves"][which][0], at(card["curves"][which], 20)) for card in found["cards"]]
        both = [(one, other) for one, other in pairs if other is not None]
        before, after = (mean(each[side]["median"] for each in both) for side in (0, 1))
        narrow = [mean(each[side]["half_width"] for each in both) for side in (0, 1)]
        inside = mean(other["inside"] for _, other in both if other is not None)
        lines.append(
            f"- {words}: from 20 runs the median error goes from {percent(before)} to {percent(after)} (mean of the "
            f"medians of {len(both)} cards), half the range from {percent(narrow[0])} to {percent(narrow[1])}, and "
            f"{100 * inside:.0f} % of the rows lie in it."
        )
    counts = [f"{card['card']} {halved(card['curves']['rows'])}" for card in found["cards"]]
    lines.append(f"- Rows of a card that halve its error: {', '.join(counts)}.")
    return lines


def machines(found: Row) -> list[str]:
    head = [
        "machine's rows",
        "waits for",
        "rows",
        "without",
        "from the others' runs",
        "from 3 of its own",
        "from 5",
        "from 12",
    ]
    rows = []
    for each in found["machines"]:
        curve, others = each["curves"]["rows"], each["from_other_machines"]
        own = [at(curve, runs) for runs in (0, 3, 5, 12)]
        cells = ["" if one is None else f"{percent(one['median'])} ({100 * one['inside']:.0f})" for one in own]
        others_cell = f"{percent(others['median'])} ({100 * others['inside']:.0f})"
        rows.append([each["machine"], each["waits_for"], str(each["rows"]), cells[0], others_cell, *cells[1:]])
    return table(head, rows)


def drift(found: Row) -> list[str]:
    shown = ("0", "1", "2", "3", "5", "10", "20")
    head = [
        "from some run on",
        "runs before",
        *(f"after {count}" for count in shown),
        "halved after",
        "within 2 % after",
    ]
    rows = []
    for each in found["drift"]:
        slower = f"{100 * (each['ratio'] - 1):+.0f} %"
        offs = [percent(each["off_by_runs"][count]) for count in shown]
        rows.append(
            [slower, str(each["before"]), *offs, str(each["halved_after"]), str(each["within_2_percent_after"])]
        )
    return table(head, rows)


def odd(found: Row) -> list[str]:
    head = ["one run is longer by", "among", "moves the prediction by", "at most", "refused"]
    rows = [
        [
            f"{100 * (each['ratio'] - 1):.0f} %",
            f"{each['others']} others",
            percent(each["moved"]),
            percent(each["most"]),
            f"{100 * each['refused']:.0f} %",
        ]
        for each in found["odd"]
    ]
    return table(head, rows)


def figures() -> str:
    found = load("learning.json")
    same, near = found["same"], found["neighbours"]
    by_memory, by_time = near["memory"], near["time"]
    again = [
        ["median error (inside)", *(f"{percent(one['median'])} ({100 * one['inside']:.0f})" for one in same["curve"])],
        ["half the range", *(percent(one["half_width"]) for one in same["curve"])],
    ]
    lines = [
        "Which part of the square of a step's deviation is whose (`prediction/lessons/table.py`):", "", *shares(),
        "### A card nobody timed, and k of its runs", "",
        "Median error of the rows that were not learned from, and in brackets how many of 100 lie in their 80 % range. "
        "Rows drawn at random, so that some are of a model that was learned from:", "", *cards(found, "rows"),
        "Learned from some models, scored on the others:", "", *cards(found, "models"), *summary(found), "",
        "Cards with fewer rows, each row predicted from all others of its card:", "", *few(found),
        "### The same model again", "",
        f"{same['cells']} cells of one card, stack and model with six rows and more; k rows are learned from:", "",
        *table(["", *(f"k = {one['runs']}" for one in same["curve"])], again),
        "### Three machines with an H200", "", *machines(found),
        "### Drift and odd runs, simulated", "",
        "Distance of the prediction from the new truth, median of 300 draws:", "", *drift(found), *odd(found),
        "### The nearest runs", "",
        "Leaving each shipped run out, its error lies in the middle 80 % of its nearest runs' errors in "
        f"{percent(by_memory['inside'])} of {by_memory['with_like_runs']} for memory ({by_memory['runs']} measured) "
        f"and in {percent(by_time['inside'])} of {by_time['with_like_runs']} for time ({by_time['runs']}).",
    ]  # fmt: skip
    return "\n".join(lines)


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{figures()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
