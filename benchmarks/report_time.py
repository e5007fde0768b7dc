"""Write docs/accuracy_time.md, with its pictures, from the committed results: published step times, sharded memory.

python benchmarks/report_time.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import sharded_memory  # noqa: E402
from figures import load, table  # noqa: E402
from plots import POINTERS, SECONDS, Point, scatter_svg  # noqa: E402
from report_rows import promise_rows  # noqa: E402
from report_summary import as_appendix, summary  # noqa: E402
from time_promises import promises, whole_runs  # noqa: E402
from time_vendor import ORDERED  # noqa: E402
from timing import worst_first  # noqa: E402

DOCS = HERE.parent / "docs"
GIB = 2**30
Row = dict[str, Any]
TOOLS = {
    "tunecast": "tunecast",
    "6ND": "6ND at 40 %",
    "6ND fitted": "6ND, fitted",
    "6ND left out": "6ND, fitted to other cards",
    "llm-analysis": "llm-analysis at 0.5",
    "llm-analysis fitted": "llm-analysis, fitted",
}


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def by_group(made: Row, kind: str) -> list[str]:
    """A line a group: tunecast's own figures, its ranges, and each peer's median beside how many it answers."""
    named = [group for group in made["groups"] if group["group"].startswith(kind)]
    chosen = named if kind else [group for group in named if ": " not in group["group"]]
    peers = [tool for tool in TOOLS if tool != "tunecast" and tool in made["groups"][0]["tools"]]
    head = [kind.rstrip(": ") or "group", "rows", "answered", "median", "signed", "p90", "worst", "range holds"]
    lines = []
    for group in sorted(chosen, key=lambda group: -group["tools"]["tunecast"].get("median", -1.0)):
        ours = group["tools"]["tunecast"]
        told = [group["group"].removeprefix(kind), str(group["rows"]), str(ours["answered"])]
        told += [percent(ours.get("median")), signed(ours.get("median_signed")), percent(ours.get("p90"))]
        told += [percent(ours.get("worst")), _range(group)]
        for tool in peers:
            figures = group["tools"][tool]
            fewer = f" ({figures['answered']})" if figures["answered"] < group["rows"] else ""
            told.append(f"{percent(figures.get('median'))}{fewer}")
        lines.append(told)
    return table([*head, *(TOOLS[tool] for tool in peers)], lines)


def _range(group: Row) -> str:
    if "range_holds" not in group:
        return ""
    return f"{group['range_holds']:.0%} at ±{group['range_half_width']:.0%}"


def rows_table(made: Row) -> list[str]:
    """Every row that is answered, worst first, signed."""
    head = ["run", "what", "measured, s", "predicted, s", "error", "6ND", "llm-analysis", "bound by"]
    lines = []
    for row in worst_first(made["rows"]):
        said, error = row["said"]["tunecast"], row["error"]
        lines.append(
            [
                row["id"] + ("*" if row.get("doubts") else ""),
                row["about"],
                f"{row['measured_s']:.4g}",
                f"{said['step_s']:.4g}",
                signed(error["tunecast"]),
                signed(error.get("6ND")),
                signed(error.get("llm-analysis")),
                str(said.get("bound_by", "")),
            ]
        )
    return table(head, lines) if lines else ["None was answered.", ""]


def refused_lines(made: Row) -> list[str]:
    if not made["refused"]:
        return ["None was refused.", ""]
    return [*(f"- {one['rows']} of {one['stack']}: {one['reason']}" for one in made["refused"]), ""]


def h200_section() -> list[str]:
    made = load("time_h200.json")
    groups = [
        [
            group["set"],
            group["kind"],
            str(group["runs"]),
            *(percent(group["error"][name]) for name in ("median", "p90", "worst")),
            *(percent(group["left_out_error"][name]) for name in ("median", "p90", "worst")),
        ]
        for group in made["groups"]
    ]
    rows = [
        [
            row["id"],
            row["kind"],
            f"{row['measured_s']:.4g}",
            f"{row['predicted_s']:.4g}",
            signed(row["error"]),
            signed(row["left_out_error"]),
            row["bound_by"],
        ]
        for row in sorted(made["rows"], key=lambda row: -abs(row["left_out_error"]))
    ]
    head = ["set", "kind", "runs", "median", "p90", "worst", "left out: median", "p90", "worst"]
    return [
        "## Steps timed on an H200",
        "",
        f"{len(made['rows'])} runs, commit `{made['commit']}`; to repeat: `python benchmarks/time_h200.py`. Five "
        "scales (products, attention, moving, lists of tensors, the host) are estimated from them; left out, without "
        "the runs of the same model. Mixed lengths are apart: the first step of a length takes longer than the next.",
        "",
        *table(head, groups),
        "Every run, worst first:",
        "",
        *table(["run", "kind", "measured, s", "predicted, s", "error", "left out", "bound by"], rows),
    ]


def whole_section() -> list[str]:
    """Whole programs, each predicted before it ran."""
    head = ["round", "program", "steps", "measured, s", "predicted, s", "error", "80 % range, s", "held", "start, s"]
    return [
        "## Whole programs",
        "",
        "Programs of transformers' Trainer with varying lengths on an H200, from their start to their end, predicted "
        "first; each round on another machine, predicted with what the earlier ones showed. Start is what imports "
        "took. Without a calibration of the machine:",
        "",
        *table(head, whole_rows(calibrated=False)),
        "With what `tunecast calibrate` had measured on the machine just before (from the third round on; "
        "`benchmarks/data/whole_calibrations.jsonl`):",
        "",
        *table(head, whole_rows(calibrated=True)),
        "Missing in round 3 and predicted since: checkpointing's recomputation plans attention once more in a thread "
        "of its own, and the Trainer walks over all modules around every step. Known of the rest: starting differs by "
        "4 s between programs on one machine, and round 4 was predicted with the faster of two starts (since then with "
        "their mean). Not known: why QLoRA's steps with checkpointing, where they wait for the host, take a fifth "
        "longer than predicted, and why each machine's first program (float32 weights both times) trained 3 s longer. "
        "To repeat: `python benchmarks/whole_jobs.py`.",
        "",
    ]


def whole_rows(*, calibrated: bool) -> list[list[str]]:
    lines = []
    for row, told, known in whole_runs():
        if known is not calibrated:
            continue
        took, (low, high) = row["process_s"], told["total_range_s"]
        held = "yes" if low <= took <= high else "**no**"
        error = signed(told["total_s"] / took - 1)
        figures = [f"{took:.1f}", f"{told['total_s']:.1f}", error, f"{low:.0f} to {high:.0f}", held]
        lines.append([str(row["round"]), row["id"], str(row["steps"]), *figures, f"{row['phases_s']['start']:.1f}"])
    return lines


def public_section() -> list[str]:
    made = load("time_public.json")
    return [
        "## Published step times",
        "",
        f"{len(made['rows'])} runs of `benchmarks/data/public_runs.jsonl`, commit `{made['commit']}`; to repeat: "
        "`python benchmarks/time_public.py --peers ENV/bin/python`. Medians are of sizes of errors; a peer that "
        "answers fewer rows has their count in brackets. The rule of thumb takes 6 operations a parameter and token (4 "
        f"with adapters) at 40 % of the dense peak; fitted, at {percent(made['mfu_fitted'])} of it, the best there is "
        "for all rows together. What tunecast estimates from published steps is told left out below. Rows of something "
        "else than what is predicted (`benchmarks/data/runs.md`) are groups of their own. A card is timed where fifty "
        "of its steps or more were published, or it is the H200.",
        "",
        *picture(made, "time.svg", "Step times of published runs, predicted against measured"),
        *by_group(made, ""),
        *by_group(made, "stack: "),
        *by_group(made, "gpu: "),
        *by_group(made, "precision: "),
        "Refused:",
        "",
        *refused_lines(made),
    ]


def vendor_section() -> list[str]:
    made = load("time_vendor.json")
    cards = made["order"]["cards"]
    agrees = {None: "not known: a card is refused", True: "the same", False: "**not the same**"}
    lines = [
        [name, str(card["rows"]), f"{card['measured_s']:.3f}", _seconds(card["predicted_s"])]
        for name in ORDERED
        if (card := cards.get(name)) is not None
    ]
    return [
        "## Vendors' step times",
        "",
        f"{len(made['rows'])} speeds of `benchmarks/data/vendor_runs.jsonl`, commit `{made['commit']}`; to repeat: "
        "`python benchmarks/time_vendor.py --peers ENV/bin/python`. What became no job is in `vendor_skipped.jsonl`, "
        "with the reason.",
        "",
        *picture(made, "time_vendor.svg", "Step times vendors published, predicted against measured"),
        *by_group(made, ""),
        *by_group(made, "stack: "),
        *by_group(made, "gpu: "),
        *by_group(made, "precision: "),
        "MLPerf's llama2_70b_lora on 8 cards in float8, median step; the order of cards by prediction is "
        f"{agrees[made['order']['agrees']]}:",
        "",
        *table(["card", "rows", "measured, s", "predicted, s"], lines),
        "Refused:",
        "",
        *refused_lines(made),
    ]


def _seconds(value: float | None) -> str:
    return "refused" if value is None else f"{value:.3f}"


def left_out_section() -> list[str]:
    """What was estimated from published runs, without each card, each model and each source."""
    made = load("time_left_out.json")
    lines = []
    for kind in ("cards", "models", "sources"):
        for one in sorted(made[kind], key=lambda one: -one["left out"]["median"]):
            as_is, out = one["as it is"], one["left out"]
            figures = [percent(as_is["median"]), percent(out["median"]), signed(out["median_signed"])]
            lines.append([one["part"], str(one["rows"]), *figures, percent(out["p90"])])
    return [
        "## Left out",
        "",
        "How much of the best product a generation of cards sustains, and what float8 and float4 reach of it "
        "(`prediction/price/rates.py`), are estimated from published steps and those of one H200. Here they are "
        f"estimated anew without the card, the model or the source whose runs are then predicted; {made['rows']} runs, "
        "`python benchmarks/time_left_out.py`.",
        "",
        *table(["left out", "runs", "median as it is", "median left out", "signed", "p90"], lines),
    ]


def sharded_section() -> list[str]:
    made = load("sharded_memory.json")
    head = ["run", "kind", "what", "measured, GiB", "predicted, GiB", "error"]
    lines = []
    for row in worst_first(made["rows"]):
        said = row["measured_bytes"] * (1 + row["error"]["tunecast"])
        sizes = [f"{row['measured_bytes'] / GIB:.2f}", f"{said / GIB:.2f}", signed(row["error"]["tunecast"])]
        lines.append([row["id"] + ("*" if row.get("doubts") else ""), row["kind"], row["about"], *sizes])
    return [
        "## Memory of sharded runs",
        "",
        f"{len(made['rows'])} runs on several cards, commit `{made['commit']}`; to repeat: "
        "`python benchmarks/sharded_memory.py`. Worst first.",
        "",
        *(table(head, lines) if lines else ["None was answered.", ""]),
        "Refused:",
        "",
        *refused_lines(made),
    ]


def points(made: Row) -> list[Point]:
    return [
        Point(
            f"{row['id']} {row['about']}", row["stack"], row["measured_s"], row["said"]["tunecast"]["step_s"], SECONDS
        )
        for row in made["rows"]
        if "tunecast" in row["error"]
    ]


def picture(made: Row, name: str, title: str) -> list[str]:
    return [f"![{title}](img/{name})", "", POINTERS, ""] if points(made) else []


def page() -> str:
    lines = [
        "# Accuracy: time, and memory on many cards",
        "",
        *summary(),
        "Steps are predicted without a GPU, and compared with what was measured on one H200 and with what others "
        "published of theirs. A run with a * leaves something open that had to be taken; `benchmarks/data/runs.md` "
        "says where that is told. [Memory on one card has a page of its own](accuracy.md).",
        "",
        "Generated by `python benchmarks/report_time.py` from `benchmarks/results`; do not edit.",
        "",
        "## Promises",
        "",
        *table(["promise", "measured", ""], promise_rows([*promises(), *_memory_promises()])),
        *as_appendix(
            [
                *h200_section(),
                *whole_section(),
                *public_section(),
                *vendor_section(),
                *left_out_section(),
                *sharded_section(),
                "## Every published run, worst first",
                "",
                *rows_table(load("time_public.json")),
                "## Every vendor's run, worst first",
                "",
                *rows_table(load("time_vendor.json")),
            ]
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _memory_promises() -> list[tuple[str, str, bool]]:
    told = sharded_memory.promises(load("sharded_memory.json")["groups"])
    return [(f"sharded memory, {promise}", measured, kept) for promise, measured, kept in told]


def written() -> dict[Path, str]:
    """Every file this program writes, and what into it."""
    made = {DOCS / "accuracy_time.md": page()}
    for result, name, title in (
        ("time_public.json", "time.svg", "Step times of published runs"),
        ("time_vendor.json", "time_vendor.svg", "Step times vendors published"),
    ):
        if found := points(load(result)):
            made[DOCS / "img" / name] = scatter_svg(found, title, band=0.1)
    return made


def main() -> None:
    (DOCS / "img").mkdir(exist_ok=True)
    for path, content in written().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
