"""Two jobs side by side, for the terminal and for programs."""

from __future__ import annotations

from typing import Any

from tunecast.predict.compare import MEASURES, Comparison, Difference, Step, measure
from tunecast.predict.prediction import Predicted
from tunecast.report.columns import columns, signed
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal, words
from tunecast.units import gib

SCHEMA = "tunecast.compare/1"
LONGEST_VALUE = 40
_ROWS = {
    "allocated_bytes": "peak allocated",
    "reserved_bytes": "reserved by PyTorch",
    "device_bytes": "on the card",
    "smallest_capacity_bytes": "least capacity",
}


def compare_dict(found: Comparison) -> dict[str, Any]:
    """The two predictions as the contract has them, and the steps between."""
    return {
        "schema": SCHEMA,
        "before": found.before.prediction.to_dict(),
        "after": found.after.prediction.to_dict(),
        "difference_bytes": _difference(found),
        "steps": [
            {
                "fields": [
                    {"field": each.field, "before": _plain(each.before), "after": _plain(each.after)}
                    for each in step.differences
                ],
                "costs_bytes": dict(step.costs_bytes),
                "breakdown_bytes": dict(step.breakdown_bytes),
                "fits": step.fits,
            }
            for step in found.steps
        ],
    }


def compare_text(found: Comparison, names: tuple[str, str], terminal: Terminal = DEFAULT) -> str:
    """Totals, then a line a step with what it costs on the card, and where."""
    title = f"{shown(names[0])} → {shown(names[1])}"
    parts = [terminal.paint(title, "bold"), *_totals(found, terminal), ""]
    if found.steps:
        head = "What each difference costs on the card, one after the other"
        parts += [terminal.paint(head, "bold"), *_step_lines(found.steps, terminal)]
        parts += ["", terminal.paint("Where", "bold"), *_where(found, terminal)]
    else:
        parts.append("  the jobs do not differ")
    return terminal.plain("\n".join(parts)) + "\n"


def _totals(found: Comparison, terminal: Terminal) -> list[str]:
    rows = [("", "before", "after", "difference")]
    for name in MEASURES:
        old, new = measure(found.before.prediction, name), measure(found.after.prediction, name)
        rows.append((_ROWS[name], gib(old), gib(new), signed(new - old, gib(new - old))))
    rows.append(("", _verdict(found.before), _verdict(found.after), ""))
    lines = columns(rows)
    lines[0] = terminal.paint(lines[0], "dim")
    return lines


def _verdict(side: Predicted) -> str:
    return "fits" if side.prediction.fits else "does not fit"


def _step_lines(steps: tuple[Step, ...], terminal: Terminal) -> list[str]:
    rows = []
    for step in steps:
        cost = step.costs_bytes["device_bytes"]
        first, *more = step.differences
        fits = "" if step.fits else "does not fit"
        rows.append((signed(cost, gib(cost)), _change(first), _mostly(step), fits))
        rows += [("with", _change(each), "", "") for each in more]
    total = sum(step.costs_bytes["device_bytes"] for step in steps)
    rows.append((signed(total, gib(total)), "all together", "", ""))
    return columns(rows, left=(1, 2, 3))


def _change(difference: Difference) -> str:
    return f"{difference.field}: {_value(difference.before)} → {_value(difference.after)}"


def _mostly(step: Step) -> str:
    """The part that moved most, if any did."""
    part, nbytes = max(step.breakdown_bytes.items(), key=lambda each: abs(each[1]))
    return f"mostly {words(part)} ({signed(nbytes, gib(nbytes))})" if nbytes else ""


def _where(found: Comparison, terminal: Terminal) -> list[str]:
    """Part by part: it sums to the difference on the card."""
    old, new = found.before.prediction.memory.breakdown_bytes, found.after.prediction.memory.breakdown_bytes
    rows = [("", "before", "after", "difference")]
    for part in {**old, **new}:
        a, b = old.get(part, 0), new.get(part, 0)
        if a or b:
            rows.append((words(part), gib(a), gib(b), signed(b - a, gib(b - a))))
    lines = columns(rows)
    lines[0] = terminal.paint(lines[0], "dim")
    return lines


def _difference(found: Comparison) -> dict[str, int]:
    return {name: measure(found.after.prediction, name) - measure(found.before.prediction, name) for name in MEASURES}


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = shown(", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "[]"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
