"""From records of runs to what they teach (`Learned`): which count, which do not, and why. A pure function.

A run counts for time where it has a measured and a predicted step, on a known card. Of runs that differ in nothing that
is learned (a cell: card, stack, model, host), the newest `WINDOW` count, in the order of their dates:

    refused       far from its cell's middle, or where there are too few for one, from the shipped prediction; unless
                  three in a row say the same, which is no accident any more
    superseded    from before the cell changed for good: the newest runs and those before differ by more than chance
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import expm1, isfinite, log, sqrt
from typing import Any

from tunecast.job.stacks import DEFAULT_STACK
from tunecast.learn.recordable import ran_as_planned
from tunecast.prediction.evidence import FEWEST, LOW_PRECISION, ONE, SEVERAL, SIXTEEN_BITS, family_of
from tunecast.prediction.lessons.correction import (
    PRIORS,
    Learned,
    LearnedContext,
    LeftOut,
    Observed,
    Prior,
    spread_of,
    within_variance,
)
from tunecast.prediction.on_card import BARE_CONTEXT_BYTES, MOST_CONTEXT_BYTES
from tunecast.prediction.time.ranges import CARD, HOST, UNSEEN
from tunecast.prediction.time.ranges_table import BANDS
from tunecast.units import percent

WINDOW = 20
"""Newest runs of a cell: by then what is left to learn of it is a tenth of a run's own deviation, and a card that
becomes slower is seen within as many."""
FAR = 4.0
"""Standard deviations, for a run to be refused and for a cell to have changed: of normal deviations one in 16,000 lies
beyond. Of 769 published rows, learned from as if their card were new, none is refused (benchmarks/learning.py)."""
MEDIAN_OF = 5
"""Runs for a middle of their own: of five, two odd ones do not move it out of the other three."""
TO_SD = 1.4826
"""From the median distance to the middle to the standard deviation of a normal distribution."""
MOST_RATIO = 100.0
"""A step a hundred times as long as predicted is of something else."""
Record = Mapping[str, Any]


def learn(records: Iterable[Record]) -> Learned:
    """The same of records in any order."""
    found = list(records)
    kept, left_out = split_runs(filter(None, map(observation, found)))
    contexts = {card: context for card, values in _contexts(found) if (context := _context(values)) is not None}
    starts = {card: (_median(values), values[0], values[-1]) for card, values in _starts(found)}
    return Learned(kept, left_out, contexts, starts)


def split_runs(
    runs: Iterable[Observed], prior: Prior | None = None
) -> tuple[tuple[Observed, ...], tuple[LeftOut, ...]]:
    """What counts of the runs, and what does not."""
    cells: dict[tuple[str, ...], list[Observed]] = {}
    for run in sorted({run.id: run for run in runs}.values(), key=_order):
        cells.setdefault(run.cell, []).append(run)
    kept: list[Observed] = []
    left_out: list[LeftOut] = []
    for _, of_cell in sorted(cells.items()):
        good, odd = sift(of_cell[-WINDOW:], prior)
        newest, older = latest(good, prior)
        kept += newest
        left_out += [*odd, *(LeftOut(run.id, run.card, _since(newest)) for run in older)]
    return tuple(kept), tuple(left_out)


def _order(run: Observed) -> tuple[str, str]:
    return run.began, run.id


def observation(record: Record) -> Observed | None:
    """None where it says nothing of a step's time."""
    card, job, said = _card(record), record.get("job"), record.get("predicted")
    if record.get("state") not in ("done", "stopped") or card is None or not said:
        return None
    if not ran_as_planned(record.get("job") or {}, record.get("hardware") or {}):
        return None
    step_s, measured_s = said.get("step_s"), (record.get("time") or {}).get("step_s")
    if not step_s or not measured_s or not 1 / MOST_RATIO < measured_s / step_s < MOST_RATIO:
        return None
    step_s /= said.get("learned") or 1.0
    job = job or {}
    spread = spread_of(said.get("low_s") or 0.0, said["step_s"], said.get("high_s") or 0.0)
    return Observed(
        id=str(record.get("id")),
        began=str(record.get("began") or ""),
        card=card,
        waits=_waits(record),
        stack=stack_of_record(record),
        model=str(job.get("model") or ""),
        host=str(record["hardware"].get("host") or ""),
        log_ratio=log(measured_s / step_s),
        spread=spread or _unseen_spread(),
    )


def stack_of_record(record: Record) -> str:
    job, hardware = record.get("job") or {}, record.get("hardware") or {}
    several = (hardware.get("gpus") or 1) * (hardware.get("nodes") or 1) > 1
    precision = LOW_PRECISION if job.get("matmul_dtype") else SIXTEEN_BITS
    family = family_of(job.get("stack") or (DEFAULT_STACK if job else "script"))
    return f"{family}, {precision}, {SEVERAL if several else ONE}"


def _card(record: Record) -> str | None:
    name = (record.get("hardware") or {}).get("gpu")
    return str(name) if name else None


def _waits(record: Record) -> str:
    used = record.get("utilization") or {}
    return HOST if used.get("bound_by") == "host" else CARD


def _unseen_spread() -> float:
    """Of a prediction without a range: that of steps nobody timed."""
    below, above = BANDS[UNSEEN][:2]
    return spread_of(1 - below, 1.0, 1 + above)


