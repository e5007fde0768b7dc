"""Predicted against published memory of runs on several cards; writes `results/sharded_memory.json`.

    python benchmarks/sharded_memory.py

The rows of data/public_runs.jsonl that have a peak, each compared in the kind its source measured, and in device memory
where nvidia-smi was read too. Memory is the fullest rank's; sources report one rank's, the most of all, or, of
nvidia-smi, the mean of the cards.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from public_figures import KIND_FIELDS  # noqa: E402
from timing import Asked, described, grouped, refusals, rows_of, worst_first, write_result  # noqa: E402

from tunecast.job import Job  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402

Row = dict[str, Any]
FIELDS = ("allocated_bytes", "reserved_bytes", "device_bytes")
LEAST_ANSWERED = 0.9
MOST = {"all": (0.02, 0.08), "stack": (0.06, 0.15), "device": (0.08, 0.25)}
"""Of all rows, of each stack, and of what nvidia-smi showed of a stack: the median error and the p90."""


def memory_said(job: Job) -> Row:
    memory = predict(job).memory  # the whole prediction has the least capacity too, which takes longer
    return {name: getattr(memory, name) for name in FIELDS} | {"peak_phase": memory.peak_phase}


def compared(row: Row, said: Row) -> Row:
    measured = row["measured"]["memory"]
    field = KIND_FIELDS[measured["kind"]]
    told: Row = {}
    if "device_bytes" in measured and "device_bytes" in said:
        told["measured_device_bytes"] = measured["device_bytes"]
        told["device_error"] = {"tunecast": said["device_bytes"] / measured["device_bytes"] - 1}
    return {
        "id": row["id"],
        "stack": row["stack"],
        "gpu": row["job"]["hardware"]["gpu"],
        "kind": measured["kind"],
        "about": described(row),
        "measured_bytes": measured["bytes"],
        "resolution_bytes": measured["resolution_bytes"],
        "said": {"tunecast": said},
        "error": {"tunecast": said[field] / measured["bytes"] - 1} if field in said else {},
        **told,
        **({"doubts": row["doubts"]} if "doubts" in row else {}),
    }


def promises(groups: list[Row]) -> list[tuple[str, str, bool]]:
    """What is promised of all rows and of each stack, what is measured, and whether it holds."""
    lines = []
    for group in groups:
        kind, _, stack = group["group"].partition(": ")
        if kind not in MOST:
            continue
        ours, (median, p90) = group["tools"]["tunecast"], MOST[kind]
        kept = (
            ours["answered_fraction"] >= LEAST_ANSWERED
            and ours.get("median", 1.0) <= median
            and ours.get("p90", 1.0) <= p90
        )
        measured = f"{ours['answered']} of {group['rows']} answered"
        if ours["answered"]:
            measured += f", median {ours['median']:.1%}, p90 {ours['p90']:.1%}, worst {ours['worst']:.1%}"
        promise = f"{LEAST_ANSWERED:.0%} answered, median within {median:.0%}, p90 within {p90:.0%}"
        name = f"{stack}, device memory" if kind == "device" else stack or kind
        lines.append((f"{name}: {promise}", measured, kept))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose id contains this; prints, writes nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sharded_memory.json")
    options = parser.parse_args()
    rows = [row for row in rows_of("public_runs.jsonl") if "memory" in row["measured"] and options.only in row["id"]]
    ask, found = Asked(memory_said), []
    for row in rows:
        done = compared(row, ask(row))
        found.append(done)
        error = done["error"].get("tunecast")
        shown = done["said"]["tunecast"].get("refused", "").splitlines()[0][:90] if error is None else f"{error:+.1%}"
        print(done["id"], done["stack"], done["kind"], done["about"], shown, flush=True)
    groups = grouped(found, lambda row: ["all", f"stack: {row['stack']}", f"kind: {row['kind']}", f"gpu: {row['gpu']}"])
    on_cards = [row | {"error": row["device_error"]} for row in found if "device_error" in row]
    groups += grouped(on_cards, lambda row: [f"device: {row['stack']}"])
    for line in promises(groups):
        print(line)
    for row in worst_first(found)[:10]:
        print(f"worst: {row['id']} {row['about']} {row['error']['tunecast']:+.1%}")
    for reason in refusals(found)[:20]:
        print(f"refused: {reason['rows']} of {reason['stack']}: {reason['reason']}")
    if not options.only:
        made = {"commit": commit(), "groups": groups, "refused": refusals(found), "rows": found}
        write_result(options.out, made)


if __name__ == "__main__":
    main()
