"""Predicted against measured memory of the newest architectures: results/edge.json.

    python benchmarks/edge.py

`generate.py` drew the jobs of two draws, `predict.py --edge` said what they take (data/edge_predictions.jsonl and
edge2_predictions.jsonl, never written again), `measure.py` then ran those that fit on an H200 (data/edge_runs.jsonl,
edge2_runs.jsonl). What is compared is what was said before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from generate import EDGE_DRAWS  # noqa: E402
from report_rows import lines_of  # noqa: E402
from timing import write_result  # noqa: E402

Row = dict[str, Any]


def row_of(run: Row) -> Row:
    job, said, measured = run["job"], run["predicted"], run["measured"]
    text = run["config"].get("text_config", run["config"])
    row = {
        "id": job["id"], "model": job["model"], "architecture": text["model_type"], "method": job["method"],
        "layers": text["num_hidden_layers"], "guesses": run["guesses"],
    }  # fmt: skip
    if not measured["completed"]:
        return {**row, "failed": measured["error"].strip().splitlines()[-1][:160]}
    off = {
        kind: round(said[f"{kind}_bytes"] / measured[f"peak_{short}"] - 1, 8)
        for kind, short in (("allocated", "alloc"), ("reserved", "reserved"))
    }
    return {**row, **{f"{kind}_error": value for kind, value in off.items()}}


def summary(names: Sequence[str]) -> Row:
    """Of these draws together."""
    rows = [row_of(run) for name in names for run in lines_of(f"{name}_runs.jsonl")]
    ran = [row for row in rows if "failed" not in row]
    called_exact = [row for row in ran if not row["guesses"]]
    exact = [row for row in ran if row["allocated_error"] == 0]
    return {
        "drawn": sum(len(lines_of(f"{name}_predictions.jsonl")) for name in names),
        "started": len(rows),
        "ran": len(ran),
        "architectures": len({row["architecture"] for row in ran}),
        "allocated_to_the_byte": len(exact),
        "called_exact": len(called_exact),
        "called_exact_to_the_byte": sum(row in exact for row in called_exact),
        "worst_allocated": max((row["allocated_error"] for row in ran), key=abs),
        "worst_allocated_called_exact": max((row["allocated_error"] for row in called_exact), key=abs),
        "worst_reserved": max((row["reserved_error"] for row in ran), key=abs),
        "rows": rows,
    }


def main() -> None:
    whole = summary(tuple(EDGE_DRAWS))
    draws = {name: {key: value for key, value in summary([name]).items() if key != "rows"} for name in EDGE_DRAWS}
    write_result(HERE / "results" / "edge.json", {**whole, "draws": draws})
    print(json.dumps({**draws, "both": {key: value for key, value in whole.items() if key != "rows"}}, indent=1))


if __name__ == "__main__":
    main()
