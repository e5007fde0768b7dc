"""What the README says in figures is what the data says."""

from __future__ import annotations

import re
from pathlib import Path

from tunecast.market.store import bundled
from tunecast.prediction.evidence import MEMORY, TIME, spread, table

README = Path(__file__).parents[2] / "README.md"


def test_how_far_predictions_are_off() -> None:
    memory, time = (spread([runs for runs in table() if runs.kind == kind]) for kind in (MEMORY, TIME))
    assert memory.median is not None and memory.median < 0.001
    percent = {name: f"{100 * error:.1f} %" for name, error in
               (("memory", memory.p90 or 0), ("time", time.median or 0), ("slow", time.p90 or 0))}  # fmt: skip
    said = (
        f"The median error of memory is below 0.1 % over {memory.runs} measured runs, that of time {percent['time']} "
        f"over {time.runs} timed steps; one run in ten is off by more than {percent['memory']} in memory "
        f"and {percent['slow']} in time."
    )
    assert said in re.sub(r"\s+", " ", README.read_text("utf-8"))


def test_how_many_providers_there_are() -> None:
    assert f"price lists of {len({offer.provider for offer in bundled()})} providers" in README.read_text("utf-8")
