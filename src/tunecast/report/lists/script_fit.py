"""What to change in a script so that it fits, in its own arguments, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.advise.script_ladder import ScriptSet
from tunecast.hardware.spec import card_name
from tunecast.planning.fit.script import ScriptChange, ScriptFit, ScriptSolution
from tunecast.planning.fit.solution import FitFigures
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import short_source, shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.report.lists.fit import HARM, THEN, needs_words, time_words
from tunecast.report.run.time import duration
from tunecast.report.run.verdict import STYLES
from tunecast.units import gib


def script_fit_short(found: ScriptFit, title: str) -> str:
    """One line: the verdict, and what to do."""
    before, chosen = found.before, found.chosen
    parts = [f"{shown(title)}: {before.room.verdict}, {needs_words(before.room)}"]
    if chosen is not None:
        what = ", ".join(change_words(each) for each in chosen.sets)
        parts.append(f"{chosen.room.verdict} with {what}: {needs_words(chosen.room)}")
    elif not before.fits_surely:
        parts.append("no change that was tried makes it fit")
    return "; ".join(parts) + "\n"


def script_fit_text(found: ScriptFit, title: str, command: Sequence[str], terminal: Terminal = DEFAULT) -> str:
    """`command`: the script as it was started, to be started with the changes."""
    before, chosen = found.before, found.chosen
    verdict = before.room.verdict
    sentence = f"{verdict} as it is: needs {needs_words(before.room)}{_clock(before)}"
    head = [terminal.paint(line, STYLES[verdict]) for line in wrapped([sentence], "  ", terminal)]
    parts = ["\n".join([terminal.paint(shown(title), "bold"), *head])]
    if chosen is not None:
        parts += [_chosen(found, chosen, terminal), how_to(chosen, command, terminal)]
    elif before.fits_surely:
        parts.append("Nothing has to change.")
    else:
        parts.append(
            "\n".join([terminal.paint("No change makes it fit this card", "bold"), *_nothing(found, terminal)])
        )
    parts.append("\n".join(_tried(found, terminal)))
    return terminal.plain("\n\n".join(filter(None, parts))) + "\n"


def change_words(change: ScriptSet) -> str:
    """`--batch-size 4`; `bf16=True in TrainingArguments`; `batch_size: 4 in config.yaml`."""
    setting = change.setting
    if setting.place == "option":
        return shown(" ".join(change.words))
    if setting.place == "call":
        return shown(f"{setting.name}={change.value!r} in {setting.spelled}")
    return shown(f"{setting.name}: {change.value} in {short_source(setting.spelled)}")


def _chosen(found: ScriptFit, chosen: ScriptSolution, terminal: Terminal) -> str:
    word = "Change that makes" if len(chosen.changes) == 1 else "Changes that make"
    sure = " for sure" if found.before.fits else ""
    rows = [(", ".join(map(change_words, each.sets)), _effect(each)) for each in chosen.changes]
    if len(rows) > 1:
        rows.append(("together", _words(chosen.frees_bytes, chosen.more_time_fraction)))
    lines = columns(rows, left=(0, 1))
    if max(map(len, lines)) > terminal.width:
        lines = [
            line
            for what, effect in rows
            for line in (*wrapped([what], "  ", terminal), *wrapped([effect], "      ", terminal))
        ]
    if found.forced:
        lines += wrapped(["nothing that keeps the training fits"], "  ", terminal)
    then = f"{THEN[chosen.room.verdict]}: needs {needs_words(chosen.room)}{_clock(chosen)}"
    notes = [
        *(each.note for each in chosen.changes if each.note),
        *(q for each in chosen.changes for q in each.quality),
    ]
    dim = [terminal.paint(line, "dim") for line in wrapped(notes, "  ", terminal)]
    title = terminal.paint(f"{word} it fit{sure} ({HARM[chosen.harm]})", "bold")
    return "\n".join([title, *lines, *wrapped([then], "  ", terminal), *dim])


def how_to(chosen: ScriptSolution, command: Sequence[str], terminal: Terminal) -> str:
    """The command with its further arguments, and the lines to change."""
    options = [word for each in chosen.sets if each.setting.place == "option" for word in each.words]
    lines = wrapped([f"run: {shown(' '.join([*command, *options]))}"], "  ", terminal) if options else []
    for each in (one for one in chosen.sets if one.setting.place != "option"):
        setting = each.setting
        told = f"{setting.name} is {setting.value!r}" if setting.place == "call" else f"{setting.name}: {setting.value}"
        where = short_source(setting.line or setting.spelled)
        lines += wrapped([f"{where}: {shown(told)}; to change to {each.value!r}"], "  ", terminal)
    return "\n".join([terminal.paint("How", "bold"), *lines])


def _nothing(found: ScriptFit, terminal: Terminal) -> list[str]:
    cards = () if found.would_do is None else found.would_do.least_cards
    told = [
        f"{card_name(each.least_card.name)} is the smallest card with the {gib(each.needs_bytes)} it needs as it is"
        if each.least_card is not None
        else f"no card has the {gib(each.needs_bytes)} it needs as it is: more cards (torchrun --nproc-per-node N)"
        for each in cards
    ]
    if not found.tried:
        told.append(
            "the script has no argument whose name says what it changes (batch_size, gradient_checkpointing, ...): "
            "neither argparse options, nor TrainingArguments, nor keys of a YAML or JSON file it reads"
        )
    if found.exhausted:
        told.append("more may be found with more traces (--traces N)")
    return wrapped(told, "  ", terminal)


def _tried(found: ScriptFit, terminal: Terminal) -> list[str]:
    """How it was found out, and what did not work."""
    count = found.predictions
    verified = "; every change was verified by one" if found.chosen is not None else ""
    told = [f"{count} trace{'' if count == 1 else 's'}{verified}."]
    told += [f"tried in vain: {shown(what)} ({shown(why)})" for what, why in found.failures.items()]
    return [terminal.paint(line, "dim") for line in wrapped(told, "", terminal)]


def _effect(change: ScriptChange) -> str:
    return "" if change.frees_bytes is None else _words(change.frees_bytes, change.more_time_fraction)


def _words(frees_bytes: int, more_time: float | None) -> str:
    memory = f"frees {gib(frees_bytes)}" if frees_bytes >= 0 else f"takes {gib(-frees_bytes)} more"
    return memory if more_time is None else f"{memory}, {time_words(more_time)}"


def _clock(state: FitFigures) -> str:
    return "" if state.step_s is None else f"; {duration(state.step_s)} per step"
