"""An out-of-memory error explained, for the terminal and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunecast.predict.changes import Change
from tunecast.predict.memory import op_before
from tunecast.predict.oom import Filling, OomMessage, filled, short_bytes
from tunecast.predict.oom_advice import Advice
from tunecast.predict.prediction import Predicted
from tunecast.report.advice import change_words, effect_words
from tunecast.report.columns import columns
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal, when, words
from tunecast.units import gib

SCHEMA = "tunecast.oom/1"


@dataclass(frozen=True)
class Foreseen:
    """What is predicted of the job that ran out, with what the card had for PyTorch."""

    predicted: Predicted
    changes: tuple[Change, ...]
    same_run: bool | None = None
    """Whether the log can be of this job; None where it carries no figures."""


@dataclass(frozen=True)
class Explained:
    message: OomMessage
    messages: int
    """In the log."""
    advice: tuple[Advice, ...]
    foreseen: Foreseen | None = None


def oom_dict(told: Explained) -> dict[str, Any]:
    filling = filled(told.message)
    return {
        "schema": SCHEMA,
        "messages": told.messages,
        "message": asdict(told.message) | {"processes": [each._asdict() for each in told.message.processes]},
        "filled_bytes": None if filling is None else dict(_parts(filling)),
        "other_processes": [] if filling is None else [each._asdict() for each in filling.others],
        "short_bytes": short_bytes(told.message),
        "advice": [each._asdict() for each in told.advice],
        "prediction": None if told.foreseen is None else told.foreseen.predicted.prediction.to_dict(),
        "same_run": None if told.foreseen is None else told.foreseen.same_run,
        "changes": None if told.foreseen is None else [_change_dict(each) for each in told.foreseen.changes],
    }


def oom_text(told: Explained, terminal: Terminal = DEFAULT, *, flags: bool = False) -> str:
    """`flags`: the job was given by them, not by a file."""
    message, filling = told.message, filled(told.message)
    lines = [_headline(told, terminal)]
    if filling is not None:
        lines += ["", terminal.paint("What filled the card", "bold"), *_filling_lines(message, filling)]
    if told.foreseen is not None:
        lines += ["", terminal.paint("The job, predicted", "bold"), *_foreseen_lines(told, told.foreseen, terminal)]
    lines += ["", terminal.paint("What to change, most effective first", "bold"), *_advice_lines(told, terminal, flags)]
    return terminal.plain("\n".join(lines)) + "\n"


def _headline(told: Explained, terminal: Terminal) -> str:
    message = told.message
    which = f"GPU {message.gpu}" if message.gpu is not None else "the card"
    if message.requested_bytes is None:
        head = f"Out of memory on {which}"
    else:
        head = f"{gib(message.requested_bytes)} did not fit on {which}"
    short = short_bytes(message)
    if short:
        head += f": {gib(short)} short"
    lines = [terminal.paint(head, "bold")]
    if told.messages > 1:
        lines.append(f"  the last of {told.messages} messages in the log")
    return "\n".join(lines)


def _parts(filling: Filling) -> list[tuple[str, int]]:
    return [
        ("allocated", filling.allocated_bytes),
        ("unallocated", filling.unallocated_bytes),
        ("outside_pytorch", filling.outside_bytes),
        ("other_processes", filling.others_bytes),
        ("free", filling.free_bytes),
    ]


def _filling_lines(message: OomMessage, filling: Filling) -> list[str]:
    context = f"{message.platform.name} context"
    outside = f"this process outside PyTorch ({context})" if filling.split else f"outside PyTorch: {context}, others"
    names = {
        "allocated": "in use by PyTorch",
        "unallocated": "cached by PyTorch, fragmented",
        "outside_pytorch": outside,
        "other_processes": "other processes" if filling.others else "other processes and the driver",
        "free": "free",
    }
    rows = [
        (names[name], gib(nbytes), f"{100 * nbytes / filling.total_bytes:.0f} %" if filling.total_bytes else "")
        for name, nbytes in _parts(filling)
        if nbytes or name in ("allocated", "free")
    ]
    if message.private_bytes:
        rows.insert(1, ("  of it in private pools", gib(message.private_bytes), ""))
    if filling.spilled_bytes:
        rows.append(("less what is in host memory", gib(-filling.spilled_bytes), ""))
    rows.append(("= the card", gib(filling.total_bytes), ""))
    return columns(rows)


def _foreseen_lines(told: Explained, foreseen: Foreseen, terminal: Terminal) -> list[str]:
    held, said = foreseen.predicted.held, foreseen.predicted.prediction
    memory = said.memory
    verdict = (
        f"peak {gib(memory.allocated_bytes)} in use, {when(memory.peak_phase, held.at_peak.step)}; needs at least "
        f"{gib(said.smallest_capacity_bytes)}, PyTorch could use {gib(said.capacity_bytes)}"
    )
    lines = _another_run(told, terminal) if foreseen.same_run is False else []
    lines += _wrapped(verdict, "  ", terminal)
    stop = held.limited.out_of_memory
    if stop is not None:
        before = op_before(held.tape, stop.request) if held.is_on_tape else None
        op = shown(before.name) if before else "an allocation"
        where = f"stops {when(stop.phase.value, stop.step)}: {op} asks for {gib(stop.requested_bytes)}"
        lines += _wrapped(where, "  ", terminal)
    elif said.fits:
        why = "so the run was not this job (longer rows, an evaluation, a leak), or something else held memory"
        verdict = "it is predicted to fit" if said.fits_surely else "it is predicted to fit, though not for sure"
        lines += _wrapped(f"{verdict}, {why}", "  ", terminal)
    parts = sorted(_roles(memory.breakdown_bytes).items(), key=lambda each: -each[1])
    whole = memory.allocated_bytes
    lines += columns([(words(part), gib(nbytes), f"{100 * nbytes / whole:.0f} %") for part, nbytes in parts if nbytes])
    if parts and parts[0][1]:
        lines += _wrapped(f"largest part: {words(parts[0][0])}", "  ", terminal)
    return lines


def _another_run(told: Explained, terminal: Terminal) -> list[str]:
    message = told.message
    request, held = gib(message.requested_bytes or 0), gib(message.allocated_bytes or 0)
    what = f"the log is from another run: this job never asks for {request} while it holds about {held}"
    check = "check model, batch, row lengths and versions; what follows is about the job, not the log"
    return _wrapped(f"{what}; {check}", "  ", terminal)


def _roles(breakdown: Mapping[str, int]) -> dict[str, int]:
    """What is allocated at the peak; the rest is the allocator's and the context."""
    rest = ("allocator", "context", "communication", "paged_optimizer")
    return {part: nbytes for part, nbytes in breakdown.items() if part not in rest}


