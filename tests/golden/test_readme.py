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
        f"Over {memory.runs} measured runs the median error of memory is below 0.1 %, over {time.runs} timed steps "
        f"that of time is {percent['time']}; of one run in ten it is more than {percent['memory']} "
        f"and {percent['slow']}."
    )
    assert said in re.sub(r"\s+", " ", README.read_text("utf-8"))


def test_how_many_providers_there_are() -> None:
    assert f"price lists of {len({offer.provider for offer in bundled()})} providers" in README.read_text("utf-8")
