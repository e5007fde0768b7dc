"""Measured runs for the terminal: the fleet at a glance, one run in full, what was imported and published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import printable
from tunecast.records import NamedTuple
from tunecast.report.draw.text import DEFAULT, Terminal, facts, headed, wrapped
from tunecast.report.run.time import duration
from tunecast.units import gib, percent

STYLES = {"done": "good", "oom": "bad", "failed": "bad", "killed": "bad", "stopped": "warn", "running": "bar"}
ID_DIGITS = 8
"""Of an id in a list: `runs show` takes as many."""
MOST_POINTS = 2_000
"""Of a plot: more are a blot. The newest."""
FEWEST_IN_TEN = 10
"""Runs of which 8 in 10 are told: of fewer the p10 and p90 are the ends, or next to them."""
NOTHING = "No runs are stored yet"
HOW = "a measured training, or tunecast runs import FILE, adds some"


class RatioSpread(NamedTuple):
    """Of measured over predicted: of how many runs, and p10, p50 and p90."""

    runs: int
    low: float
    median: float
    high: float


class RunsShown(NamedTuple):
    """What a list of runs is drawn from: rows as `runs list --json` has them, the newest first."""

    place: str
    rows: Sequence[Mapping[str, Any]]
    states: Mapping[str, int]
    memory: RatioSpread | None
    time: RatioSpread | None
    waiting: int = 0
    filtered: bool = False
    """Whether it is of some runs only."""

    @property
    def total(self) -> int:
        return sum(self.states.values())


def runs_text(shown: RunsShown, terminal: Terminal = DEFAULT) -> str:
    if not shown.total:
        waits = _waiting(shown.waiting)
        return "\n".join([nothing(shown), *waits, ""])
    head = [terminal.paint(headline(shown), "bold"), *wrapped(spread_sentences(shown), "  ", terminal)]
    rows: list[tuple[str, ...]] = [("began (UTC)", "state", "card", "model", "method", "memory", "", "step", "", "id")]
    rows += [_row(each) for each in shown.rows]
    table = headed(rows, terminal, (0, 1, 2, 3, 4, 9))
    more = shown.total - len(shown.rows)
    foot = [f"and {more:,} more: --limit N, --since 30d, --gpu, --model, --method, --state"] if more > 0 else []
    return terminal.plain("\n".join([*head, "", *table, *foot, *_waiting(shown.waiting), ""]))


def nothing(shown: RunsShown) -> str:
    place = printable(shown.place)
    return f"No run in {place} is of what was asked for." if shown.filtered else f"{NOTHING} in {place}: {HOW}."


def headline(shown: RunsShown) -> str:
    """`1,204 runs: 1,150 done, 54 oom`."""
    return f"{runs_words(shown.total)}: {', '.join(f'{count:,} {state}' for state, count in shown.states.items())}"


def spread_sentences(shown: RunsShown) -> list[str]:
    return [
        f"{what} measured against predicted: {_spread_words(spread)}"
        for what, spread in (("memory", shown.memory), ("time", shown.time))
        if spread is not None
    ]


def _spread_words(spread: RatioSpread) -> str:
    if spread.runs == 1:
        return f"{_signed(spread.median)} (1 run)"
    held = "in 8 of 10 runs" if spread.runs >= FEWEST_IN_TEN else "in most runs"
    ends = f"{_signed(spread.low)} to {_signed(spread.high)}"
    return f"{ends} {held}, median {_signed(spread.median)} ({spread.runs:,} runs)"


def _waiting(count: int) -> list[str]:
    word = "record waits" if count == 1 else "records wait"
    return [f"{count:,} {word} on this machine until the server takes them"] if count else []


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    memory, step_s = run["memory_bytes"], run["step_s"]
    return (
        run["began"][:16].replace("T", " "),
        run["state"],
        cards_words(run),
        run["model"] or "",
        run["method"] or "",
        "" if memory is None else gib(memory),
        "" if run["memory_ratio"] is None else _signed(run["memory_ratio"]),
        "" if step_s is None else duration(step_s),
        "" if run["time_ratio"] is None else _signed(run["time_ratio"]),
        run["id"][:ID_DIGITS],
    )


def cards_words(run: Mapping[str, Any]) -> str:
    """`8 x h100-sxm-80gb`, of several machines `2 x 8 x h100-sxm-80gb`."""
    if run["gpu"] is None:
        return ""
    counts = [count for count in (run["nodes"], run["gpus"]) if count and count > 1]
    return " x ".join([*map(str, counts or [run["gpus"] or 1]), run["gpu"]])


def _signed(ratio: float) -> str:
    """Of measured over predicted: `+4.1 %`."""
    text = percent(ratio - 1, 1)
    return text if text.startswith("-") else f"+{text}"


def run_text(run: Mapping[str, Any], terminal: Terminal = DEFAULT, *, as_planned: bool = True) -> str:
    """All that was recorded of one. `as_planned`: on the card that it was predicted for."""
    job, hardware = run["job"] or {}, run["hardware"] or {}
    memory, time, predicted = run["memory"] or {}, run["time"] or {}, run["predicted"] or {}
    used, tokens = run["utilization"] or {}, run["tokens"] or {}
    throttled = used.get("throttled_fraction")
    rows = [
        ("measured by", run["source"]),
        ("began", run["began"]),
        ("ended", run["ended"] or ""),
        ("job", _job_words(job, run["model_shape"])),
        ("card", _hardware_words(hardware)),
        ("host", _host_words(hardware)),
        ("software", ", ".join(f"{name} {release}" for name, release in (run["software"] or {}).items())),
        ("predicted for", "" if as_planned or not predicted else "another card, so the two say nothing of each other"),
        *((f"memory, {name}", _against(memory, predicted, f"{name}_bytes", gib, as_planned)) for name in MEMORY),
        ("fragmentation", _fragmentation_words(memory)),
        ("memory by phase", _by_phase(memory.get("by_phase_bytes"), gib)),
        ("steps", "" if time.get("steps") is None else f"{time['steps']:,}"),
        ("time per step", _against(time, predicted, "step_s", duration, as_planned)),
        ("steps, 8 of 10", _between(time.get("step_quantiles_s"))),
        ("first step", "" if time.get("first_step_s") is None else duration(time["first_step_s"])),
        ("whole run", _against(time, predicted, "total_s", duration, as_planned)),
        ("time by phase", _by_phase(time.get("phases_s"), duration)),
        ("tokens", _tokens_words(tokens)),
        ("card busy", "" if used.get("gpu_busy_fraction") is None else percent(used["gpu_busy_fraction"])),
        ("clock lowered", f"{percent(throttled)} of the time" if throttled else ""),
        ("bound by", used.get("bound_by") or ""),
        ("energy", _energy_words(run["energy_j"], used.get("power_w"))),
        ("loss", _loss_words(run["loss"])),
        ("note", run["note"] or ""),
    ]
    style = STYLES.get(run["state"], "bold")
    title = f"{run['id']}: {terminal.paint(run['state'], style)}"
    told = facts(title, ((name, printable(text)) for name, text in rows), terminal)
    return terminal.plain("\n".join([*told, ""]))


MEMORY = ("allocated", "reserved", "device")


def _job_words(job: Mapping[str, Any], shape: Mapping[str, Any] | None) -> str:
    if not job and not shape:
        return ""
    model = job.get("model") or f"a folder ({(shape or {}).get('model_type', 'not said')})"
    words = [model, job.get("method"), job.get("stack")]
    words += [f"{job[name]:,} {what}" for name, what in (("micro_batch", "rows"), ("seq_len", "tokens")) if name in job]
    return ", ".join(str(word) for word in words if word)


def _hardware_words(hardware: Mapping[str, Any]) -> str:
    if not hardware:
        return ""
    name = hardware.get("gpu") or hardware.get("device") or ""
    count = (hardware.get("gpus") or 1) * (hardware.get("nodes") or 1)
    driver = f", driver {hardware['driver']}" if hardware.get("driver") else ""
    return f"{count} x {name}{driver}" if name else ""


def _host_words(hardware: Mapping[str, Any]) -> str:
    """`AMD EPYC 9654, 16 cores, 128.00 GiB`."""
    cores, ram_bytes = hardware.get("cpu_cores"), hardware.get("ram_bytes")
    beside = [f"{cores:,} cores" if cores else "", f"{gib(ram_bytes)} of RAM" if ram_bytes else ""]
    return ", ".join(filter(None, [hardware.get("cpu"), *beside]))


def _fragmentation_words(memory: Mapping[str, Any]) -> str:
    """Reserved and not in use where the cache was the fullest; how often it had to be emptied."""
    nbytes, retries = memory.get("fragmentation_bytes"), memory.get("retries")
    emptied = f"the cache was emptied {retries:,} times to go on" if retries else ""
    return ", ".join(filter(None, ["" if nbytes is None else gib(nbytes), emptied]))


def _between(quantiles: Sequence[float] | None) -> str:
    return f"{duration(quantiles[0])} to {duration(quantiles[2])}" if quantiles else ""


def _tokens_words(tokens: Mapping[str, Any]) -> str:
    """`2,344, and 728 of padding (24 %)`."""
    trained, padding = tokens.get("trained"), tokens.get("padding")
    if trained is None:
        return ""
    share = f", and {padding:,} of padding ({percent(padding / (trained + padding))})" if padding else ""
    return f"{trained:,}{share}"


def _energy_words(energy_j: float | None, power_w: float | None) -> str:
    energy = "" if energy_j is None else f"{energy_j / 3.6e6:.3g} kWh"
    return ", ".join(filter(None, [energy, "" if power_w is None else f"{power_w:,.0f} W"]))


def _against(measured: Mapping[str, Any], predicted: Mapping[str, Any], name: str, words: Any, as_planned: bool) -> str:
    """`18.41 GiB; predicted 18.30 GiB (+0.6 %)`."""
    one, other = measured.get(name), predicted.get(name)
    told = [] if one is None else [words(one)]
    if other is not None:
        off = f" ({_signed(one / other)})" if one and other and as_planned else ""
        told.append(f"predicted {words(other)}{off}")
    return "; ".join(told)


def _by_phase(phases: Mapping[str, Any] | None, words: Any) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {words(value)}" for name, value in (phases or {}).items())


def _loss_words(points: Sequence[Sequence[float]] | None) -> str:
    if not points:
        return ""
    (first, begin), (last, end) = points[0], points[-1]
    return f"{begin:.4g} at step {int(first):,}, {end:.4g} at step {int(last):,}"


def runs_words(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"


def imported_text(told: Mapping[str, Any], file: str) -> str:
    known = told["runs"] - told["added"]
    lines = [f"{printable(file)}: {runs_words(told['runs'])}, {told['added']:,} of them new, {known:,} known already"]
    if told["bad_lines"]:
        what = "line is no run, and was" if told["bad_lines"] == 1 else "lines are no runs, and were"
        lines.append(f"{told['bad_lines']:,} {what} left out:")
        lines += [f"  line {each['line']:,}: {each['reason']}" for each in told["bad"]]
        more = told["bad_lines"] - len(told["bad"])
        lines += [f"  and {more:,} more"] if more else []
    if told["unknown_keys"]:
        lines.append(f"keys that are not known were left out: {', '.join(told['unknown_keys'])}")
    return "\n".join([*map(printable, lines), ""])


def published_text(told: Mapping[str, Any]) -> str:
    """What is in the file, or would be."""
    verb = f"written to {told['file']}" if told["file"] else "to be published: --out FILE writes them"
    lines = [f"{runs_words(told['runs'])} {verb}"]
    if told["runs"]:
        lines.append(f"  began {told['first_day']} to {told['last_day']}")
        for name in ("states", "gpus", "models", "methods"):
            counts = ", ".join(f"{each} {count:,}" for each, count in told[name].items())
            lines.append(f"  {name}: {counts}")
        lines.append(f"  left out: {told['left_out']}")
    if told["refused"]:
        lines.append(f"{runs_words(len(told['refused']))} not published:")
        lines += [f"  {each['id'][:ID_DIGITS]}: {each['reason']}" for each in told["refused"][:10]]
    lines.append("Nothing was sent anywhere.")
    return "\n".join([*map(printable, lines), ""])
