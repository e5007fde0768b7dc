"""Measured against predicted while a run goes on: one line, and what is wrong, each by a rule with its cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tunecast.learn.inside.merge import DATA_FRACTION, IDLE_FRACTION, bound_by, data_fraction, power_fraction

GIB = 1 << 30
THROTTLED_FRACTION = 0.1
"""Of the samples while it trains."""
LEAST_STEPS = 5
"""Timed steps before their median is compared with what was predicted."""

Parts = Mapping[str, Any]


class Live(NamedTuple):
    """What is known now: what was predicted, what the first rank measures, what is seen from outside."""

    expected: Parts
    inside: Parts
    outside: Parts
    elapsed_s: float
    usd_per_hour: float | None = None

    @property
    def predicted(self) -> Parts:
        found = self.expected.get("predicted")
        return found if isinstance(found, Mapping) else {}

    @property
    def step_s(self) -> float | None:
        found = self.inside.get("recent_s")
        return None if found is None else float(found)

    @property
    def device_bytes(self) -> int | None:
        found = self.outside.get("device_bytes") or (self.inside.get("memory") or {}).get("used_bytes")
        return None if not found else int(found)

    @property
    def left_s(self) -> float | None:
        """At the rate so far, evaluation and saving included."""
        time, of = self.inside.get("time") or {}, self.inside.get("of") or self.expected.get("steps") or 0
        spans, steps = time.get("phases_s") or {}, time.get("steps") or 0
        if not steps or of <= 0:
            return None
        spent = sum(spans.get(name, 0.0) for name in ("training", "data", "evaluation", "save"))
        return max(0, of - (self.inside.get("step") or 0)) * float(spent) / float(steps)


def line(live: Live, *, over: bool = False) -> str:
    """`step 120 of 1,000; 1.52 s per step (predicted 1.60 s); 18.20 GiB (predicted 18.40 GiB); 22 min left`.
    `over`: of the whole run, as its record has it, and nothing is left."""
    step, of = live.inside.get("step") or 0, live.inside.get("of") or 0
    parts = []
    if not live.inside:
        parts.append(f"{'ran' if over else 'runs'} for {duration(live.elapsed_s)}")
    elif not step:
        parts.append(f"{live.inside.get('phase', 'load')} for {duration(live.elapsed_s)}")
    else:
        phase = live.inside.get("phase")
        doing = f", {phase}" if phase in ("evaluation", "save") else ""
        parts.append(f"step {step:,}{f' of {of:,}' if of > 0 else ''}{doing}")
    step_s = (live.inside.get("time") or {}).get("step_s") if over else live.step_s
    if step_s is not None:
        parts.append(f"{seconds(step_s)} per step{_predicted(live.predicted.get('step_s'), seconds)}")
    if live.device_bytes is not None:
        parts.append(f"{size(live.device_bytes)}{_predicted(live.predicted.get('device_bytes'), size)}")
    left = live.left_s
    if left is not None and not over and live.inside.get("phase") != "end":
        money = "" if live.usd_per_hour is None else f", ${left / 3600 * live.usd_per_hour:,.2f} more"
        parts.append(f"{duration(left)} left{money}")
    return "; ".join(parts)


def _predicted(value: Any, shown: Any) -> str:
    return "" if value is None else f" (predicted {shown(value)})"


def warnings(live: Live) -> dict[str, str]:
    """By what they are about, so that each is said once."""
    found: dict[str, str] = {}
    card = other_card(live)
    if card:
        found["card"] = card
    low, high = live.predicted.get("low_s"), live.predicted.get("high_s")
    timed = (live.inside.get("time") or {}).get("steps") or 0
    if live.step_s is not None and timed >= LEAST_STEPS and low is not None and high is not None:
        told = f"{seconds(live.step_s)} per step, predicted {seconds(low)} to {seconds(high)}"
        if live.step_s > high:
            found["slower"] = f"slower than predicted: {told}. {cause(live)}"
        elif live.step_s < low:
            found["faster"] = f"faster than predicted: {told}"
    memory, range_bytes = live.device_bytes, live.predicted.get("device_range_bytes")
    if memory is not None and range_bytes and memory > range_bytes[1]:
        told = f"{size(memory)}, predicted {size(range_bytes[0])} to {size(range_bytes[1])}"
        found["memory"] = f"more memory than predicted: {told}"
    return {**found, **out_of_memory_ahead(live)}


def other_card(live: Live) -> str | None:
    planned, device = live.expected.get("card") or {}, live.outside.get("device")
    if not device or not planned.get("words"):
        return None
    if all(str(word).lower() in str(device).lower() for word in planned["words"]):
        return None
    return f"another card than planned: {device}, not {planned.get('name')}"


def cause(live: Live) -> str:
    """The first of these that holds: each alone explains a slow step."""
    card, waits = other_card(live), data_fraction(live.inside)
    if card:
        return f"It runs on {card}"
    if (live.outside.get("throttled_fraction") or 0.0) > THROTTLED_FRACTION:
        share = live.outside["throttled_fraction"]
        return f"The card lowers its clock {share:.0%} of the time, for {live.outside.get('throttled_by')}"
    if waits is not None and waits >= DATA_FRACTION:
        return (
            f"It waits for its data {waits:.0%} of the time. To fix: more dataloader workers, or data prepared before"
        )
    busy = live.outside.get("busy_fraction")
    bound = bound_by(waits, busy, power_fraction(live.outside), live.outside.get("cards") or 1)
    if bound == "link":
        return "Cards are busy but draw little power, as when they wait for each other: a slow link"
    if busy is not None and busy < 1 - IDLE_FRACTION:
        return f"The card is idle {1 - busy:.0%} of the time and does not wait for data: the host is slow"
    return "Its cause is not seen here"


def out_of_memory_ahead(live: Live) -> dict[str, str]:
    """From the data's order: the steps whose batch is the largest so far, and what each is predicted to hold. What is
    measured above the prediction by now comes on top of them too. Before anything is measured the prediction alone."""
    records, capacity = list(live.expected.get("records") or ()), live.expected.get("capacity_bytes")
    measured = (live.inside.get("memory") or {}).get("allocated_bytes")
    step = live.inside.get("step") or 0
    if capacity is None:
        return {}
    before = [record for record in records if record["step"] <= step]
    about, verb = ("ahead", "will") if before and measured else ("expected", "is predicted to")
    more = measured - before[-1]["allocated_bytes"] if before and measured else 0
    for record in records:
        if record["step"] > step and record["allocated_bytes"] + more > capacity:
            needed = f"{size(record['allocated_bytes'] + more)} of {size(capacity)}"
            which = "the longest batch comes" if record is records[-1] else "a longer batch comes"
            told = f"{which} then ({record['rows']} x {record['length']:,} tokens, {needed})"
            return {about: f"this run {verb} run out of memory at step {record['step']:,}: {told}"}
    predicted = live.predicted.get("allocated_bytes") or 0
    if not records and not measured and predicted > capacity:
        return {about: f"this run {verb} run out of memory: {size(predicted)} of {size(capacity)}"}
    return {}


def size(value: float) -> str:
    return f"{value / GIB:.2f} GiB" if value < 100 * GIB else f"{value / GIB:.1f} GiB"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.1f} ms"


def duration(value: float) -> str:
    if value < 60:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
