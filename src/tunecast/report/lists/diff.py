"""What changed training files need and cost, for a terminal and, as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tunecast import __version__
from tunecast.planning.choice import DOLLARS
from tunecast.planning.file_changes import FieldChange, FileChange, FileChanges, FileState
from tunecast.report.draw.figures import shown
from tunecast.report.draw.markdown import bullets, code, folded, html_code, plain, table
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.report.lists.compare import LEAST_TIME, slower_words, value_words
from tunecast.report.plan.words import amount
from tunecast.report.run.time import duration
from tunecast.report.run.verdict import STYLES
from tunecast.units import gib

LONGEST_NAME = 120
LONGEST_PROBLEM = 300
MOST_CHANGES = 12
"""Of one file; further ones are counted."""
MOST_CHARACTERS = 60_000
"""Of the Markdown: GitHub takes 65,536 in a comment."""
ROWS = 40
"""Of the table."""
SMALL_PRINT = f"tunecast {__version__}: predicted without running anything; costs are list prices of these machines."

State = Callable[[FileState], str]


def diff_text(found: FileChanges, terminal: Terminal = DEFAULT) -> str:
    """The verdict over all; then each file: its verdict, what it needs, takes and costs, and which fields changed."""
    parts = [terminal.paint(headline(found), "bold")]
    for file in found.files:
        style = STYLES[file.after.verdict] if file.after is not None else "dim"
        parts += ["", terminal.paint(f"{name_of(file)}: {verdict_words(file)}", style)]
        parts += wrapped(_lines(file), "  ", terminal)
    return terminal.plain("\n".join(parts)) + "\n"


def headline(found: FileChanges) -> str:
    """`2 training files changed from main to the working tree: 1 does not fit`."""
    between = f"from {shown(found.base)[:LONGEST_NAME]} to {shown(found.head)[:LONGEST_NAME]}"
    left = f"; {found.left_out} more were not looked at" if found.left_out else ""
    if not found.files:
        return f"no training file changed {between}{left}"
    bad, doubtful = len(found.with_verdict("does not fit")), len(found.with_verdict("may not fit"))
    unknown = sum(file.problem is not None for file in found.files)
    told = [
        f"{bad} {'does' if bad == 1 else 'do'} not fit" if bad else "",
        f"{doubtful} may not fit" if doubtful else "",
        f"{unknown} cannot be predicted" if unknown else "",
    ]
    files = f"{len(found.files)} training file{'' if len(found.files) == 1 else 's'} changed"
    fine = "it fits" if len(found.files) == 1 else "all fit"
    if not any(told) and all(file.after is None for file in found.files):
        fine = "none is left"
    return f"{files} {between}: {', '.join(filter(None, told)) or fine}{left}"


def name_of(file: FileChange) -> str:
    renamed = f" (was {_short(file.old_path)})" if file.old_path != file.path else ""
    return f"{_short(file.path)}{renamed}"


def verdict_words(file: FileChange) -> str:
    """`does not fit, 7.56 GiB over (fits before)`."""
    if file.after is None:
        return "deleted" if file.kind == "deleted" else "no answer"
    free_bytes = file.after.capacity_bytes - file.after.needs_bytes
    room = {"fits": f", {gib(free_bytes)} to spare", "does not fit": f", {gib(-free_bytes)} over"}
    now = f"{file.after.verdict}{room.get(file.after.verdict, '')}"
    if file.before is None:
        old = " (no answer before)" if file.old_problem else ""
        return f"{now}{' (new)' if file.kind == 'new' else old}"
    return now if file.before.verdict == file.after.verdict else f"{now} ({file.before.verdict} before)"


def _lines(file: FileChange) -> Iterator[str]:
    if file.problem is not None:
        yield problem_words(file, file.problem)
    if file.after is not None:
        yield file.after.title
        yield f"needs {_both(file, lambda state: gib(state.needs_bytes))} of the {gib(file.after.capacity_bytes)}"
        told = {
            "per step": f"{_both(file, _step)}{_pace(file, ' ({})')}",
            "whole run": _both(file, _whole),
            "cost": _both(file, cost_words),
        }
        if any(told.values()):
            yield "; ".join(f"{name} {each}" for name, each in told.items() if each) + _if_it_did(file)
        if file.after.offer and file.after.total_usd is not None:
            yield f"cost on {file.after.offer}"
        planned = _both(file, _planned)
        if planned:
            yield f"cheapest plan {planned}"
        if file.after.not_understood:
            yield f"{_keys(file.after)}: tunecast read {_short(file.path)} says which"
    if file.kind not in ("new", "deleted") and file.before is not None and file.after is not None and not file.changes:
        yield "no change of what it needs, how long it takes or what it costs"
    yield from change_words(file)


def change_words(file: FileChange) -> Iterator[str]:
    """`sequence_len (line 14): 2048 → 8192: needs 19.02 GiB more, 27 % slower`; nothing of a field that only follows
    from another and costs nothing itself."""
    told = [change for change in file.changes if change.key or change.needs_bytes is None or effect_words(change)]
    for change in told[:MOST_CHANGES]:
        yield f"{key_words(file, change)}: {change_value(change)}{effect_words(change)}"
    if len(told) > MOST_CHANGES:
        yield f"and {len(told) - MOST_CHANGES} more fields"


def key_words(file: FileChange, change: FieldChange) -> str:
    """The key as the file has it, else our field's name."""
    if not change.key:
        return change.field
    other = "" if change.file in (file.path, file.old_path) else f"{_short(change.file)}, "
    place = f"line {change.line}" if change.line else "gone"
    return f"{_short(change.key)} ({other}{place})"


