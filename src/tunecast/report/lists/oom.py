"""An out-of-memory error explained, for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.advise.changes import Change
from tunecast.advise.oom.advice import Advice
from tunecast.advise.oom.explanation import OomExplanation
from tunecast.advise.oom.message import Filling
from tunecast.prediction.prediction import Prediction
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, when, words, wrapped
from tunecast.report.run.advice import effect_words
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.tape.op import op_before
from tunecast.units import gib


def oom_text(told: OomExplanation, terminal: Terminal = DEFAULT, *, wording: Wording = FIELDS) -> str:
    lines = [_headline(told, terminal)]
    if told.filling is not None:
        lines += ["", terminal.paint("What filled the card", "bold"), *_filling_lines(told, told.filling)]
    if told.prediction is not None:
        title = terminal.paint("The job, predicted", "bold")
        lines += ["", title, *_prediction_lines(told, told.prediction, terminal)]
    advice = _advice_lines(told, terminal, wording)
    lines += ["", terminal.paint("What to change, most effective first", "bold"), *advice]
    return terminal.plain("\n".join(lines)) + "\n"


def _headline(told: OomExplanation, terminal: Terminal) -> str:
    message = told.message
    which = f"GPU {message.gpu}" if message.gpu is not None else "the card"
    if message.requested_bytes is None:
        head = f"Out of memory on {which}"
    else:
        head = f"{gib(message.requested_bytes)} did not fit on {which}"
    if told.short_bytes:
        head += f": {gib(told.short_bytes)} short"
    lines = [terminal.paint(head, "bold")]
    if told.messages > 1:
        lines.append(f"  the last of {told.messages} messages in the log")
    return "\n".join(lines)


def _filling_lines(told: OomExplanation, filling: Filling) -> list[str]:
    message, parts = told.message, told.filled_bytes
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
        for name, nbytes in ({} if parts is None else parts._asdict()).items()
        if nbytes or name in ("allocated", "free")
    ]
    if message.private_bytes:
        rows.insert(1, ("  of it in private pools", gib(message.private_bytes), ""))
    if filling.spilled_bytes:
        rows.append(("less what is in host memory", gib(-filling.spilled_bytes), ""))
    rows.append(("= the card", gib(filling.total_bytes), ""))
    return columns(rows)


def _prediction_lines(told: OomExplanation, said: Prediction, terminal: Terminal) -> list[str]:
    held, memory = said.on_card, said.memory
    verdict = (
        f"peak {gib(memory.allocated_bytes)} in use, {when(memory.peak_phase, held.at_peak.step)}; needs at least "
        f"{gib(said.smallest_capacity_bytes)}, PyTorch could use {gib(said.capacity_bytes)}"
    )
    lines = _another_run(told, terminal) if told.same_run is False else []
    lines += _wrapped(verdict, "  ", terminal)
    stop = held.limited.out_of_memory
    if stop is not None:
        before = op_before(held.tape.events, stop.request) if held.is_on_tape else None
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


def _another_run(told: OomExplanation, terminal: Terminal) -> list[str]:
    message = told.message
    request, held = gib(message.requested_bytes or 0), gib(message.allocated_bytes or 0)
    what = f"the log is from another run: this job never asks for {request} while it holds about {held}"
    check = "check model, batch, row lengths and versions; what follows is about the job, not the log"
    return _wrapped(f"{what}; {check}", "  ", terminal)


def _roles(breakdown: Mapping[str, int]) -> dict[str, int]:
    """What is allocated at the peak; the rest is the allocator's and the context."""
    rest = ("allocator", "context", "communication", "vllm", "paged_optimizer")
    return {part: nbytes for part, nbytes in breakdown.items() if part not in rest}


def _advice_lines(told: OomExplanation, terminal: Terminal, wording: Wording) -> list[str]:
    lines: list[str] = []
    for number, each in enumerate(told.advice, start=1):
        enough = _enough(each, told.prediction)
        lines += _wrapped(f"{each.what}{enough}", f"  {number}. ", terminal)
        changes = (told.changes or ()) if each.training else ()
        lines += _change_lines(changes, wording) if changes else _wrapped(each.how, "     ", terminal)
    return lines


def _enough(advice: Advice, prediction: Prediction | None) -> str:
    if not advice.enough:
        return ""
    if advice.enough_for_job is False and prediction is not None:
        needs = gib(prediction.smallest_capacity_bytes)
        return f" (enough for this request, not for the job, which needs {needs})"
    return (
        " (enough for this request)" if prediction is not None and not advice.enough_for_job else " (enough by itself)"
    )


def _change_lines(changes: Sequence[Change], wording: Wording) -> list[str]:
    rows = [(wording.change(each.overrides), effect_words(each, "does not fit")) for each in changes]
    return columns(rows, left=(0, 1), indent="     ")


def _wrapped(text: str, mark: str, terminal: Terminal) -> list[str]:
    return wrapped([text], mark, terminal, least_hang=0)
