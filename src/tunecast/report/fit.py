"""What to change so that a job fits or takes less time, for the terminal and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.plan.fit import Effect, Fit, Frugal, Solution, State, Wanting
from tunecast.predict.ladder import Harm, Overrides
from tunecast.report.advice import in_yaml
from tunecast.report.columns import columns
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal
from tunecast.report.time import duration
from tunecast.units import gib, percent

SCHEMA = "tunecast.fit/1"
HARM: Mapping[Harm, str] = {
    Harm.SAME: "the same mathematics",
    Harm.ROUNDED: "the same but for rounding",
    Harm.OTHER: "other training",
}
LEAST_TIME = 0.005
"""A smaller difference is told as none."""


def fit_dict(found: Fit, patch: str | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": found.before.job.id,
        "fits": found.fits,
        "question": "faster" if found.faster else "fits surely" if found.before.room.fits else "fits",
        "before": _state_dict(found.before),
        "forced": found.forced,
        "chosen": None if found.chosen is None else _solution_dict(found.chosen, found.before),
        "others": [_solution_dict(each, found.before) for each in found.others],
        "quicker": [_solution_dict(each, found.before) for each in found.quicker],
        "offered": [_solution_dict(each, found.before) for each in found.offered],
        "would_do": None if found.wanting is None else _wanting_dict(found.wanting),
        "patch": patch,
        "predictions": found.asked,
    }


def _state_dict(state: State) -> dict[str, Any]:
    room = state.room
    return {
        "fits": room.fits,
        "fits_surely": room.surely,
        "fits_perhaps": room.perhaps,
        "needs_bytes": room.needs_bytes,
        "range_bytes": [room.low_bytes, room.high_bytes],
        "capacity_bytes": room.capacity_bytes,
        "step_s": state.step_s,
        "tokens_per_s": state.tokens_per_s,
        "prediction": state.prediction.to_dict(),
    }


def _solution_dict(solution: Solution, before: State) -> dict[str, Any]:
    return {
        "harm": solution.harm.name.lower(),
        "changes": [
            {
                "set": dict(effect.option.overrides),
                "harm": effect.option.rung.harm.name.lower(),
                "frees_bytes": effect.frees_bytes,
                "more_time_fraction": effect.more_time,
                "unpriced": effect.option.rung.unpriced,
                "note": effect.option.rung.note,
                "quality": list(effect.option.rung.quality(before.job)),
            }
            for effect in solution.effects
        ],
        "frees_bytes": solution.frees_bytes,
        "more_time_fraction": solution.more_time,
        "job": solution.state.job.to_dict(),
        **_state_dict(solution.state),
    }


def _wanting_dict(wanting: Wanting) -> dict[str, Any]:
    return {
        "least_cards": [
            {
                "set": dict(each.overrides),
                "harm": each.harm.name.lower(),
                "needs_bytes": each.needs_bytes,
                "gpu": None if each.least_card is None else each.least_card.name,
            }
            for each in wanting.frugal
        ],
        "more_cards": None if wanting.more_cards is None else dict(wanting.more_cards),
    }


def fit_text(found: Fit, title: str, how_to: str, terminal: Terminal = DEFAULT) -> str:
    """`how_to`: the patch, or the flags to add."""
    parts = ["\n".join([terminal.paint(shown(title), "bold"), *_before(found.before, terminal)])]
    chosen = found.chosen
    if chosen is not None:
        parts.append(_chosen(found, chosen, terminal))
    elif found.faster:
        parts.append("Nothing that keeps the mathematics and still fits makes it 2 % faster or more.")
    elif found.before.room.fits:
        parts.append("No change that keeps the training makes it fit at the high end too.")
    if found.others:
        lines = _table([(in_yaml(each.overrides), _whole(each)) for each in found.others], terminal)
        parts.append("\n".join([terminal.paint("Enough as well", "bold"), *lines]))
    if found.quicker:
        rows = [(in_yaml(each.overrides), f"{_whole(each)}; {HARM[each.harm]}") for each in found.quicker]
        parts.append("\n".join([terminal.paint("Faster, with more changes", "bold"), *_table(rows, terminal)]))
    if found.offered:
        head = f"{HARM[Harm.OTHER].capitalize()}, each by itself; not needed (--allow lets it be chosen)"
        parts.append("\n".join([terminal.paint(head, "bold"), *_offers(found, terminal)]))
    if found.wanting is not None:
        parts.append(_wanting(found.wanting, found.before, terminal))
    if chosen is not None and how_to:
        parts.append(how_to.rstrip("\n"))
    return terminal.plain("\n\n".join(parts)) + "\n"


def _before(state: State, terminal: Terminal) -> list[str]:
    room, step = state.room, state.step_s
    clock = "" if step is None else f"; a step {duration(step)}"
    told = f"needs {gib(room.needs_bytes)} of {gib(room.capacity_bytes)}"
    if room.surely:
        verdict, style = f"fits as it is: {told}{clock}", "good"
    elif room.fits:
        verdict = f"fits as it is: {told}, but not at the high end of its range, {gib(room.high_bytes)}{clock}"
        style = "warn"
    else:
        low = f"; at the low end of its range ({gib(room.low_bytes)}) it would" if room.perhaps else ""
        verdict, style = f"does not fit as it is: {told}{low}{clock}", "bad"
    return [terminal.paint(line, style) for line in _wrapped(verdict, terminal)]


def _chosen(found: Fit, chosen: Solution, terminal: Terminal) -> str:
    if found.faster:
        head = f"What makes it faster: {HARM[chosen.harm]}"
    else:
        what = "at the high end of its range too" if found.before.room.fits else ""
        word = "change that makes" if len(chosen.effects) == 1 else "changes that make"
        head = f"Smallest {word} it fit{' ' if what else ''}{what}: {HARM[chosen.harm]}"
    rows = [(in_yaml(effect.option.overrides), effect_words(effect)) for effect in chosen.effects]
    if len(rows) > 1:
        rows.append(("together", _whole(chosen)))
    lines = _table(rows, terminal)
    lines += _wrapped(state_words(chosen.state), terminal)
    if found.forced:
        lines += _wrapped("nothing that keeps the training fits", terminal)
    for told in [
        *chosen.notes,
        *chosen.unpriced,
        *chosen.quality(found.before.job),
        *_guesses(chosen.state, found.before),
    ]:
        lines += [terminal.paint(line, "dim") for line in _wrapped(told, terminal)]
    return "\n".join([terminal.paint(head, "bold"), *lines])


def _guesses(state: State, before: State) -> list[str]:
    """What the prediction of the changed job rests on that the other does not."""
    return [
        warning
        for warning in state.prediction.warnings
        if warning.startswith("guessed:") and warning not in before.prediction.warnings
    ]


def _offers(found: Fit, terminal: Terminal) -> list[str]:
    """A line each, and below them what was published about them, once."""
    rows = []
    for each in found.offered:
        enough = "" if found.before.room.fits else ", fits then" if each.state.room.fits else ", not enough by itself"
        rows.append((in_yaml(each.overrides), f"{_whole(each)}{enough}"))
    published = dict.fromkeys(told for each in found.offered for told in each.quality(found.before.job))
    notes = (line for told in published for line in _wrapped(told, terminal))
    return [*_table(rows, terminal), *(terminal.paint(line, "dim") for line in notes)]


def _wanting(wanting: Wanting, before: State, terminal: Terminal) -> str:
    lines = [terminal.paint("Nothing makes it fit. What would", "bold")]
    cards: list[object] = []
    for each in wanting.frugal:
        if each.least_card not in cards:  # the same card with less harm was told
            lines += _wrapped(_frugal(each), terminal)
        cards.append(each.least_card)
    if wanting.more_cards is not None:
        lines += _wrapped(_several(wanting.more_cards, before.job), terminal)
    return "\n".join(lines)


def _several(overrides: Overrides, job: Job) -> str:
    cards, rows = int(str(overrides["hardware.gpus"])), job.micro_batch * job.grad_accum
    after = {"micro_batch": job.micro_batch, "grad_accum": job.grad_accum, **overrides}
    grown = cards * int(str(after["micro_batch"])) * int(str(after["grad_accum"]))
    batch = "" if grown == rows else f" (a step takes {grown} rows then, not {rows})"
    return f"{cards} of this card, with {in_yaml(overrides)}{batch}"


def _frugal(each: Frugal) -> str:
    card = "no card there is" if each.least_card is None else f"{each.least_card.name} is the least card"
    how = f"with {in_yaml(each.overrides)}" if each.overrides else "as it is"
    word = f" ({HARM[each.harm]})" if each.harm is not Harm.SAME else ""
    return f"{card} for {gib(each.needs_bytes)}, {how}{word}"


def effect_words(effect: Effect) -> str:
    if effect.frees_bytes is None:
        return "makes a job only with the others"
    return _words(effect.frees_bytes, effect.more_time)


def _whole(solution: Solution) -> str:
    return _words(solution.frees_bytes, solution.more_time)


def _words(frees_bytes: int, more_time: float | None) -> str:
    """`frees 41.20 GiB, costs 27 % time`."""
    memory = f"frees {gib(frees_bytes)}" if frees_bytes > 0 else f"takes {gib(-frees_bytes)} more"
    parts = [memory] if frees_bytes else []
    if more_time is None:
        parts.append("its time is not known")
    elif more_time > LEAST_TIME:
        parts.append(f"costs {percent(more_time)} time")
    elif more_time < -LEAST_TIME:
        parts.append(f"saves {percent(-more_time)} time")
    else:
        parts.append("the same time")
    return ", ".join(parts)


def state_words(state: State) -> str:
    """`then it needs 62.36 GiB of 78.35 GiB (up to 66.30 GiB); a step 1.85 s`."""
    room = state.room
    of = f"{gib(room.needs_bytes)} of {gib(room.capacity_bytes)}"
    told = f"then it needs {of}, {gib(room.high_bytes)} at the high end"
    if room.fits and not room.surely:
        told += ", which does not fit"
    return told + ("" if state.step_s is None else f"; a step {duration(state.step_s)}")


def _table(rows: Sequence[tuple[str, str]], terminal: Terminal) -> list[str]:
    lines = columns(rows, left=(0, 1))
    if max(map(len, lines)) > terminal.width:
        lines = [line for what, effect in rows for line in (f"  {what}", f"      {effect}")]
    return lines


def _wrapped(text: str, terminal: Terminal, indent: str = "  ") -> list[str]:
    room = terminal.width - len(indent)
    return [indent + line for line in textwrap.wrap(shown(text), room, break_on_hyphens=False, break_long_words=False)]
