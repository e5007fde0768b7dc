"""How long a job takes, for the terminal: a section of the report of `tunecast predict`. Pure: plain values in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tunecast.prediction.values import Energy, Time, Utilization
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import short_source, shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.units import HOUR_S, KILO, gib, percent

TITLE = "Time"
PHASES: Mapping[str, str] = {
    "provisioning": "provisioning the machine",
    "image": "pulling the image",
    "download": "downloading the model",
    "start": "starting Python",
    "load": "loading the model",
    "preparation": "preparing the data",
    "first_step": "first step's warm-up",
    "new_lengths": "planning for new lengths",
    "training": "training",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "final_save": "saving the model",
}
TASKS: Mapping[str, str] = {"generate": "generating", "score": "scoring", "train": "training"}
SHOWN_FROM_S = 0.05
TOLD_FROM = 0.05
"""Of a whole job: a phase besides training that is worth a word in the short text."""
MINUTE_S = 60
DAY_S = 24 * HOUR_S
MOST_HOURS_S = 48 * HOUR_S
"""Machines are billed by the hour: up to here hours are told, not days."""


def duration(seconds: float) -> str:
    """`0.84 s`, `42.1 s`, `3 min 20 s`, `25 h 51 min`, `3 d 4 h`: two units at most, days from two on."""
    if seconds < MINUTE_S:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for unit_s, name, part_s, part in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "min"),
        (MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s and (unit_s < DAY_S or whole > MOST_HOURS_S):
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {name} {rest} {part}" if rest else f"{whole // unit_s} {name}"
    return f"{whole} s"


def span(low_s: float, high_s: float) -> str:
    """`3.8 to 4.7 h`, `33 to 53 min`: a range in one unit, for where there is little room; days where both ends are."""
    units = ((1, "s"), (MINUTE_S, "min"), (HOUR_S, "h"))
    unit_s, name = next((u for u, after in pairwise(units) if high_s < 2 * after[0]), units[-1])
    if low_s > MOST_HOURS_S:
        unit_s, name = DAY_S, "d"
    decimals = 0 if low_s >= 10 * unit_s and round(low_s / unit_s) != round(high_s / unit_s) else 1
    return f"{low_s / unit_s:,.{decimals}f} to {high_s / unit_s:,.{decimals}f} {name}"


def time_text(
    time: Time | None,
    utilization: Utilization | None = None,
    energy: Energy | None = None,
    terminal: Terminal = DEFAULT,
    *,
    fits: bool = True,
    details: bool = False,
    hint: str = "",
    say: Callable[[str], str] = str,
) -> str:
    """Of a prediction's `time`, `utilization` and `energy`; '' where no time was computed.

    `hint`: what to give for the time of the whole job, where that is not known; `say`: sentences for whoever asked.
    """
    if time is None:
        return ""
    phases = [*_phases(time, terminal), *_lines(time, terminal)] if details else []
    told = [*_tasks(time), *([] if details else _longest_phases(time)), *_why(time, utilization)]
    if details or (energy is not None and energy.co2_kg is not None):
        told += _energy(energy)
    told += [*_missing(time), *([hint] if hint and time.total_s is None else [])]
    lines = [*columns(figure_rows(time), left=(0, 2)), *phases]
    title = TITLE if fits else f"{TITLE}, if it had the memory"
    return terminal.plain("\n".join([terminal.paint(title, "bold"), *lines, *wrapped(map(say, told), "  ", terminal)]))


def sentences(time: Time, utilization: Utilization | None, energy: Energy | None) -> list[str]:
    """All that is said beside the figures."""
    return [*_tasks(time), *_why(time, utilization), *host_words(utilization), *_energy(energy), *_missing(time)]


def _tasks(time: Time) -> list[str]:
    """What of a step is generating completions, scoring them, and training on them."""
    told = [f"{TASKS.get(name, name)} {duration(spent)}" for name, spent in (time.task_s or {}).items() if spent]
    return [f"of a step: {', '.join(told)}"] if told else []


def _why(time: Time, utilization: Utilization | None) -> list[str]:
    """What bounds the step, how well the card is used, and what follows from it."""
    bound, *rest = [*time.why] or [""]
    return [*filter(None, [bound]), *_utilised(utilization), *rest]


def figure_rows(time: Time) -> list[tuple[str, str, str]]:
    """(name, figure, what goes with it)."""
    rows = [("per step", duration(time.step_s), _between(time.low_s, time.high_s))]
    if (tokens_per_s := time.tokens_per_s) is not None:
        each = time.tokens_per_s_per_gpu
        per_card = f"{each:,.0f} per GPU" if each is not None and round(each) != round(tokens_per_s) else ""
        rows.append(("tokens/s", f"{tokens_per_s:,.0f}", ", ".join(filter(None, [per_card, *_pad(time)]))))
    if time.epoch_s is not None:
        rows.append(("per epoch", duration(time.epoch_s), f"{time.epoch_steps:,} steps"))
    if time.total_s is not None:
        told = [f"{time.steps:,} steps"] if time.steps else []
        if time.total_range_s:
            told.insert(0, _between(*time.total_range_s))
        rows.append(("whole job", duration(time.total_s), "; ".join(filter(None, told))))
    return rows


def per_step(time: Time) -> str:
    """`3.52 s per step (2.71 s to 4.33 s)`."""
    return _with_range(f"{duration(time.step_s)} per step", time.low_s, time.high_s)


def whole_job(time: Time) -> list[str]:
    """`3 h 35 min in all (3 h 30 min to 3 h 51 min)`, where the amount of data is known."""
    if time.total_s is None:
        return []
    low_s, high_s = time.total_range_s or (time.total_s, time.total_s)
    return [_with_range(f"{duration(time.total_s)} in all", low_s, high_s)]


def _with_range(told: str, low_s: float, high_s: float) -> str:
    return f"{told} ({between})" if (between := _between(low_s, high_s)) else told


def _between(low_s: float, high_s: float) -> str:
    low, high = duration(low_s), duration(high_s)
    return f"{low} to {high}" if low != high else ""


def _pad(time: Time) -> list[str]:
    fraction = time.padding_fraction
    return [f"{percent(fraction)} of a batch is padding"] if fraction is not None and fraction >= 0.01 else []


def _longest_phases(time: Time) -> list[str]:
    """What takes a noticeable part of the job besides training."""
    phases = time.phases_s or {}
    total = sum(phases.values())
    long = [(name, spent) for name, spent in phases.items() if name != "training" and spent >= TOLD_FROM * total > 0]
    told = ", ".join(f"{PHASES.get(name, shown(name))} {duration(spent)}" for name, spent in long)
    return [f"of the whole job: {told}"] if told else []


def _phases(time: Time, terminal: Terminal) -> list[str]:
    phases = time.phases_s or {}
    total = sum(phases.values())
    kept = [(name, spent) for name, spent in phases.items() if spent >= SHOWN_FROM_S]
    if len(kept) < 2:
        return []
    rows: list[Sequence[str]] = [("phase", "time", "share")]
    rows += [(PHASES.get(name, shown(name)), duration(spent), percent(spent / total, 1)) for name, spent in kept]
    head, *lines = columns(rows)
    return ["", terminal.paint(head, "dim"), *lines, ""]


def line_rows(time: Time) -> list[tuple[str, str, str]]:
    """(time of the card in a step, its share, the line of code), the longest first. A line that is called from several
    places, or computed again in the backward pass, which has no caller, is one."""
    spent: dict[str, tuple[float, float]] = {}
    for each in time.lines or ():
        line = short_source(each.source)
        gpu_s, fraction = spent.get(line, (0.0, 0.0))
        spent[line] = gpu_s + each.gpu_s, fraction + each.fraction
    longest = sorted(spent.items(), key=lambda item: -item[1][0])
    return [(duration(gpu_s), percent(fraction), line) for line, (gpu_s, fraction) in longest]


def _lines(time: Time, terminal: Terminal) -> list[str]:
    rows = line_rows(time)
    if not rows:
        return []
    head, *lines = columns([("GPU time", "share", "line of code, with its backward pass"), *rows], left=(2,))
    return ["", terminal.paint(head, "dim"), *lines, ""]


def _utilised(utilization: Utilization | None) -> list[str]:
    if utilization is None:
        return []
    told = []
    mfu, hfu = utilization.mfu, utilization.hfu
    if mfu is not None:
        more = f" ({percent(hfu)} counting recomputation)" if hfu is not None and hfu - mfu >= 0.01 else ""
        told.append(f"MFU {percent(mfu, 0 if mfu >= 0.095 else 1)}{more}")
    told.append(f"GPU busy {percent(utilization.gpu_busy_fraction)} of the time")
    if utilization.memory_fraction is not None:
        told.append(f"memory bandwidth {percent(utilization.memory_fraction)} used")
    return [", ".join(told)]


def host_words(utilization: Utilization | None) -> list[str]:
    """`host needs 75.08 GiB of RAM, 2 CPU cores`, of one machine."""
    if utilization is None:
        return []
    host = utilization.host
    cores = f"{host.cpu_cores} CPU core{'s' if host.cpu_cores > 1 else ''}"
    ram = f"{gib(host.ram_bytes)} of RAM, " if host.ram_bytes is not None else ""
    drives = f", {gib(host.nvme_bytes)} of NVMe" if host.nvme_bytes else ""
    return [f"host needs {ram}{cores}{drives}"]


def _energy(energy: Energy | None) -> list[str]:
    if energy is None:
        return []
    low, high = energy.range
    unit, times = ("kWh", 1) if energy.kwh >= 0.1 else ("Wh", KILO)
    told = f"energy: {_number(times * energy.kwh)} {unit} ({_number(times * low)} to {_number(times * high)})"
    if (co2_kg := energy.co2_kg) is not None:
        mass = f"{_number(co2_kg)} kg" if co2_kg >= 0.1 else f"{_number(KILO * co2_kg)} g"
        return [f"{told}, {mass} of CO2 in {shown(energy.country or '')}"]
    return [f"{told}; hardware.country adds the CO2"]


def _missing(time: Time) -> list[str]:
    return [f"not included: {reason}" for reason in time.missing or ()]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
