"""A plan for the terminal: what to rent, the picks, what stands beside them, the cost, and what it rests on.

Short unless `details` are asked for: then also the plot, every line of the bill, sources, refusals and assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tunecast.market.offer import OWNED, SPOT
from tunecast.planning.choice import Choice, Money, Plan
from tunecast.records import NamedTuple
from tunecast.report.draw.columns import columns
from tunecast.report.draw.text import Terminal, bullets, section, wrapped
from tunecast.report.plan import notes, words
from tunecast.report.plan.arguments import arguments, launcher
from tunecast.report.plan.plot import PlotPoint, plot, points
from tunecast.report.plan.words import Pick
from tunecast.report.run.unstated import taken_text
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.units import percent

LEVELS = {
    "us-controlled": "under US law",
    "eu-seat-us-nexus": "seat in Europe, with ties to the US",
    "no-known-us-parent": "no US parent known",
    "other-law": "under another country's law",
    "unknown": "who controls it is not known",
}
"""How far US law reaches, in few words; --details says what each does not claim."""
MORE = "--details: sources, every line of the bill, the plot, what is refused and assumed."
MOST_REFUSED = 8
"""Reasons shown; the page and --json have them all."""
MOST_HARDWARE = 6
"""Names of hardware one reason lists."""
MOST_WARNED = 1
"""Warnings shown without --details."""
MINOR = "the CUDA context of"
"""What is uncertain by less than a range already says."""
SPOKEN = ("billed", "per run", "per epoch", "energy")
"""Measures of the cost shown without --details."""


SPOKEN_ASSUMPTIONS = ("no amount of data", "not in time and cost", "the script does not say")
"""Beginnings of what is assumed that is said without --details."""


class How(NamedTuple):
    details: bool
    wording: Wording


def short(plan: Plan) -> str:
    """One line."""
    return f"{words.headline(plan)}\n"


def text(plan: Plan, terminal: Terminal, *, details: bool = False, wording: Wording = FIELDS) -> str:
    """The whole answer, ending with a newline."""
    how = How(details, wording)
    chosen = words.picks(plan)
    parts = [_headline(plan, chosen, terminal)]
    if chosen:
        parts += [
            taken_text(plan.taken, plan.effects, "fits", terminal),
            _picks(plan, chosen, terminal, how),
        ]
    if chosen or plan.pareto:
        parts += [_beside(plan, terminal, details), _front(plan, terminal, details=details)]
    if chosen:
        parts += [
            _bill(plan, chosen[0], terminal, details=details),
            section("Cheaper still", bullets(notes.savings(plan), terminal), terminal),
            _renter(plan, chosen[0].choice, terminal, details=details),
        ]
    if details:
        parts.append(_refused(plan, terminal))
    parts += _notes(plan, [pick.choice for pick in chosen[:1]], terminal, details=details)
    return terminal.plain("\n\n".join(filter(None, parts))) + "\n"


def _headline(plan: Plan, chosen: Sequence[Pick], terminal: Terminal) -> str:
    kept = "".join(f", {limit}" for limit in words.limits(plan))
    which = f"the {chosen[0].spoken} option{kept}, " if chosen else ""
    return "\n".join(
        [
            *(terminal.paint(line, "bold") for line in wrapped([words.headline(plan)], "", terminal)),
            *(terminal.paint(line, "dim") for line in wrapped([f"{which}for {words.job_words(plan)}"], "  ", terminal)),
        ]
    )


def _picks(plan: Plan, chosen: Sequence[Pick], terminal: Terminal, how: How) -> str:
    """Columns of two or three lines a pick, then what to set and why in full width."""
    for offer_lines in (1, 2):
        cells = [_cells(plan, pick, offer_lines) for pick in chosen]
        rows = [row for each in cells for row in zip_longest(*each, fillvalue="")]
        head, *rest = columns([("", "rent", "memory per card", "time", "cost"), *rows], left=range(5))
        if max(map(len, rest)) <= terminal.width:
            break
    else:
        return _stacked(plan, chosen, terminal, how)
    out = [terminal.paint(head, "dim")]
    for pick, each in zip(chosen, cells, strict=True):
        count = max(map(len, each))
        why = how.details or pick is chosen[0]
        out += [
            terminal.paint(rest[0], "bold"),
            *rest[1:count],
            *_settings(pick.choice, plan.money, terminal, how, why),
        ]
        out += [""] if how.details else []
        rest = rest[count:]
    return "\n".join(out[:-1] if how.details else out)


def _cells(plan: Plan, pick: Pick, offer_lines: int) -> list[list[str]]:
    cells = words.cells(pick.choice, plan.money)
    return [
        list(pick.names),
        [cells.hardware, *([cells.offer] if offer_lines == 1 else cells.offer.rsplit(", ", 1))],
        [cells.used, cells.left],
        [cells.time, cells.time_range],
        [cells.cost, cells.cost_range],
    ]


def _stacked(plan: Plan, chosen: Sequence[Pick], terminal: Terminal, how: How) -> str:
    """For names too long for columns: a line each."""
    lines = []
    for pick in chosen:
        names, *cells = _cells(plan, pick, 1)
        lines.append(terminal.paint(", ".join(names), "bold"))
        for name, cell in zip(("rent", "memory", "time", "cost"), cells, strict=True):
            lines += wrapped([f"{name + ':':<8}{'; '.join(cell)}"], "  ", terminal)
        lines += [*_settings(pick.choice, plan.money, terminal, how, how.details or pick is chosen[0]), ""]
    return "\n".join(lines[:-1])


def _settings(choice: Choice, money: Money, terminal: Terminal, how: How, why: bool) -> list[str]:
    """What to set, what may go wrong; and `why` it was picked."""
    changed = words.changes(choice, how.wording)
    joined = (" " if how.wording.is_typed else ", ").join(changed)
    as_it_is = "with the script unchanged" if choice.job is None else "with the job's settings unchanged"
    sentences = [f"set {joined}" if changed else as_it_is]
    sentences += [choice.why] if why else []
    sentences += [notes.interruptions(choice, money)] if choice.fleet.offer.kind == SPOT else []
    sentences += [choice.evidence] if choice.validated and why else []
    sentences += [choice.learned.words] if choice.learned is not None else []
    if how.details:
        start = launcher(choice)
        sentences += [start and f"run {start}", ", ".join(arguments(choice))]
    lines = wrapped(filter(None, sentences), "    ", terminal)
    risks = wrapped(words.doubts(choice), "    ", terminal)
    return [*lines, *(terminal.paint(line, "warn") for line in risks)]


def _beside(plan: Plan, terminal: Terminal, details: bool) -> str:
    found = notes.beside(plan, details=details)
    wide = max((len(kind) for kind, _ in found), default=0) + 4
    lines: list[str] = []
    for kind, sentence in found:
        first, *rest = wrapped([sentence], " " * wide, terminal)
        lines += [f"  {kind:<{wide - 2}}{first[wide:]}", *rest]
    return section("Not picked unless asked for", lines, terminal)


def _front(plan: Plan, terminal: Terminal, *, details: bool) -> str:
    """What there is to choose from as a table, and with details as a plot."""
    front = [point for point in points(plan) if point.mark]
    if len(front) < 2 or (not details and all(words.picked_as(plan, point.choice) for point in front)):
        return ""
    for shortened in range(4):
        head = ("", "rent", "from", "time", "cost", "")
        cells = [head, *(_front_row(plan, point, short=shortened > 0, marked=details) for point in front)]
        kept = {2: (0, 1, 2, 3, 4), 3: (0, 1, 3, 4)}.get(shortened, range(6))
        table = columns([[row[index] for index in kept] for row in cells], left=_LEFT[shortened])
        if max(map(len, table)) <= terminal.width:
            break
    title = "Options: no other is both cheaper and faster"
    rows = [terminal.paint(table[0], "dim"), *table[1:]]
    if not details:
        return section(title, rows, terminal)
    others = len(points(plan)) - len(front)
    dot = "·" if terminal.unicode else "."
    rest = f"; {dot} the best of other hardware that was predicted ({others})" if others else ""
    unit = "EUR" if plan.money.eur else "USD"
    legend = f"cost ({unit}) against time, both axes logarithmic; letters as above{rest}"
    return section(title, [*rows, "", *plot(plan, terminal), "", *wrapped([legend], "  ", terminal)], terminal)


_LEFT = ((0, 1, 2, 5), (0, 1, 2, 5), (0, 1, 2), (0, 1))
"""The columns of names, with ever fewer columns."""


def _front_row(plan: Plan, point: PlotPoint, *, short: bool, marked: bool) -> tuple[str, ...]:
    choice, cells = point.choice, words.cells(point.choice, plan.money)
    offer = words.short_offer(choice.fleet.offer) if short else cells.offer
    return point.mark if marked else "", cells.hardware, offer, cells.time, cells.cost, words.marks(plan, choice)


def _bill(plan: Plan, pick: Pick, terminal: Terminal, *, details: bool) -> str:
    choice, money = pick.choice, plan.money
    if not details:
        return "\n".join(wrapped([f"What the {pick.names[0]} option costs: {_in_short(choice, money)}"], "", terminal))
    rows = [(line.name, line.amount, percent(line.share, 1), line.note) for line in words.bill(choice, money)]
    lines = columns(rows, left=(0, 3))
    lines[-1] = terminal.paint(lines[-1], "bold")
    fitted = [
        part for line in lines for part in (wrapped([line], "", terminal) if len(line) > terminal.width else [line])
    ]
    title = f"What the {pick.names[0]} option costs, line by line{' (EUR)' if money.eur else ''}"
    return section(title, [*fitted, "", *columns(words.measures(choice, money), left=(0, 1))], terminal)


def _in_short(choice: Choice, money: Money) -> str:
    """`$13.24 = training 10.23 + checkpoints 1.20 + the rest 0.45; billed: 5 h of one machine at $2.60 per hour`."""
    *lines, total = words.short_bill(choice, money)
    parts = " + ".join(f"{line.name} {line.amount}{f' ({line.note})' if line.note else ''}" for line in lines)
    spoken = [f"{name}: {value}" for name, value in words.measures(choice, money) if name in SPOKEN]
    return "; ".join([f"{total.amount} = {parts}", *spoken])


def _renter(plan: Plan, choice: Choice, terminal: Terminal, *, details: bool) -> str:
    offer = choice.fleet.offer
    if offer.kind == OWNED:
        return ""
    lines = [f"price {notes.price_age(plan, offer)}" + (f": {notes.price_source(offer)}" if details else "")]
    for of in notes.renters(offer):
        lines.append(f"{of.name}: {of.company}; {of.law if details else LEVELS[of.level]}{of.doubt}")
        lines += [f"source of that and of its terms: {of.source}"] if details else []
    lines = [*(lines if details else ["; ".join(lines)]), *notes.conditions(choice)]
    return section("Provider", bullets(lines, terminal), terminal)


def _refused(plan: Plan, terminal: Terminal) -> str:
    found = notes.refusals(plan)
    lines: list[str] = []
    for one in found[:MOST_REFUSED]:
        lines += wrapped([f"{_names(one)}: {one.reason}"], "  ", terminal)
        lines += wrapped([f"what would help: {one.remedy}"] if one.remedy else [], "      ", terminal)
    if len(found) > MOST_REFUSED:
        lines += wrapped([f"{len(found) - MOST_REFUSED} more reasons; --html and --json have them all"], "  ", terminal)
    return section("Ruled out", lines, terminal)


def _names(one: notes.Refused) -> str:
    rest = len(one.hardware) - MOST_HARDWARE
    return ", ".join(one.hardware[:MOST_HARDWARE]) + (f" and {rest} more" if rest > 0 else "")


def _notes(plan: Plan, first: Sequence[Choice], terminal: Terminal, *, details: bool) -> list[str]:
    remarks, end = notes.remarks(plan, first), notes.small_print(plan)
    if not details:
        remarks = [
            ("Worth knowing", [*plan.notes, *notes.outliers(plan, all_of_them=False)]),
            ("Warnings", _first_of([each for each in notes.warnings(plan, first) if not each.startswith(MINOR)])),
            ("Assumed", [each for each in notes.assumptions(plan, first) if each.startswith(SPOKEN_ASSUMPTIONS)]),
        ]
        end = [notes.price_note(plan), f"{plan.searched.configurations:,} configurations searched. {MORE}"]
    return [
        *(
            section(title, bullets(sentences, terminal), terminal, "warn" if title == "Warnings" else "bold")
            for title, sentences in remarks
        ),
        "\n".join(wrapped(end, "", terminal)),
    ]


def _first_of(sentences: Sequence[str]) -> list[str]:
    rest = len(sentences) - MOST_WARNED
    return [*sentences[:MOST_WARNED], *([f"and {rest} more (--details)"] if rest > 0 else [])]
