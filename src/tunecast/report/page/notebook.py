"""Values as a notebook shows them: the verdict, the main figures, the choices as a table. No script, and no style that
reaches beyond the fragment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

from tunecast.advise.most import Largest
from tunecast.advise.oom.explanation import OomExplanation
from tunecast.hardware.spec import card_name
from tunecast.job.job import Job
from tunecast.market.listed import Offers
from tunecast.planning.choice import DOLLARS, Plan
from tunecast.planning.comparison import Comparison
from tunecast.planning.fit.solution import Fit, FitChange
from tunecast.prediction.data.training_data import TrainingData
from tunecast.prediction.prediction import Prediction
from tunecast.report.draw.job_yaml import job_in_yaml
from tunecast.report.lists.compare import summary
from tunecast.report.lists.data import row_sentences, verdict
from tunecast.report.lists.fit import effect_words, state_words
from tunecast.report.lists.largest import most_words, settings_words
from tunecast.report.page.markup import Markup, joined, lines, tag
from tunecast.report.plan.words import amount, cost_and_range, headline, offer_name, picks, time_and_range
from tunecast.report.run.time import duration, span
from tunecast.report.run.verdict import STYLES, phrase_of
from tunecast.report.run.wording import in_yaml
from tunecast.units import gib, percent

COLOURS = {"good": "#1a7f37", "warn": "#9a6700", "bad": "#cf222e"}
CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"
MOST_ROWS = 12
"""Of a table; a notebook is no list."""


@singledispatch
def html(value: Any) -> str:
    """Of a value nobody drew by hand: its figures."""
    if isinstance(value, tuple):
        return fragment(f"{len(value)} found", table((), ([each.name] for each in value[:MOST_ROWS])))
    figures = {name: getattr(value, name) for name in value.KEYS or value.__match_args__ if name != "schema"}
    rows = [(name.replace("_", " "), _cell(each)) for name, each in figures.items()]
    return fragment(value.__class__.__name__, table((), ((name, cell) for name, cell in rows if cell)))


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        more = f" and {len(value) - MOST_ROWS} more" if len(value) > MOST_ROWS else ""
        return ", ".join(str(getattr(each, "name", each)) for each in value[:MOST_ROWS]) + more
    return f"{value:,}" if isinstance(value, (int, float)) else value if isinstance(value, str) else ""


def fragment(title: str, *parts: str, style: str = "") -> Markup:
    colour = COLOURS.get(style)
    head = tag("div", title, style=f"font-weight:600{f';color:{colour}' if colour else ''}")
    return tag("div", head, *parts, class_="tunecast", style="margin:4px 0;line-height:1.45")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Names at the left; what is bold is the first column."""
    heads = [tag("tr", *(tag("th", name, style=f"{CELL};font-weight:400;opacity:.7") for name in head))] if head else []
    body = [tag("tr", *(tag("td", cell, style=CELL) for cell in row)) for row in rows]
    return tag("table", *heads, *body, style="border-collapse:collapse;margin:4px 0")


def note(text: str) -> Markup:
    return tag("div", text, style="opacity:.7") if text else Markup("")


@html.register
def _job(job: Job) -> str:
    return fragment(str(job.id or job.model), tag("pre", *lines(job_in_yaml(job).splitlines()), style="margin:4px 0"))


@html.register
def _prediction(found: Prediction) -> str:
    room = found.on_card.room.in_need(found.smallest_capacity_bytes)
    card = card_name(found.on_card.gpu.name)
    low, high = found.memory.range_bytes.device
    rows = [
        ("memory on the card", gib(found.memory.device_bytes), f"{gib(low)} to {gib(high)}"),
        ("it needs", gib(room.needs_bytes), f"PyTorch can use {gib(room.capacity_bytes)} of the {card}"),
    ]
    time = found.time
    if time is not None:
        speed = "" if time.tokens_per_s is None else f"{time.tokens_per_s:,.0f} tokens per second"
        rows.append(("time per step", duration(time.step_s), speed))
        if time.total_s is not None:
            ends = "" if time.total_range_s is None else span(*time.total_range_s)
            rows.append(("whole run", duration(time.total_s), ends))
    ends = f"{found.exactness}{': ' if found.reasons else ''}{'; '.join(found.reasons)}"
    return fragment(f"{card}: {phrase_of(room)}", table((), rows), note(ends), style=STYLES[room.verdict])


