"""Sections of docs/accuracy.md that need several results: plots, out of memory or not, peers, published runs, ranges.

`report.py` calls them and writes the pictures. Each reads `results/` as it is: run the benchmark that wrote a result
again, then the report.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import ranges  # noqa: E402
from figures import load, table  # noqa: E402
from plots import (  # noqa: E402
    POINTERS,
    PUBLISHED,
    Point,
    confusion,
    confusion_table,
    errors_svg,
    public_points,
    run_points,
    scatter_svg,
)
from public_figures import promises  # noqa: E402
from report_rows import lines_of  # noqa: E402
from report_tasks import tasks_section  # noqa: E402

from tunecast.prediction.memory.ranges import FLOOR_BYTES  # noqa: E402
from tunecast.units import gib  # noqa: E402

TOOLS = {"tunecast": "tunecast", "fitcheck": "fitcheck-llm", "vramcalc": "vramcalc"}
FIRST = ("generated_runs.jsonl", "closed_runs.jsonl")
Row = dict[str, Any]


def signed(value: float | None) -> str:
    return "" if value is None else "exact" if value == 0 else f"{value:+.2%}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def pictures() -> dict[str, str]:
    """The SVG files of docs/img by name."""
    peers = [
        Point(
            f"{row['id']}, {TOOLS[tool]}",
            TOOLS[tool],
            row["measured"]["device_bytes"],
            row["said"][tool]["device_bytes"],
        )
        for tool in reversed(TOOLS)
        for row in load("peers.json")["rows"]
        if tool in row["error"]
    ]
    return {
        "memory.svg": scatter_svg(all_points(), "Peak memory of training runs", band=0.05),
        "errors.svg": errors_svg(all_points(), "Signed errors of the same runs"),
        "peers.svg": scatter_svg(peers, "Device memory of the same H200 runs", band=0.1),
    }


def all_points() -> list[Point]:
    first = [
        Point(
            row["job"]["id"],
            "H200, predicted first",
            row["measured"]["peak_alloc"],
            row["predicted"]["allocated_bytes"],
        )
        for name in FIRST
        for row in lines_of(name)
        if "predicted" in row and row["measured"].get("completed")
    ]
    runs = [point._replace(series="H200, benchmark") for point in run_points(load("memory_analytic.json")["rows"])]
    published = [point._replace(series=f"{PUBLISHED}{point.series}") for point in public_points(_public()["rows"])]
    return [*runs, *first, *published]


def plot_section() -> list[str]:
    return [
        "## Predicted against measured",
        "",
        f"![The closed form's predictions of {len(all_points())} runs against what was measured](img/memory.svg)",
        "",
        "![Their signed errors](img/errors.svg)",
        "",
        "Each run in the kind of memory its source measured (allocated on the H200). *Predicted first*: committed "
        f"before it ran, half of them by tracing. {POINTERS}",
        "",
    ]


def _public() -> Row:
    return load("public_memory.json")


def calls(rows: Sequence[Row]) -> dict[str, list[tuple[bool, bool]]]:
    """Predicted to complete or not, and what happened, by how it is known.

    A bisected run stands for two: the largest capacity it failed with, and the least it completed with.
    """
    found: dict[str, list[tuple[bool, bool]]] = {
        "under a capacity": [
            (row["predicted"]["completed"], row["measured"]["completed"]) for row in rows if row["kind"] == "capped"
        ],
        "at the ends of a bisected interval": [
            (row["predicted"]["smallest_capacity_bytes"] <= row["measured"][end], end == "completes_bytes")
            for row in rows
            if row["kind"] == "bisected"
            for end in ("fails_bytes", "completes_bytes")
        ],
    }
    found["drawn from a seed, on the whole card, predicted first"] = [
        (row["predicted"]["completed"], bool(row["measured"].get("completed")))
        for name in FIRST
        for row in lines_of(name)
        if "predicted" in row
    ]
    return found


def memory_calls_section() -> list[str]:
    by_source = calls(load("memory_analytic.json")["rows"])
    every = [pair for pairs in by_source.values() for pair in pairs]
    return [
        "## Out of memory, or not",
        "",
        "What is said of runs on a card or under a capacity (`torch.cuda.set_per_process_memory_fraction`), the "
        "allocator's own free-and-retry included, and what happened: by the closed form, and of half the drawn ones by "
        "tracing. The benchmark's many runs that completed on the whole card are left out.",
        "",
        *confusion_table(confusion(every)),
        *table(
            ["of these", "runs", "called right", "said to complete, ran out", "said to run out, completed"],
            [
                [name, str(c.total), str(c.right), str(c.wrongly_completes), str(c.wrongly_stops)]
                for name, pairs in by_source.items()
                if (c := confusion(pairs))
            ],
        ),
    ]


def peers_section() -> list[str]:
    result = load("peers.json")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result["peers"].items()))
    head = ["tool", "answered", "allocated: median", "p90", "worst", "device: median", "p90", "worst"]
    rows = []
    for tool, name in TOOLS.items():
        allocated, device = (result["summary"][tool][kind] for kind in ("allocated_bytes", "device_bytes"))
        rows.append(
            [
                name,
                f"{device['answered']} of {device['rows']}",
                *(share(allocated[key]) for key in ("median", "p90", "worst")),
                *(share(device[key]) for key in ("median", "p90", "worst")),
            ]
        )
    return [
        "## Beside other tools",
        "",
        f"The same rows, asked in the same run (`python benchmarks/peers.py`, commit `{result['commit']}`): "
        f"{versions}. They get the true parameter count and the options nearest to the job; what they have no option "
        "for counts as not answered. Absolute errors, on the completed H200 runs:",
        "",
        *table(head, rows),
        "![Device memory of the same runs by three tools](img/peers.svg)",
        "",
    ]


def public_section() -> list[str]:
    result = _public()
    kept = {promise.partition(":")[0]: ok for promise, _, ok in promises(result["groups"])}
    head = ["stack, memory", "rows", "answered", "median", "signed", "worst", "", "fitcheck-llm", "vramcalc"]
    groups = []
    for group in result["groups"]:
        name = f"{group['stack']}, {group['kind']}"
        ours = group["tools"]["tunecast"]
        others = [group["tools"].get(tool) for tool in ("fitcheck", "vramcalc")]
        groups.append(
            [
                name,
                str(group["rows"]),
                f"{ours['answered_fraction']:.0%}",
                share(ours.get("median")),
                signed(ours.get("median_signed")),
                share(ours.get("worst")),
                {True: "kept", False: "**missed**", None: ""}[kept.get(name)],
                *(f"{t['answered']}, {share(t['median'])}" if t and t["answered"] else "none" for t in others),
            ]
        )
    answered = sorted((row for row in result["rows"] if "tunecast" in row["error"]), key=_worst_first)
    refused = [row for row in result["rows"] if "tunecast" not in row["error"]]
    return [
        "## Published runs",
        "",
        f"{len(result['rows'])} runs on one GPU whose peak memory others published, by the stack that ran them and the "
        "kind of memory they measured (`benchmarks/data/public_memory.md`: where from, what ran, what is in doubt). "
        "Promised of each group: 90 % answered, median within 4 %. nvidia-smi's figures, where a source has them "
        "beside its own, are the device groups. Of the peers: how many rows they answer, and their median. Commit "
        f"`{result['commit']}`; to repeat: `python benchmarks/public.py --peers ENV/bin/python`.",
        "",
        *table(head, groups),
        *([_refusals(refused), ""] if refused else []),
        *(_public_rows(answered) if answered else []),
    ]


def _worst_first(row: Row) -> float:
    return -abs(float(row["error"]["tunecast"]))


def _refusals(rows: Sequence[Row]) -> str:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(row["said"]["tunecast"]["refused"].splitlines()[0].partition(";")[0], []).append(row["id"])
    reasons = "; ".join(f"{len(ids)}: {reason}" for reason, ids in sorted(by_reason.items(), key=lambda e: -len(e[1])))
    return f"Not answered, {len(rows)} rows. {reasons}."


def _public_rows(rows: Sequence[Row]) -> list[str]:
    head = ["run", "what", "memory", "GiB", "tunecast", "device", "fitcheck-llm", "vramcalc", ""]
    return [
        "Every row that is answered, worst first; errors are signed.",
        "",
        *table(
            head,
            [
                [
                    row["id"],
                    row["about"],
                    row["kind"],
                    f"{row['measured_bytes'] / 2**30:.2f}",
                    signed(row["error"]["tunecast"]),
                    signed(row.get("device_error", {}).get("tunecast")),
                    signed(row["error"].get("fitcheck")),
                    signed(row["error"].get("vramcalc")),
                    "; ".join([*row.get("doubts", []), *([row["variant"]] if "variant" in row else [])]),
                ]
                for row in rows
            ],
        ),
    ]


def ranges_section() -> list[str]:
    found = ranges.residuals()
    made = ranges.bands(found)
    block, segment = gib(FLOOR_BYTES["allocated"]), gib(FLOOR_BYTES["reserved"])
    widths = ", ".join(f"{kind} {width:.3%}" for kind, width in ranges.median_half_widths(found, made).items())
    rows = []
    for (name, kind), band in made.items():
        floor = gib(FLOOR_BYTES[kind])
        below, above = (floor if end == 0 else f"{end:.2%}" for end in (band.below, band.above))
        inside = (
            "assumed: too few"
            if band.runs < 4
            else "other models too few"
            if band.covered is None
            else share(band.covered)
        )
        rows.append([name, kind, str(band.runs), str(band.models), f"-{below}, +{above}", inside])
    return [
        "## Ranges",
        "",
        "`range_bytes` is an 80 % range, made of the residuals of measured runs (`benchmarks/ranges.py`): those "
        "predicted first with that first prediction, and a model's runs judged by a range made of all other models'. "
        f"No range is narrower than a block ({block}) or a segment ({segment}) of the allocator to either side. Median "
        f"half-width over all {len({r.run for r in found})} runs: {widths}.",
        "",
        *table(["predictions", "memory", "runs", "models", "range", "inside, leaving out a model"], rows),
        "*Measured card*: an exact tape on the H200. *Elsewhere*: on any other card. *Guessed*: something on the tape "
        "is an estimate; such a range is at least this wide. A stack that others measured has a range of its own. On a "
        "card nobody measured the device's range is that of reserved and of the contexts known of other cards. TRL's "
        "device is wide: most of those runs without a fused loss hold more than is predicted, some by up to a fifth, a "
        "few hold less, and why is not known.",
        "",
        *unknown_paragraph(),
        *edge_section(),
        *tasks_section(),
    ]


def edge_section() -> list[str]:
    """What results/edge.json shows."""
    found = load("edge.json")
    head = ["job", "model, its layers", "method", "allocated", "reserved", "guessed"]
    rows = [
        [
            row["id"], f"{row['model']}, {row['layers']}", row["method"],
            *([row["failed"], ""] if "failed" in row else
              [signed(row["allocated_error"]), signed(row["reserved_error"])]),
            "; ".join(row["guesses"]).partition(";")[0],
        ]
        for row in found["rows"]
    ]  # fmt: skip
    return [
        "## The newest architectures",
        "",
        f"{found['drawn']} jobs were drawn from two seeds over 19 architectures, methods and settings "
        "(`benchmarks/generate.py`; larger models with fewer layers) and predicted before any of them ran. "
        f"{found['started']} were said to fit an H200 and were started, {found['ran']} of {found['architectures']} "
        f"architectures ran. Allocated memory is to the byte in {found['allocated_to_the_byte']} of them, "
        f"{found['called_exact_to_the_byte']} of the {found['called_exact']} that were called exact. Of those the "
        f"worst is off by {found['worst_allocated_called_exact']:+.3%}: up to torch 2.11 the allocator takes the lower "
        "address where two free blocks are equally large, and the driver's addresses do not always descend as was "
        "assumed; the card's own requests and addresses, replayed, give its figures to the byte. Since torch 2.13 "
        f"addresses do not matter. The worst estimate is off by {found['worst_allocated']:+.2%}: how many columns "
        "LLM.int8 keeps in 16 bits depends on the weights, and those of the runs are random. Reserved memory is off by "
        f"{found['worst_reserved']:+.2%} at worst.",
        "",
        *table(head, rows),
    ]


def unknown_paragraph() -> list[str]:
    """What results/unknown.json shows."""
    found = load("unknown.json")
    return [
        "An architecture nobody wrote down is traced where torch and transformers are installed; else it is taken for "
        f"the nearest one. How far off that is: {found['architectures']} architectures that are known were renamed and "
        f"guessed (`benchmarks/unknown.py`, {found['jobs']} jobs). {found['refused']} jobs are refused, because their "
        "config.json speaks of layers or sizes that no other architecture has. Of the rest "
        f"{share(found['inside_the_stated_range'])} of true values lie inside the range of guesses; the median is off "
        f"by {found['median_off']:.1%}, the worst by {found['worst_off']:.1%}.",
        "",
    ]
