"""How far off the guess is where an architecture is unknown: results/unknown.json.

    python benchmarks/unknown.py

Every architecture that is written down is renamed, so that nobody has heard of it, and taken for the nearest of the
others; its own closed form says what is true. Of each its smallest, middle and largest bundled model, full, LoRA and
QLoRA, with what a job takes where it says no more. An architecture that is refused counts as neither right nor wrong.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from timing import write_result  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job.model import model_config  # noqa: E402
from tunecast.job.registry import bundled_config, bundled_names  # noqa: E402
from tunecast.prediction.memory.ranges import GUESSED  # noqa: E402
from tunecast.prediction.memory.ranges_table import BANDS  # noqa: E402
from tunecast.prediction.prediction import Prediction  # noqa: E402
from tunecast.tape.build.families import FAMILIES  # noqa: E402

METHODS = ("full", "lora", "qlora")


def models() -> dict[str, list[str]]:
    """By architecture: the smallest, the middle and the largest."""
    by_type = defaultdict(list)
    for name in bundled_names():
        model = model_config(name, bundled_config(name), name)
        if model.model_type in FAMILIES:
            by_type[model.model_type].append((model.layers * model.hidden_size**2, name))
    return {
        kind: sorted({ordered[place][1] for place in (0, len(ordered) // 2, -1)})
        for kind, found in sorted(by_type.items())
        if (ordered := sorted(found))
    }


def unheard_of(config: dict[str, Any]) -> dict[str, Any]:
    config = deepcopy(config)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and "model_type" in part:
            part["model_type"] = f"unheard_{part['model_type']}"
    return config


def asked(folder: Path, config: dict[str, Any], method: str) -> Prediction | None:
    (folder / "config.json").write_text(json.dumps(config))
    job = {"model": str(folder), "method": method, "hardware": {"gpu": "h200-sxm-141gb"}}
    try:
        return predict(job, engine="analytic", timed=False, once=True)
    except TunecastError:
        return None


def row(folder: Path, kind: str, name: str, method: str) -> dict[str, Any] | None:
    """None where the job is refused under its own name too."""
    config = bundled_config(name)
    true, guess = asked(folder, config, method), asked(folder, unheard_of(config), method)
    if true is None:
        return None
    found = {"architecture": kind, "model": name, "method": method}
    if guess is None:
        return {**found, "refused": True}
    ratio = guess.memory.allocated_bytes / true.memory.allocated_bytes
    return {**found, "taken_as": guess.reasons[0], "allocated_ratio": round(ratio, 4)}


def main() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        asks = [(kind, name, method) for kind, names in models().items() for name in names for method in METHODS]
        rows = [found for each in asks if (found := row(Path(folder), *each)) is not None]
    below, above, *_ = BANDS[GUESSED, "allocated"]
    ratios = [each["allocated_ratio"] for each in rows if "allocated_ratio" in each]
    inside = sum(1 / (1 + above) <= ratio <= 1 / (1 - below) for ratio in ratios)
    off = [abs(ratio - 1) for ratio in ratios]
    summary = {
        "architectures": len({each["architecture"] for each in rows}),
        "jobs": len(rows),
        "refused": len(rows) - len(ratios),
        "inside_the_stated_range": round(inside / len(ratios), 4),
        "stated_range": [-below, above],
        "median_off": round(statistics.median(off), 4),
        "worst_off": round(max(off), 4),
    }
    write_result(HERE / "results" / "unknown.json", {"commit": commit(), **summary, "rows": rows})
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
