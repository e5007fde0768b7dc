"""What to change so that a job fits or takes less time, for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tunecast.advise.ladder import ON_THE_HOST, Harm, Overrides
from tunecast.hardware.catalog import gpu
from tunecast.hardware.spec import card_name
from tunecast.job.flags import job_flags
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.planning.choice import DOLLARS
from tunecast.planning.fit.patch import Patch
from tunecast.planning.fit.solution import Fit, FitChange, FitState, FrugalJob, LargerCards, OtherHardware, Solution
from tunecast.prediction.verdict import Room
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.report.plan.price import cost_words
from tunecast.report.plan.words import hourly, seller
from tunecast.report.run.advice import EFFECTS
from tunecast.report.run.time import duration
from tunecast.report.run.verdict import STYLES
from tunecast.report.run.wording import FLAGS, Wording, as_flags, in_yaml
from tunecast.tape.build.sharding.scheme import rows_per_step
from tunecast.units import GIB, gib, percent

HARM: Mapping[Harm, str] = {
    Harm.SAME: "same mathematics",
    Harm.ROUNDED: "equivalent up to rounding",
    Harm.OTHER: "changes what is trained",
}
THEN = {"fits": "then it fits", "may not fit": "then it may still not fit", "does not fit": "then it does not fit"}
LEAST_TIME = 0.005
"""A smaller difference is told as none."""
MOST_ROWS = 3
"""Of each list, unless details are asked for."""


def fit_short(found: Fit, title: str, *, wording: Wording = FLAGS) -> str:
    """One line: the verdict, and what to do."""
    before, chosen = found.before, found.chosen
    parts = [f"{shown(title)}: {before.room.verdict}, {_needs(before)}"]
    if chosen is not None:
        verb = "faster with" if found.faster else f"{chosen.room.verdict} with"
        what = wording.change(chosen.overrides)
        parts.append(f"{verb} {what}: {_needs(chosen)}, {time_words(chosen.more_time_fraction)}{_ram(chosen)}")
    elif found.faster:
        parts.append("nothing harmless makes it 2 % faster")
    for each in [] if found.faster else found.elsewhere[:1]:
        parts.append(f"{'or ' if chosen is not None else ''}{_where(each, found.before.job)}: {_needs(each)}")
    if len(parts) == 1:
        parts.append("no change makes it fit")
    return "; ".join(parts) + "\n"


def fit_text(
    found: Fit,
    title: str,
    how_to: str,
    terminal: Terminal = DEFAULT,
    *,
    wording: Wording = FLAGS,
    details: bool = False,
) -> str:
    """`how_to`: the patch, or the flags to add."""
    words = _Words(terminal, wording, details)
    parts = ["\n".join([terminal.paint(shown(title), "bold"), *words.before(found.before)])]
    chosen = found.chosen
    if chosen is not None:
        parts.append(words.chosen(found, chosen))
        parts += [how_to.rstrip("\n")] if wording.is_typed and how_to else []
    elif found.faster:
        parts.append("Nothing that keeps the mathematics and still fits makes it 2 % faster or more.")
    elif found.before.room.fits:
        parts.append("No change that keeps the training makes it fit for sure.")
    others = [(words.spelled(each.overrides), _whole(each)) for each in found.others]
    quicker = [(words.spelled(each.overrides), f"{_whole(each)} ({HARM[each.harm]})") for each in found.quicker]
    parts += [
        words.section("Other combinations that fit", others),
        words.section("Faster, with more changes", quicker),
        words.offered(found),
        words.larger_cards(found.would_do, has_other=bool(found.elsewhere)),
        words.elsewhere(found),
        how_to.rstrip("\n") if chosen is not None and not wording.is_typed else "",
    ]
    return terminal.plain("\n\n".join(filter(None, parts))) + "\n"


class _Words:
    """How it is said: how wide, in which words, and how much of it."""

    def __init__(self, terminal: Terminal, wording: Wording, details: bool) -> None:
        self.terminal, self.wording, self.details = terminal, wording, details

    def spelled(self, overrides: Overrides) -> str:
        return self.wording.change(overrides)

    def section(self, title: str, rows: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> str:
        """'' without rows."""
        if not rows:
            return ""
        most = len(rows) if self.details else MOST_ROWS
        left = len(rows) - most
        lines = [self.terminal.paint(title, "bold"), *self.table(rows[:most])]
        lines += [f"  and {left} more (--details)"] if left > 0 else []
        return "\n".join([*lines, *self.dim(notes)])

    def table(self, rows: Sequence[tuple[str, str]]) -> list[str]:
        lines = columns(rows, left=(0, 1))
        if lines and max(map(len, lines)) > self.terminal.width:
            lines = [line for what, effect in rows for line in (f"  {what}", *self.lines(effect, "      "))]
        return lines

    def lines(self, text: str, mark: str = "  ") -> list[str]:
        return wrapped([text], mark, self.terminal)

    def dim(self, notes: Sequence[str]) -> list[str]:
        return [self.terminal.paint(line, "dim") for note in notes for line in self.lines(note)]

    def before(self, state: FitState) -> list[str]:
        """The verdict; where it needs most of the card, up to where it may go."""
        verdict = state.room.verdict
        sentence = f"{verdict} as it is: needs {_needs(state)}{_clock(state)}"
        return [self.terminal.paint(line, STYLES[verdict]) for line in self.lines(sentence)]

    def chosen(self, found: Fit, chosen: Solution) -> str:
        if found.faster:
            head = f"What makes it faster ({HARM[chosen.harm]})"
        else:
            word = "change that makes" if len(chosen.changes) == 1 else "changes that make"
            sure = " for sure" if found.before.room.fits else ""
            head = f"Smallest {word} it fit{sure} ({HARM[chosen.harm]})"
        rows = [(self.spelled(effect.set), effect_words(effect)) for effect in chosen.changes]
        if len(rows) > 1:
            rows.append(("together", _whole(chosen)))
        lines = self.table(rows)
        if found.forced:
            lines += self.lines("nothing that keeps the training fits")
        lines += self.lines(state_words(chosen))
        notes = [*chosen.notes, *chosen.unpriced, *chosen.quality, *_guesses(chosen, found.before)]
        if "offload" in " ".join(chosen.overrides):
            notes = [note for note in notes if note != ON_THE_HOST]
            lines += self.lines(_host(chosen))
        return "\n".join([self.terminal.paint(head, "bold"), *lines, *self.dim(notes)])

    def offered(self, found: Fit) -> str:
        """A line each; with details what was published about them, once."""
        rows = []
        for each in found.offered:
            enough = "" if found.before.room.fits else f", {EFFECTS[each.room.verdict]}"
            rows.append((self.spelled(each.overrides), f"{_whole(each)}{enough}"))
        published = dict.fromkeys(told for each in found.offered for told in each.quality)
        title = "Changes what is trained (not needed; enable with --allow)"
        return self.section(title, rows, list(published) if self.details else ())

    def larger_cards(self, cards_wanted: LargerCards | None, *, has_other: bool) -> str:
        if cards_wanted is None:
            return ""
        lines = [self.terminal.paint("No change makes it fit this hardware", "bold")]
        cards: list[object] = []
        for each in cards_wanted.least_cards:
            as_it_is = has_other and not each.set  # that is told with its price
            if each.least_card not in cards and not as_it_is:  # the same card with less harm was told
                lines += self.lines(self._frugal(each))
            cards.append(each.least_card)
        return "\n".join(lines)

    def _frugal(self, each: FrugalJob) -> str:
        card = (
            "no card has" if each.least_card is None else f"{card_name(each.least_card.name)} is the smallest card with"
        )
        how = f"with {self.spelled(each.set)}" if each.set else "as it is"
        word = f" ({HARM[each.harm]})" if each.harm is not Harm.SAME else ""
        return f"{card} the {gib(each.needs_bytes)} it needs {how}{word}"

    def elsewhere(self, found: Fit) -> str:
        """A line for each machine, and below it what to write for it."""
        if not found.elsewhere:
            return ""
        lines = [self.terminal.paint("Other hardware that fits for sure", "bold")]
        for each in found.elsewhere:
            lines += self.lines(f"{_where(each, found.before.job)}: {', '.join(_facts(each, found.before))}")
            lines += self.lines(self.spelled(each.set), "      ")
        return "\n".join([*lines, *self.lines("the cheapest that can be rented: tunecast plan")])


def _guesses(state: FitState, before: FitState) -> list[str]:
    """What the prediction of the changed job rests on that the other does not."""
    return [
        warning
        for warning in state.prediction.warnings
        if warning.startswith("guessed:") and warning not in before.prediction.warnings
    ]


def _where(each: OtherHardware, job: Job) -> str:
    """`2 x RTX 4090 (ddp)`, `1 x L40S`."""
    hardware, data = each.job.hardware, each.job.parallel.data
    shared = f" ({data})" if hardware.gpus > 1 and hardware.gpus != job.hardware.gpus else ""
    return f"{hardware.gpus} x {card_name(gpu(hardware.gpu).name)}{shared}"


def _facts(each: OtherHardware, before: FitState) -> Iterator[str]:
    yield _needs(each)
    yield time_words(each.more_time_than(before))
    rows, grown = rows_per_step(before.job), rows_per_step(each.job)
    if rows != grown:
        yield f"{grown} rows per step instead of {rows}"
    if each.cost is not None:
        offer = f"{hourly(each.cost.usd_per_hour, DOLLARS)} at {seller(each.cost.offer)}"
        yield offer if each.cost.bill is None else f"{cost_words(each.cost)} for the run ({offer})"
    else:
        yield "no offer at hand"


def effect_words(effect: FitChange) -> str:
    if effect.frees_bytes is None:
        return "valid only with the others"
    return _words(effect.frees_bytes, effect.more_time_fraction)


def _whole(solution: Solution) -> str:
    return _words(solution.frees_bytes, solution.more_time_fraction)


def _words(frees_bytes: int, more_time: float | None) -> str:
    """`frees 41.20 GiB, 27 % more time`."""
    memory = f"frees {gib(frees_bytes)}" if frees_bytes > 0 else f"takes {gib(-frees_bytes)} more"
    return ", ".join([*([memory] if frees_bytes else []), time_words(more_time)])


def winning_flags(chosen: Solution | None, flags: Mapping[str, object]) -> str:
    """Flags that were given for what is to change."""
    names = {flag.field: flag.flag for flag in job_flags()}
    return "" if chosen is None else ", ".join(names[field] for field in chosen.overrides if field in flags)


def how_to(chosen: Solution | None, patch: Patch | None, source: str, over: str) -> str:
    """The patch; the flags; or the fields, where the file cannot be changed in place. No `source`: it holds others."""
    if chosen is None:
        return ""
    if patch is not None:
        return patch.diff + (f"and leave out {over}, which would win over the file" if over else "")
    if not source:
        return f"Set\n  {in_yaml(chosen.overrides)}"
    if is_job_file(source):
        return f"{source} cannot be changed in its place; set there\n  {in_yaml(chosen.overrides)}"
    return f"Add\n  {as_flags(chosen.overrides)}"


def time_words(more_time: float | None) -> str:
    """For the same tokens: `27 % more time`, `2.4 times the time`."""
    if more_time is None:
        return "time not known"
    if abs(more_time) <= LEAST_TIME:
        return "same time"
    if more_time >= 1:
        return f"{1 + more_time:.1f} times the time"
    return f"{percent(abs(more_time))} {'more' if more_time > 0 else 'less'} time"


def _needs(state: FitState) -> str:
    return needs_words(state.room)


def needs_words(room: Room) -> str:
    """`17.50 of 22.77 GiB (up to 18.41)`."""
    up_to = f" (up to {room.high_bytes / GIB:.2f})" if room.high_bytes > room.needs_bytes else ""
    return f"{room.needs_bytes / GIB:.2f} of {room.capacity_bytes / GIB:.2f} GiB{up_to}"


def state_words(state: FitState) -> str:
    """`then it fits: needs 62.36 of 78.35 GiB (up to 66.30); 1.85 s per step`."""
    return f"{THEN[state.room.verdict]}: needs {_needs(state)}{_clock(state)}"


def _clock(state: FitState) -> str:
    return "" if state.step_s is None else f"; {duration(state.step_s)} per step"


def _host(state: FitState) -> str:
    ram = state.machine_ram_bytes
    if ram is None:
        return "part of the job is offloaded to the host: how much RAM that takes is not known"
    return f"needs {ram / GIB:.0f} GiB of host RAM: part of the job is offloaded to it"


def _ram(state: FitState) -> str:
    ram = state.machine_ram_bytes
    is_offloaded = state.job.parallel.offload != "none" or state.job.offload_activations
    return f", {ram / GIB:.0f} GiB of host RAM" if is_offloaded and ram is not None else ""