def sift(runs: Sequence[Observed], prior: Prior | None = None) -> tuple[list[Observed], list[LeftOut]]:
    """Of a cell, oldest first: what counts, and what is refused, by name."""
    prior = PRIORS[runs[0].waits] if prior is None else prior
    values = [run.log_ratio for run in runs]
    enough = len(values) >= MEDIAN_OF
    middle = _median(sorted(values)) if enough else 0.0
    own = TO_SD * _median(sorted(abs(value - middle) for value in values)) if enough else 0.0
    far = []
    for run in runs:
        expected = run.spread * (sqrt(prior.within) if enough else 1.0)
        far.append(abs(run.log_ratio - middle) > FAR * max(own, expected))
    good, odd = [], []
    for index, run in enumerate(runs):
        if far[index] and not _in_a_row(runs, far, index):
            odd.append(LeftOut(run.id, run.card, _how_far(run, middle, enough)))
        else:
            good.append(run)
    return good, odd


def _in_a_row(runs: Sequence[Observed], far: Sequence[bool], index: int) -> bool:
    """Whether it is one of three in a row that are all far, and near each other."""
    for first in range(max(0, index - FEWEST + 1), min(index, len(runs) - FEWEST) + 1):
        values = [run.log_ratio for run in runs[first : first + FEWEST]]
        if all(far[first : first + FEWEST]) and max(values) - min(values) <= FAR * runs[index].spread:
            return True
    return False


def _how_far(run: Observed, middle: float, enough: bool) -> str:
    off = _signed(run.log_ratio - middle)
    return f"its step is {off} off {'the other runs like it' if enough else 'the prediction, and it is alone in that'}"


def _signed(log_ratio: float) -> str:
    off = expm1(log_ratio)
    return f"{'+' if off >= 0 else '-'}{percent(abs(off))}"


def latest(runs: Sequence[Observed], prior: Prior | None = None) -> tuple[list[Observed], list[Observed]]:
    """The newest runs of a cell, oldest first, and those from before it changed.

    Of all splits the one whose sides differ most, in standard deviations of that difference; at least three on the new
    side. The deviation is the sides' own: with a change inside, the whole cell's would hide it.
    """
    best, at = FAR, 0
    if runs and prior is None:
        prior = PRIORS[runs[0].waits]
    for split in range(1, len(runs) - FEWEST + 1):
        older, newer = runs[:split], runs[split:]
        assert prior is not None
        expected = prior.within * max(run.spread for run in runs) ** 2
        sides = [run._replace(host=side) for side, part in (("old", older), ("new", newer)) for run in part]
        deviation = sqrt(within_variance(sides, expected, prior.freedom) * (1 / len(older) + 1 / len(newer)))
        distance = abs(_mean(newer) - _mean(older)) / deviation
        if distance > best:
            best, at = distance, split
    return list(runs[at:]), list(runs[:at])


def _mean(runs: Sequence[Observed]) -> float:
    return sum(run.log_ratio for run in runs) / len(runs)


def _since(newest: Sequence[Observed]) -> str:
    return f"from before runs like it changed, on {newest[0].began[:10] or 'an unknown day'}"


def _median(values: Sequence[float]) -> float:
    """Of sorted values."""
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _contexts(records: Iterable[Record]) -> Iterator[tuple[str, list[int]]]:
    """Device memory less what PyTorch reserved, of runs alone on one card, under the newest driver each card had."""
    found: dict[str, dict[str, list[int]]] = {}
    newest: dict[str, tuple[str, str]] = {}
    for record in records:
        card, hardware, memory = _card(record), record.get("hardware") or {}, record.get("memory") or {}
        device, reserved = memory.get("device_bytes"), memory.get("reserved_bytes")
        job = record.get("job") or {}
        engine = (job.get("rl") or {}).get("engine") == "vllm"
        alone = (hardware.get("gpus") or 1) * (hardware.get("nodes") or 1) == 1 and not engine
        if card is None or not device or not reserved or not alone or record.get("state") != "done":
            continue
        driver = str(hardware.get("driver") or "")
        found.setdefault(card, {}).setdefault(driver, []).append(device - reserved)
        newest[card] = max(newest.get(card, ("", "")), (str(record.get("began") or ""), driver))
    for card, by_driver in sorted(found.items()):
        yield card, sorted(by_driver[newest[card][1]])


def _context(values: Sequence[int]) -> LearnedContext | None:
    """Their middle and their ends. One that holds less than any context, or twice as much as the largest, shared its
    card with others or was read at another moment."""
    sane = [value for value in values if BARE_CONTEXT_BYTES / 2 <= value <= 2 * MOST_CONTEXT_BYTES]
    if len(sane) < FEWEST:
        return None
    return LearnedContext(int(_median(sane)), sane[0], sane[-1], len(sane))


def _starts(records: Iterable[Record]) -> Iterator[tuple[str, list[float]]]:
    """Seconds until the program has what it imports, of at least three runs."""
    found: dict[str, list[float]] = {}
    for record in records:
        card, seconds = _card(record), ((record.get("time") or {}).get("phases_s") or {}).get("start")
        if (
            card is not None
            and isinstance(seconds, (int, float))
            and isfinite(seconds)
            and 0 < seconds < LONGEST_START_S
        ):
            found.setdefault(card, []).append(float(seconds))
    for card, values in sorted(found.items()):
        if len(values) >= FEWEST:
            yield card, sorted(values)


LONGEST_START_S = 600.0
"""As `tunecast calibrate` takes none longer."""
