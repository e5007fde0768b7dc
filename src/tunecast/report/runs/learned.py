"""What was learned from runs, what it changes of a prediction, and the runs nearest to a job, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.hardware.spec import card_name
from tunecast.report.draw.columns import columns
from tunecast.report.run.time import duration
from tunecast.units import gib, percent

Told = Mapping[str, Any]
SHORT_ID = 8
"""Digits of a run's id: `tunecast runs show` takes so many."""
NOTHING = """\
nothing was learned: there are no runs with a predicted and a measured step. `tunecast watch`, the callback and
`tunecast launch` record them (docs/learning.md)
"""


def calibration_text(shown: Told) -> str:
    """Of `tunecast calibration show`."""
    told = [_card(card) for card in shown["cards"]] or [NOTHING]
    if shown["resets"]:
        told.append("\n".join(["reset:", *map(_reset, shown["resets"]), ""]))
    return "\n".join(told)


def _reset(each: Told) -> str:
    which = "--all" if each["card"] is None else f"--gpu {each['card']}"
    of = _of(each["card"])
    return f"  runs before {each['before']}{of} do not count. Taken back by: tunecast calibration reset {which} --undo"


def _of(card: str | None) -> str:
    return "" if card is None else f" on the {card_name(card)}"


def _card(card: Told) -> str:
    lines = [f"{card_name(card['gpu'])}: {_runs(card['runs'])}"]
    rows = [
        (
            group["model"] or "(a folder)", group["stack"], f"waits for the {group['waits_for']}", _runs(group["runs"]),
            _hosts(group["hosts"]), f"step {change(group['ratio'])}", f"({_range(group['range'])})",
        )
        for group in card["groups"]
    ]  # fmt: skip
    lines += columns(rows, left=(0, 1, 2, 6))
    context, start = card["context"], card["start_s"]
    if context is not None:
        ends = f"{gib(context['low_bytes'])} to {gib(context['high_bytes'])}"
        lines.append(f"  outside PyTorch {gib(context['nbytes'])} ({ends}, {_runs(context['runs'])})")
    if start is not None:
        lines.append(f"  a program's start {duration(start[0])} ({duration(start[1])} to {duration(start[2])})")
    left_out = [f"    {each['id'][:SHORT_ID]}  {each['reason']}" for each in card["left_out"]]
    if left_out:
        lines += ["  do not count:", *left_out]
    return "\n".join([*lines, ""])


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _hosts(hosts: Sequence[str]) -> str:
    return f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}"


def change(ratio: float) -> str:
    """`+4.0 %` of 1.04."""
    return f"{'-' if ratio < 1 else '+'}{percent(abs(ratio - 1), 1)}"


def _range(ends: Sequence[float]) -> str:
    return f"{change(ends[0])} to {change(ends[1])}"


def diff_text(diff: Told) -> str:
    """Of `tunecast calibration diff JOB`."""
    before = "shipped" if diff["since"] is None else f"runs before {diff['since'][:10]}"
    one, other = diff["without"], diff["learned"]
    rows: list[tuple[str, ...]] = [("", before, "learned")]
    if one["step_s"] is not None:
        rows.append(("step", *(_seconds(each["step_s"], each["step_range_s"]) for each in (one, other))))
    if one["total_s"] is not None:
        rows.append(("whole job", *(_seconds(each["total_s"], each["total_range_s"]) for each in (one, other))))
    rows.append(("device memory", *(_bytes(each) for each in (one, other))))
    rows.append(("fits", *("yes" if each["fits"] else "no" for each in (one, other))))
    runs = diff["runs"]
    head = f"{card_name(diff['gpu'])}: {_runs(runs)} of yours, step {change(diff['ratio'])}" if runs else None
    nothing = f"{card_name(diff['gpu'])}: nothing was learned of such a step"
    return "\n".join([head or nothing, *columns(rows, left=(0, 1, 2)), ""])


def _seconds(value: float, ends: Sequence[float] | None) -> str:
    around = "" if ends is None else f" ({duration(ends[0])} to {duration(ends[1])})"
    return f"{duration(value)}{around}"


def _bytes(figures: Told) -> str:
    low, high = figures["device_range_bytes"]
    return f"{gib(figures['device_bytes'])} ({gib(low)} to {gib(high)})"


def reset_text(done: Told) -> str:
    of = "of all cards" if done["gpu"] is None else f"of the {card_name(done['gpu'])}"
    if done["undone"]:
        return f"the reset of {done['before']} is taken back: runs {of} before it count again\n"
    return (
        f"runs {of} that began before {done['before']} no longer count; they stay in the store. --undo takes it back\n"
    )


def nearest_text(found: Told, *, details: bool) -> str:
    """Of `tunecast runs compare JOB`."""
    own = f", {found['own_runs']} of your store" if found["own_runs"] else ""
    lines = [found["words"]]
    if not details:
        return "\n".join([*lines, f"--details lists them{own}", ""])
    rows = [("distance", "run", "card", "", "stack", "precision", "method", "model", "tokens", "memory", "time")]
    rows += [
        (
            f"{run['distance']:.2f}", run["id"][:32] if run["origin"] == "shipped" else f"yours {run['id'][:SHORT_ID]}",
            run["gpu"], run["cards"], run["family"], run["precision"], run["method"], run["model"],
            f"{run['tokens']:,}{' recomputed' if run['gradient_checkpointing'] else ''}",
            _error(run["memory_error"]), _error(run["time_error"]),
        )
        for run in found["runs"]
    ]  # fmt: skip
    return "\n".join([*lines, *columns(rows, left=(1, 2, 3, 4, 5, 6, 7)), ""])


def _error(error: float | None) -> str:
    return "" if error is None else change(1 + error)
