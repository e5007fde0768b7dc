"""What is promised of predicted times, on the committed results: `report_time.py` and the tests read it off."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from figures import load

HERE = Path(__file__).parent

Row = dict[str, Any]
Promise = tuple[str, str, bool]
LEAST_ANSWERED = 0.9
TRANSFORMERS_LIKE, OTHERS, BY_CARD, VENDOR = 0.08, 0.12, 0.15, 0.12
RANGE_HOLDS, HALF_WIDTH, UNTIMED_HALF_WIDTH = 0.75, 0.12, 0.25
H200_MEDIAN, H200_P90, WHOLE = 0.04, 0.12, 0.10
PUBLISHED_MEDIAN, PUBLISHED_P90 = 0.04, 0.18


def promises() -> list[Promise]:
    """What is promised, what is measured, and whether it holds."""
    public, vendor = load("time_public.json"), load("time_vendor.json")
    groups = {group["group"]: group for group in public["groups"]}
    lines = [
        _h200(),
        _whole(calibrated=False),
        _whole(calibrated=True),
        _median("published, transformers-like", groups["transformers-like"], TRANSFORMERS_LIKE),
        *(_median(f"published, {_stack(name)}", group, OTHERS) for name, group in _others(groups)),
        *(_published(*each) for each in load("time_left_out.json")["published"].items()),
        *(_left_out(card) for card in load("time_left_out.json")["cards"]),
        _median("vendors'", next(group for group in vendor["groups"] if group["group"] == "all"), VENDOR),
        (
            "order of H100, H200, B200 and MI300X in MLPerf's LoRA",
            {None: "a card is refused", True: "as measured", False: "not as measured"}[vendor["order"]["agrees"]],
            vendor["order"]["agrees"] is True,
        ),
    ]
    return [*lines, *_ranges(public, "published"), *_ranges(vendor, "vendors'")]


def _h200() -> Promise:
    """All that were timed but those of mixed lengths, each predicted without its model."""
    (group,) = (
        group
        for group in load("time_h200.json")["groups"]
        if (group["set"], group["kind"]) == ("h200_runs", "all but mixed")
    )
    error = group["left_out_error"]
    measured = f"{group['runs']} runs, median {error['median']:.1%}, p90 {error['p90']:.1%}, worst {error['worst']:.1%}"
    kept = error["median"] <= H200_MEDIAN and error["p90"] <= H200_P90
    return f"H200, model left out: median within {H200_MEDIAN:.0%}, p90 within {H200_P90:.0%}", measured, kept


def whole_runs() -> list[tuple[Row, Row, bool]]:
    """Whole programs that ran, what was said of their time before, and whether with their machine's calibration."""
    runs, said = (
        [json.loads(line) for line in (HERE / "data" / f"whole_{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("runs", "predictions")
    )
    ran = {(row["round"], row["id"]): row for row in runs}
    found = [(ran.get((row["round"], row["id"])), row["time"], row.get("calibrated", False)) for row in said]
    return [(row, told, calibrated) for row, told, calibrated in found if row is not None]


def _whole(calibrated: bool) -> Promise:
    errors = sorted(
        abs(told["total_s"] / row["process_s"] - 1) for row, told, known in whole_runs() if known is calibrated
    )
    near = sum(error <= WHOLE for error in errors)
    measured = f"{near} of {len(errors)}, median {statistics.median(errors):.1%}, worst {errors[-1]:.1%}"
    how = "with the machine's calibration" if calibrated else "without a calibration"
    return f"whole Trainer programs, predicted first, {how}: within {WHOLE:.0%}", measured, near == len(errors)


def _others(groups: dict[str, Row]) -> list[tuple[str, Row]]:
    from time_public import TRANSFORMERS_LIKE as like

    return [(name, group) for name, group in groups.items() if name.startswith("stack: ") and _stack(name) not in like]


def _stack(name: str) -> str:
    return name.removeprefix("stack: ")


def _median(name: str, group: Row, most: float) -> Promise:
    ours = group["tools"]["tunecast"]
    measured = f"{ours['answered']} of {group['rows']} answered"
    if ours["answered"]:
        measured += f", median {ours['median']:.1%} ({ours['median_signed']:+.1%}), p90 {ours['p90']:.1%}"
    kept = ours["answered_fraction"] >= LEAST_ANSWERED and ours.get("median", 1.0) <= most
    return f"{name}: {LEAST_ANSWERED:.0%} answered, median within {most:.0%}", measured, kept


def _published(kind: str, figures: Row) -> Promise:
    measured = f"{figures['answered']} runs, median {figures['median']:.1%}, p90 {figures['p90']:.1%}"
    promise = f"published, {kind} left out: median within {PUBLISHED_MEDIAN:.0%}, p90 within {PUBLISHED_P90:.0%}"
    return promise, measured, figures["median"] <= PUBLISHED_MEDIAN and figures["p90"] <= PUBLISHED_P90


def _left_out(card: Row) -> Promise:
    figures = card["left out"]
    measured = f"{card['rows']} runs, median {figures['median']:.1%} ({figures['median_signed']:+.1%})"
    promise = f"{card['part']}, with nothing estimated from its own runs: median within {BY_CARD:.0%}"
    return promise, measured, figures["median"] <= BY_CARD


def _ranges(made: Row, name: str) -> list[Promise]:
    groups = {group["group"]: group for group in made["groups"]}
    if "range_holds" not in groups["all"]:
        return []
    holds = groups["all"]["range_holds"]
    told = []
    for kind, where, most in (
        ("gpu timed", "on cards others timed", HALF_WIDTH),
        ("gpu not timed", "on others", UNTIMED_HALF_WIDTH),
    ):
        if kind not in groups:
            continue
        half = groups[kind]["range_half_width"]
        promise = (
            f"{name}: the 80 % range holds for {RANGE_HOLDS:.0%}; half of it {where} within {most:.0%} of the step"
        )
        told.append((promise, f"{holds:.0%}, median half-width {half:.1%}", holds >= RANGE_HOLDS and half <= most))
    return told