def change_value(change: FieldChange) -> str:
    before, after = (tuple(each) if isinstance(each, list) else each for each in (change.before, change.after))
    return f"{value_words(before)} → {value_words(after)}"


def effect_words(change: FieldChange) -> str:
    told = []
    if change.needs_bytes:
        told.append(f"needs {gib(abs(change.needs_bytes))} {'more' if change.needs_bytes > 0 else 'less'}")
    more = change.more_time_fraction
    if more is not None and abs(more) >= LEAST_TIME:
        told.append(slower_words(more))
    return f": {', '.join(told)}" if told else ""


def _both(file: FileChange, words: State) -> str:
    """`1.2 s → 2.3 s`; once where both read the same."""
    after = "" if file.after is None else words(file.after)
    before = "" if file.before is None else words(file.before)
    return after if before in ("", after) else f"{before} → {after or 'not known'}"


def _if_it_did(file: FileChange) -> str:
    return "" if all(state is None or state.fits for state in (file.before, file.after)) else f" ({AS_IF})"


AS_IF = "of what does not fit, as if it did"


def _pace(file: FileChange, form: str) -> str:
    """Steps of other sizes cannot be compared; the same tokens can."""
    more = file.more_time_fraction
    return "" if more is None or abs(more) < LEAST_TIME else form.format(f"{slower_words(more)} for the same tokens")


def _step(state: FileState) -> str:
    return "" if state.step_s is None else duration(state.step_s)


def _whole(state: FileState) -> str:
    return "" if state.total_s is None else duration(state.total_s)


def cost_words(state: FileState) -> str:
    if state.total_usd is not None:
        return amount(state.total_usd, DOLLARS)
    if state.usd_per_million_tokens is not None:
        return f"{amount(state.usd_per_million_tokens, DOLLARS)} per million tokens"
    return ""


def _planned(state: FileState) -> str:
    plan = state.plan
    if plan is None:
        return ""
    return f"{amount(plan.total_usd, DOLLARS)} in {duration(plan.total_s)} on {plan.hardware} at {plan.provider}"


def _keys(state: FileState) -> str:
    return f"{state.not_understood} key{'s were' if state.not_understood > 1 else ' was'} not understood"


def _short(text: str) -> str:
    told = shown(text)
    return told if len(told) <= LONGEST_NAME else f"…{told[1 - LONGEST_NAME :]}"


def problem_words(file: FileChange, problem: str) -> str:
    """Without the name of the file, which stands before it."""
    told = " ".join(shown(problem).split()).removeprefix(f"{file.path}: ")
    return told if len(told) <= LONGEST_PROBLEM else f"{told[: LONGEST_PROBLEM - 1]}…"


def diff_markdown(found: FileChanges) -> str:
    """The same for a pull request, ending with a newline. Names and values come from anyone and stay text."""
    for most in (ROWS, ROWS // 2, 0):
        whole = _markdown(found, most)
        if len(whole) <= MOST_CHARACTERS:
            return whole
    return _markdown(found, 0, rows=ROWS // 4)


def _markdown(found: FileChanges, most: int, rows: int = ROWS) -> str:
    """`most`: files whose changes are told; `rows`: of the table."""
    answered = [file for file in found.files if file.after is not None]
    others = [file for file in found.files if file.after is None]
    head = ("training file", "verdict", "needs, per card", "per step", "whole run", "cost")
    hidden = len(answered) - rows
    parts = [
        f"**{plain(_sentence(headline(found)))}**",
        table(head, map(_row, answered[:rows])) if answered else "",
        f"{hidden} more files are not shown." if hidden > 0 else "",
        bullets(f"{name_of(file)}: {_fate(file)}" for file in others[:rows]),
        *(folded(f"What changed in {html_code(_short(file.path))}", _changes(file)) for file in answered[:most]),
        f"<sub>{plain(SMALL_PRINT)} Time and cost of what does not fit are as if it did.</sub>" if answered else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _fate(file: FileChange) -> str:
    return verdict_words(file) if file.problem is None else problem_words(file, file.problem)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(file: FileChange) -> tuple[str, ...]:
    assert file.after is not None
    verdict = plain(verdict_words(file))
    notes = [plain(file.after.title), _keys(file.after) if file.after.not_understood else ""]
    planned = _both(file, _planned)
    return (
        f"{code(name_of(file))}<br><sub>{'; '.join(filter(None, notes))}</sub>",
        verdict if file.after.verdict == "fits" else f"**{verdict}**",
        f"{plain(_both(file, lambda state: gib(state.needs_bytes)))} of {gib(file.after.capacity_bytes)}",
        f"{plain(_both(file, _step))}{_pace(file, '<br>{}')}",
        plain(_both(file, _whole)),
        "<br>".join(filter(None, [plain(_both(file, cost_words)), plain(f"plan: {planned}") if planned else ""])),
    )


def _changes(file: FileChange) -> str:
    return bullets(change_words(file))