@html.register
def _plan(plan: Plan) -> str:
    chosen = picks(plan)
    head = ("", "rent", "from", "time", "cost")
    shown = [(pick.title, pick.choice) for pick in chosen] or [("", each) for each in plan.pareto[:MOST_ROWS]]
    rows = [
        (title, each.hardware, offer_name(each.fleet.offer), time_and_range(each), cost_and_range(each, plan.money))
        for title, each in shown
    ]
    why = chosen[0].choice.why if chosen else ""
    return fragment(headline(plan), table(head, rows), note(why), style="good" if chosen else "bad")


@html.register
def _fit(found: Fit) -> str:
    room, chosen = found.before.room, found.chosen
    rows = [(in_yaml(each.set), effect_words(each)) for each in found.changes]
    after = note("" if chosen is None else state_words(chosen))
    others = [(in_yaml(each.set), _hardware(each.job)) for each in found.elsewhere]
    elsewhere = joined(note("other hardware that fits for sure"), table((), others)) if others else Markup("")
    title = f"{phrase_of(room)}{'; what makes it faster' if found.faster else ' as it is'}"
    return fragment(title, table((), rows), after, elsewhere, style=STYLES[room.verdict])


@html.register
def _change(change: FitChange) -> str:
    return fragment(in_yaml(change.set), note(effect_words(change)))


def _hardware(job: Job) -> str:
    return f"{job.hardware.gpus} x {job.hardware.gpu}"


@html.register
def _comparison(found: Comparison) -> str:
    before, after = found.before, found.after
    rows = [
        (name.replace("_", " "), gib(old), gib(new))
        for name, old, new in (
            ("device_bytes", before.memory.device_bytes, after.memory.device_bytes),
            ("smallest_capacity_bytes", before.smallest_capacity_bytes, after.smallest_capacity_bytes),
        )
    ]
    if before.time is not None and after.time is not None:
        rows.append(("time per step", duration(before.time.step_s), duration(after.time.step_s)))
    old, new = found.cost
    if old is not None and new is not None and old.total_usd is not None and new.total_usd is not None:
        rows.append(("cost of the run", amount(old.total_usd, DOLLARS), amount(new.total_usd, DOLLARS)))
    style = STYLES[after.on_card.room.verdict]
    return fragment(summary(found), table(("", "before", "after"), rows), style=style)


@html.register
def _largest(found: Largest) -> str:
    rows = [(row.method, row.model or "none fits") for row in found.models]
    for what, several in (("tokens", found.longest_sequence), ("rows", found.largest_batch)):
        rows += [(row.method, most_words(row, found, what)) for row in several]
    title = f"{card_name(found.gpu)}: PyTorch can use {gib(found.capacity_bytes)}"
    return fragment(title, table((), rows), note(settings_words(found)))


@html.register
def _offers(found: Offers) -> str:
    head = ("machine", "provider", "kind", "USD/h per card", "USD/h", "seen")
    rows = [
        (
            f"{each.gpus} x {each.gpu}", each.provider, each.kind, f"{each.usd_per_gpu_hour:.3f}",
            f"{each.usd_per_hour:.2f}", each.dated.isoformat(),
        )
        for each in found.found[:MOST_ROWS]
    ]  # fmt: skip
    more = len(found.found) - len(rows)
    return fragment(
        f"{len(found.found)} offers", table(head, rows), note(f"and {more} more. {found.note}" if more else found.note)
    )


@html.register
def _data(found: TrainingData) -> str:
    rows = [
        (f"{each.least:,} to {each.most:,} tokens", f"{each.samples:,}", percent(each.samples / found.samples, 1))
        for each in found.lengths.histogram
    ]
    told = [] if found.rows is None else list(row_sentences(found.rows))
    lines = table((), ([sentence] for sentence in told)) if told else Markup("")
    bad = note(f"{found.bad_lines.count:,} lines were not counted" if found.bad_lines.count else "")
    head = ("length", "samples", "")
    return fragment(verdict(found), table(head, rows), lines, note(f"tokens: {found.tokenizer}"), bad)


@html.register
def _explanation(found: OomExplanation) -> str:
    message = found.message
    asked = "Out of memory" if message.requested_bytes is None else f"{gib(message.requested_bytes)} did not fit"
    parts = [] if found.filled_bytes is None else found.filled_bytes._asdict().items()
    filled = table((), ((name.replace("_", " "), gib(nbytes)) for name, nbytes in parts))
    advice = table(("what to change, most effective first", ""), ((each.what, each.how) for each in found.advice))
    return fragment(asked, filled, advice, style="bad")
