"""Two jobs side by side, for the terminal and for programs: memory, time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tunecast.advise.compare import MEASURES, Difference, FieldStep, measure
from tunecast.market.offer import OWNED
from tunecast.planning.choice import DOLLARS
from tunecast.planning.comparison import Comparison, Rents
from tunecast.planning.price import Rent
from tunecast.report.draw.columns import signed
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, headed, words, wrapped
from tunecast.report.plan.price import offer_words
from tunecast.report.plan.words import amount, amounts
from tunecast.report.run.time import duration, span
from tunecast.report.run.verdict import STYLES
from tunecast.tape.build.sharding.scheme import rows_per_step
from tunecast.units import gib, percent

LONGEST_VALUE = 40
LEAST_TIME = 0.0005
"""A smaller difference of time is told as none."""
_ROWS = {
    "allocated_bytes": "peak in use",
    "reserved_bytes": "reserved by PyTorch",
    "device_bytes": "on the card",
    "smallest_capacity_bytes": "least it runs with",
}


def compare_short(found: Comparison, names: tuple[str, str]) -> str:
    """One line."""
    return f"{shown(names[0])} → {shown(names[1])}: {summary(found)}\n"


def compare_text(found: Comparison, names: tuple[str, str], terminal: Terminal = DEFAULT) -> str:
    """The verdict; the totals; a line for each step with what it costs, and where."""
    title = f"{shown(names[0])} → {shown(names[1])}"
    parts = [terminal.paint(title, "bold")]
    if not found.steps:
        parts.append("  the jobs do not differ; --to rank=64 compares a job with itself at another rank")
        return terminal.plain("\n".join(parts)) + "\n"
    style = STYLES[found.after.on_card.room.verdict]
    parts += [terminal.paint(f"  {summary(found)}", style), "", *_totals(found, terminal)]
    parts += wrapped(_notes(found), "  ", terminal)
    head = "What each difference costs, one after the other"
    parts += ["", terminal.paint(head, "bold"), *_step_lines(found, terminal)]
    where = _where(found, terminal)
    if where:
        parts += ["", terminal.paint("Where the memory differs", "bold"), *where]
    return terminal.plain("\n".join(parts)) + "\n"


NOTHING = 0.005
"""Of a cost: less is no difference, next to how far costs are uncertain."""


def summary(found: Comparison) -> str:
    """`both fit; needs 312.00 MiB more, 1 % slower, $0.07 more`."""
    before, after = found.before, found.after
    more = after.smallest_capacity_bytes - before.smallest_capacity_bytes
    parts = [f"needs {gib(abs(more))} {'more' if more > 0 else 'less'}" if more else "needs the same memory"]
    slower = found.difference_time.more_time_fraction
    if slower is not None:
        parts.append(slower_words(slower))
    usd = found.difference_usd
    if usd is not None:
        unit = "" if _are_whole(found.cost) else " per million tokens"
        told = f"{amount(abs(usd), DOLLARS)} {'more' if usd > 0 else 'less'}{unit}"
        parts.append("the same cost" if _is_nothing(usd, found.cost) else told)
    return f"{_verdicts(found)}; {', '.join(parts)}"


def _verdicts(found: Comparison) -> str:
    old, new = found.before.on_card.room.verdict, found.after.on_card.room.verdict
    if old != new:
        return f"{old} before, {new} after"
    return {"fits": "both fit", "may not fit": "both may not fit", "does not fit": "neither fits"}[old]


def slower_words(more: float) -> str:
    """Of the time for the same tokens: `2.4 times as fast`, `12 % slower`."""
    if abs(more) < LEAST_TIME:
        return "the same speed"
    times = 1 + more if more > 0 else 1 / (1 + more)
    if times >= 2:
        return f"{times:.1f} times as {'slow' if more > 0 else 'fast'}"
    return f"{percent(abs(more), 0 if abs(more) >= 0.02 else 1)} {'slower' if more > 0 else 'less time'}"


def _is_nothing(usd: float, rents: Rents) -> bool:
    before = rents.before and (rents.before.total_usd or rents.before.usd_per_million_tokens)
    return not before or abs(usd) < NOTHING * before


def _are_whole(rents: Rents) -> bool:
    return all(rent is not None and rent.total_usd is not None for rent in rents)


def _totals(found: Comparison, terminal: Terminal) -> list[str]:
    before, after = found.before, found.after
    rows = [
        ("", "before", "after", "difference"),
        ("", before.on_card.room.verdict, after.on_card.room.verdict, ""),
        *(_memory_row(_ROWS[name], measure(before, name), measure(after, name)) for name in MEASURES),
    ]
    return headed([*rows, *_time_rows(found), *_cost_rows(found.cost)], terminal)


def _memory_row(name: str, old: int, new: int) -> tuple[str, str, str, str]:
    return name, gib(old), gib(new), signed(new - old, gib(new - old))


def _time_rows(found: Comparison) -> Iterator[tuple[str, str, str, str]]:
    old, new = found.before.time, found.after.time
    if old is None or new is None:
        return
    yield "time per step", duration(old.step_s), duration(new.step_s), _share(old.step_s, new.step_s)
    if (slow := old.tokens_per_s) is not None and (fast := new.tokens_per_s) is not None:
        yield "tokens per second", f"{slow:,.0f}", f"{fast:,.0f}", _share(slow, fast)
    if old.total_s is None or new.total_s is None:
        return
    yield "whole run", duration(old.total_s), duration(new.total_s), _share(old.total_s, new.total_s)
    if old.total_range_s is not None and new.total_range_s is not None:
        yield "  80 % range", span(*old.total_range_s), span(*new.total_range_s), ""


def _cost_rows(rents: Rents) -> Iterator[tuple[str, str, str, str]]:
    old, new = rents
    if old is None and new is None:
        return
    if any(rent is not None and rent.bill is not None for rent in rents):
        yield "cost of the run", *_cells(rents, lambda rent: _usd(rent.total_usd)), _more(rents, "total_usd")
        ranges = _cells(rents, lambda rent: "" if rent.usd_range is None else amounts(*rent.usd_range, DOLLARS))
        yield "  80 % range", *ranges, ""
    else:
        told = _cells(rents, lambda rent: _usd(rent.usd_per_million_tokens))
        yield "cost per million tokens", *told, _more(rents, "usd_per_million_tokens")
    if old is not None and new is not None and old.usd_per_hour == new.usd_per_hour:
        return
    yield "price per hour", *_cells(rents, lambda rent: _usd(rent.usd_per_hour)), _more(rents, "usd_per_hour")


def _cells(rents: Rents, cell: Callable[[Rent], str]) -> tuple[str, str]:
    before, after = ("no offer" if rent is None else cell(rent) for rent in rents)
    return before, after


def _usd(usd: float | None) -> str:
    return "" if usd is None else amount(usd, DOLLARS)


def _more(rents: Rents, name: str) -> str:
    old, new = (None if rent is None else getattr(rent, name) for rent in rents)
    return "" if old is None or new is None else _share(old, new)


def _share(old: float, new: float) -> str:
    """`+12 %`; twice and more as a factor, `x 7.9`."""
    more = new / old - 1 if old else 0.0
    if abs(more) < LEAST_TIME:
        return "0"
    if more >= 1:
        return f"x {new / old:.1f}"
    return f"{more:+.0%}".replace("%", " %") if abs(more) >= 0.02 else f"{more:+.1%}".replace("%", " %")


def _notes(found: Comparison) -> Iterator[str]:
    rows = [rows_per_step(side.job) for side in (found.before, found.after)]
    if rows[0] != rows[1]:
        yield f"a step trains {rows[0]:,} rows before and {rows[1]:,} after: compare tokens per second, not steps"
    if not (found.before.fits and found.after.fits):
        yield "time and cost of what does not fit are as if it did"
    told = [None if rent is None else offer_words(rent) + _start(rent) for rent in found.cost]
    if told[0] is not None and told[0] == told[1]:
        yield f"cost: {told[0]}"
    else:
        yield from (f"cost {side}: {each}" for side, each in zip(("before", "after"), told, strict=True) if each)
    if any(rent is not None and rent.bill is None for rent in found.cost):
        yield "the whole run's time and cost need an amount of data: --samples or --tokens"


def _start(rent: Rent) -> str:
    return "" if rent.bill is None or rent.offer.kind == OWNED else ", the machine's start included"


def _step_lines(found: Comparison, terminal: Terminal) -> list[str]:
    rows = []
    for step in found.steps:
        cost = step.costs_bytes["smallest_capacity_bytes"]
        first, *more = step.fields
        fits = "" if step.fits_surely else "may not fit" if step.fits else "does not fit"
        rows.append((signed(cost, gib(cost)), _step_time(step.more_time_fraction), _change(first), _mostly(step), fits))
        rows += [("with", "", _change(each), "", "") for each in more]
    if len(found.steps) > 1:
        total = sum(step.costs_bytes["smallest_capacity_bytes"] for step in found.steps)
        whole = found.difference_time.more_time_fraction
        rows.append((signed(total, gib(total)), _step_time(whole), "all together", "", ""))
    is_timed = any(step.more_time_fraction is not None for step in found.steps)
    rows.insert(0, ("needs", "time" if is_timed else "", "", "", ""))
    return headed(rows, terminal, (2, 3, 4))


def _step_time(more: float | None) -> str:
    return "" if more is None else _share(1.0, 1.0 + more)


def _change(difference: Difference) -> str:
    return f"{difference.field}: {value_words(difference.before)} → {value_words(difference.after)}"


def _mostly(step: FieldStep) -> str:
    """The part that moved most, if any did."""
    part, nbytes = max(step.breakdown_bytes.items(), key=lambda each: abs(each[1]))
    more = step.costs_bytes["smallest_capacity_bytes"]
    agrees = nbytes * more > 0  # what the allocator caches may go the other way
    return f"mostly {words(part)} ({signed(nbytes, gib(nbytes))})" if agrees else ""


def _where(found: Comparison, terminal: Terminal) -> list[str]:
    """The parts that differ; the differences sum to that on the card."""
    old, new = found.before.memory.breakdown_bytes, found.after.memory.breakdown_bytes
    rows = [
        _memory_row(words(part), old.get(part, 0), new.get(part, 0))
        for part in {**old, **new}
        if old.get(part, 0) != new.get(part, 0)
    ]
    return headed([("", "before", "after", "difference"), *rows], terminal) if rows else []


def value_words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = shown(", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "[]"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