def _advice_lines(told: Explained, terminal: Terminal, flags: bool) -> list[str]:
    lines: list[str] = []
    for number, each in enumerate(told.advice, start=1):
        enough = _enough(each, told.foreseen)
        lines += _wrapped(f"{each.what}{enough}", f"  {number}. ", terminal)
        changes = told.foreseen.changes if told.foreseen is not None and each.training else ()
        lines += _change_lines(changes, flags) if changes else _wrapped(each.how, "     ", terminal)
    return lines


def _enough(advice: Advice, foreseen: Foreseen | None) -> str:
    if not advice.enough:
        return ""
    if advice.enough_for_job is False and foreseen is not None:
        needs = gib(foreseen.predicted.prediction.smallest_capacity_bytes)
        return f" (enough for this request, not for the job, which needs {needs})"
    return " (enough for this request)" if foreseen is not None and not advice.enough_for_job else " (enough by itself)"


def _change_lines(changes: Sequence[Change], flags: bool) -> list[str]:
    rows = [(change_words(each.overrides, flags), effect_words(each, "does not fit")) for each in changes]
    return columns(rows, left=(0, 1), indent="     ")


def _change_dict(change: Change) -> dict[str, Any]:
    return {"set": dict(change.overrides), "saves_bytes": change.saves_bytes, "fits": change.fits}


def _wrapped(text: str, mark: str, terminal: Terminal) -> list[str]:
    wrap = textwrap.TextWrapper(max(40, terminal.width), initial_indent=mark, subsequent_indent=" " * len(mark))
    wrap.break_on_hyphens = False
    return wrap.wrap(shown(text))
