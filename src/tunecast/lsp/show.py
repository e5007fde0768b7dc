"""What an editor shows of a file, as plain values: marks, hints, lenses, the text of a hover."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.lsp.positions import Position, Span, Text, key_path
from tunecast.lsp.scripts import calls
from tunecast.lsp.severity import ERROR, WARNING
from tunecast.lsp.watched import Row, Traced, Watched
from tunecast.records import NamedTuple
from tunecast.report.draw.markdown import code
from tunecast.units import GIB, gib, percent

SEVERITY = {"does not fit": ERROR, "may not fit": WARNING}
WORTHWHILE = 0.01
"""Of what the job needs: less is no hint."""
WORTHWHILE_TIME = 0.02
LONGEST_HINT = 40
"""Characters: VS Code cuts hints at 43 (editor.inlayHints.maximumLength)."""
HELD = "what this line holds at the peak, through whatever it calls"
TRACE = "trace the memory of this script, line by line"
MOST_PARTS = 8
"""Of a breakdown."""
NAME_A_CARD = "name a card: # tunecast: gpu=rtx-4090"
NAME_A_CARD_IN_SETTINGS = "name a card in the settings: tunecast.gpu"
_MARKUP, MARKED = re.compile(r"([\\`*_{}\[\]()<>!#|~])"), r"\\\1"
"""What a file says stays text in Markdown: an image there would be fetched."""
NAME_CARDS = "how many cards? # tunecast: gpus=8"


class FileMark(NamedTuple):
    span: Span
    severity: int
    message: str
    code: str


class Hint(NamedTuple):
    position: Position
    text: str
    tooltip: str


class Lens(NamedTuple):
    line: int
    title: str
    command: str
    """'': it only says something."""


class Edit(NamedTuple):
    span: Span
    text: str


def is_script(file: Watched) -> bool:
    return file.path.suffix.lower() == ".py"


def is_yaml(file: Watched) -> bool:
    return file.path.suffix.lower() != ".toml"


def marks(file: Watched) -> Iterator[FileMark]:
    look = file.look
    if look is None or not look["known"] or is_script(file):
        return
    for each in look["problems"]:
        span = file.text.key_span(each["line"], each["key"], yaml=is_yaml(file))
        yield FileMark(span, each["severity"], each["message"], each["code"])
    verdict = look["verdict"]
    if verdict is not None and verdict["verdict"] in SEVERITY:
        line, key = file.shown_at
        message = verdict["message"]
        chosen = next((each for each in file.remedies or [] if each["chosen"]), None)
        if chosen is not None:
            message += f". To fix: {chosen['title']}"
        code = verdict["verdict"].replace(" ", "-")
        span = file.text.key_span(line, key, yaml=is_yaml(file))
        yield FileMark(span, SEVERITY[verdict["verdict"]], message, code)


def hints(file: Watched) -> Iterator[Hint]:
    """One behind each key that matters: the other value that frees most, of a job that fits the one that saves most
    time and fits too."""
    look = file.look
    if file.traced is not None:
        yield from traced_hints(file.text, file.traced)
    if look is None or look["verdict"] is None or is_script(file):
        return
    for field, others in file.costs.items():
        line, key = look["places"][field]
        best = worth_telling(others, look["verdict"])
        if best is None or line < 1:
            continue
        span = file.text.key_span(line, key, yaml=is_yaml(file))
        told = "\n".join(f"- {other_words(other)}" for other in others)
        yield Hint(span.end, f"  {hint_words(best)}", told)


def traced_hints(text: Text, traced: Traced) -> Iterator[Hint]:
    for each in traced.lines:
        end = text.position(text.offset(Position(each.line, 2**31)))
        yield Hint(end, f"  {gib(each.nbytes)}", HELD)


def worth_telling(others: Sequence[Row], verdict: Row) -> Row | None:
    worth = [other for other in others if matters(other, verdict["needs_bytes"])]
    if verdict["verdict"] == "fits":
        quicker = [other for other in worth if fits_and_saves_time(other)]
        if quicker:
            return min(quicker, key=lambda other: float(other["more_time_fraction"]))
    frees = [other for other in worth if other["more_bytes"] < 0]
    return min(frees, key=lambda other: int(other["more_bytes"])) if frees else None


def matters(other: Row, needs_bytes: int) -> bool:
    more_time = other["more_time_fraction"] or 0.0
    return bool(abs(other["more_bytes"]) >= WORTHWHILE * needs_bytes or abs(more_time) >= WORTHWHILE_TIME)


def fits_and_saves_time(other: Row) -> bool:
    return other["verdict"] == "fits" and (other["more_time_fraction"] or 0.0) <= -WORTHWHILE_TIME


def hint_words(other: Row) -> str:
    """`16384: −6.20 GiB, −12 % time`. Of what would be cut the figures come first."""
    words, delta = other["words"], delta_words(other)
    told = f"{words}: {delta}"
    return told if len(told) <= LONGEST_HINT else f"{delta} with {words}"


def delta_words(other: Row) -> str:
    """`−13.40 GiB, +27 % time`."""
    more_bytes, more_time = other["more_bytes"], other["more_time_fraction"]
    parts = [] if abs(more_bytes) < GIB / 100 else [f"{'+' if more_bytes > 0 else '−'}{gib(abs(more_bytes))}"]
    if more_time is not None and abs(more_time) >= 0.005:
        parts.append(f"{'+' if more_time > 0 else '−'}{percent(abs(more_time))} time")
    return ", ".join(parts) or "no difference"


def other_words(other: Row) -> str:
    """`2048: 18.20 GiB, fits (−13.40 GiB, 27 % more time)`."""
    sign = "+" if other["more_bytes"] > 0 else "−"
    delta = f"{sign}{gib(abs(other['more_bytes']))}, {other['time']}"
    return f"`{other['words']}`: {gib(other['needs_bytes'])}, {other['verdict']} ({delta})"


def lenses(file: Watched) -> Iterator[Lens]:
    """Above the file: whether it fits, its time and price, and what may be asked."""
    look = file.look
    if is_script(file):
        yield from script_lenses(file)
        return
    if look is None or not look["known"]:
        return
    at = 0
    if look["unsaid"]:
        told = NAME_A_CARD if "hardware.gpu" in look["unsaid"] else NAME_CARDS
        if file.path.suffix.lower() == ".json":
            told = NAME_A_CARD_IN_SETTINGS
        yield Lens(at, told, "")
    if look["verdict"] is not None:
        yield Lens(at, verdict_words(look["verdict"]), "tunecast.fit")
        if file.time is not None:
            if file.time["step"] is not None:
                yield Lens(at, "; ".join([file.time["step"].partition(" (")[0], *_whole(file.time)]), "tunecast.plan")
            if file.time["price"] is not None:
                yield Lens(at, file.time["price"], "tunecast.plan")
    if not any(each["severity"] == ERROR for each in look["problems"]):
        yield Lens(at, "plan", "tunecast.plan")
        if not look["unsaid"]:
            yield Lens(at, "fit", "tunecast.fit")
            yield Lens(at, "launch", "tunecast.launch")


def script_lenses(file: Watched) -> Iterator[Lens]:
    """Above each call that describes or begins a training."""
    look = file.look or {}
    for call in calls(file.text.text):
        if file.traced is not None and call.trains:
            yield Lens(call.line, file.traced.verdict, "")
        elif look.get("verdict") is not None:
            yield Lens(call.line, f"as read, not run: {verdict_words(look['verdict'])}", "tunecast.fit")
        yield Lens(call.line, TRACE, "tunecast.trace")
        if look.get("known") and look.get("verdict") is not None and call.trains:
            yield Lens(call.line, "plan", "tunecast.plan")


def _whole(time: Mapping[str, Any]) -> list[str]:
    return [each.partition(" (")[0] for each in time["whole"]]


def verdict_words(verdict: Mapping[str, Any]) -> str:
    """`fits the rtx-4090, 4.21 GiB to spare`."""
    left_bytes = verdict["capacity_bytes"] - verdict["needs_bytes"]
    where = f"{verdict['cards']} x {verdict['gpu']}" if verdict["cards"] > 1 else f"the {verdict['gpu']}"
    if verdict["verdict"] == "fits":
        return f"fits {where}, {gib(left_bytes)} to spare"
    if verdict["verdict"] == "may not fit":
        return f"may not fit {where}"
    return f"does not fit {where}, {gib(-left_bytes)} over"


def hover(file: Watched, position: Position) -> str | None:
    """Markdown: of a key what other values would cost, and where the memory is; None where there is nothing to say."""
    look = file.look
    key = key_path(file.text, position)
    if look is None or not look["known"] or key is None:
        return None
    here = [field for field, (line, name) in look["places"].items() if line == position.line + 1]
    lines: list[str] = []
    for field in here:
        others = file.costs.get(field)
        if others:
            lines += [f"**Otherwise** ({field})", "", *(f"- {other_words(other)}" for other in others), ""]
    named = [name for name in look["not_understood"] if name.rpartition(".")[2] == key]
    lines += [f"{code(name)}: {_MARKUP.sub(MARKED, look['not_understood'][name])}\n" for name in named]
    ignored = any(name.rpartition(".")[2] == key for name in look["ignored"])
    if ignored and not here and not named:
        return "moves neither memory nor time"
    if not here and not lines:
        return None
    verdict = look["verdict"]
    if verdict is not None:
        lines = [f"{verdict_words(verdict)}: {verdict['message']}", "", *lines]
    if file.time is not None:
        lines += breakdown_lines(file.time["breakdown"])
    return "\n".join(lines).strip() or None


def breakdown_lines(parts: Sequence[tuple[str, int]]) -> list[str]:
    shown = [f"| {name} | {gib(nbytes)} |" for name, nbytes in parts[:MOST_PARTS]]
    return ["| at the peak | |", "|---|---|", *shown]


def edits(before: Text, after: str) -> list[Edit]:
    """Line by line, only what differs."""
    old, new = before.text.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    found = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            found.append(Edit(before.span(starts[i], starts[j]), "".join(new[k:m])))
    return found
