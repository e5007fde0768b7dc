"""What an answer has to keep to, what it means that none does, and what would have to give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tunecast.errors import DoesNotFit, OverBudget, TunecastError
from tunecast.hardware.catalog import gpus
from tunecast.plan.choice import Choice, Limits, Plan, Refusal
from tunecast.plan.search import Need, Outcome
from tunecast.plan.space import Freedom, Rig, Space
from tunecast.units import HOUR_S, gib

MOST_TOLD = 6
"""Hardware an error names one by one."""


def affordable(choices: Iterable[Choice], limits: Limits) -> list[Choice]:
    return [each for each in choices if limits.max_usd is None or each.total_usd <= limits.max_usd]


def verdict(plan: Plan, nearest: Sequence[str] = ()) -> TunecastError | None:
    """Why the plan answers nothing, or less than was asked; None where all is well."""
    if not plan.choices:
        return DoesNotFit("\n".join(["nothing that may be rented runs this job", *_told(plan.refused), *nearest]))
    limits, over = plan.limits, []
    if limits.max_usd is not None and plan.picks["cheapest"] is None:
        least = min(plan.choices, key=lambda each: each.total_usd)
        costs = f"{least.hardware} at {least.machine.offer.provider}, costs {least.total_usd:.2f} USD"
        over.append(f"--max-usd {limits.max_usd:g}: the cheapest, {costs}")
    elif limits.within_s is not None and plan.picks["deadline"] is None:
        soonest = min((*plan.choices, *plan.pareto), key=lambda each: each.total_range_s[1])
        hours = soonest.total_range_s[1] / HOUR_S
        takes = f"{soonest.hardware} at {soonest.machine.offer.provider}, may take {hours:.2g} h"
        both = "" if limits.max_usd is None else f" for {limits.max_usd:g} USD"
        over.append(f"--within: no choice{both} is over by then at the high end of its range; the fastest, {takes}")
    return OverBudget("\n".join(over)) if over else None


def refusals(space: Space, outcome: Outcome) -> tuple[Refusal, ...]:
    """Hardware without a choice, each with its reason and what would help. Links and prices do not part them."""
    found: dict[str, Refusal] = {}
    fitting = {point.of.rig for point in (*outcome.best.values(), *outcome.front)}
    for rig, need in outcome.needs.items():
        found.setdefault(rig.hardware, Refusal(rig.hardware, _reason(need), _remedy(rig, need, space, fitting)))
    for rig, why in space.refused.items():
        found.setdefault(rig.hardware, Refusal(rig.hardware, why, _other_remedy(why, space)))
    for rig, why in outcome.errors.items():
        found.setdefault(rig.hardware, Refusal(rig.hardware, why, "trace your own script: tunecast trace"))
    for rig in fitting:
        found.pop(rig.hardware, None)
    told = sorted(found.values(), key=lambda each: _natural(each.hardware))
    if space.alone and space.global_batch > 1 and space.freedom.nodes_up_to != 1:
        several = f"several machines of {len(space.alone)} providers' offers"
        why = "nobody says that these machines can be joined into one run"
        told.append(Refusal(several, why, "where you know it: tunecast offers add, with max_nodes"))
    return tuple(told)


def ruled_out(space: Space, outcome: Outcome, refused: Iterable[Refusal]) -> tuple[str, ...]:
    """Hardware with neither a choice nor a reason against it: its floors alone are beaten in both cost and time."""
    told = {each.hardware for each in refused} | set(outcome.best)
    told |= {point.of.rig.hardware for point in outcome.front}
    return tuple(sorted({rig.hardware for rig in space.offers} - told, key=_natural))


def _reason(need: Need) -> str:
    has = f"the card leaves {gib(need.has_bytes)}"
    if need.proven:
        return f"weights, gradients and optimizer state alone take {gib(need.needs_bytes)}, {has}"
    return f"needs at least {gib(need.needs_bytes)}, with {_named(need)}, and {has}"


def _named(need: Need) -> str:
    recipe, spread, split = need.setting
    parts = [f"micro_batch {split.micro_batch}"]
    if recipe.gradient_checkpointing:
        parts.append("checkpointing")
    parts += recipe.kernels
    if spread.layers > 1:
        parts.append(f"layers {spread.layers}")
    elif spread.data != "ddp":
        parts.append(spread.data)
    return ", ".join(parts)


def _remedy(rig: Rig, need: Need, space: Space, fitting: Iterable[Rig]) -> str:
    """First what is known to do, then what frees memory and was not allowed."""
    more = sorted((other for other in fitting if other.gpu == rig.gpu and other.cards > rig.cards), key=_cards)
    if more:
        return f"{more[0].hardware}, which fits"
    job, freedom = space.job, space.freedom
    tries = []
    if freedom.is_fixed("gradient_checkpointing") and not job.gradient_checkpointing:
        tries.append("gradient_checkpointing: true")
    if freedom.is_fixed("parallel.data") and job.parallel.data not in ("fsdp", "zero3") and rig.cards > 1:
        tries.append("parallel.data: fsdp")
    if job.method == "full" and "method" not in freedom.allow:
        tries.append("--allow method (lora, qlora)")
    elif job.method == "lora" and "method" not in freedom.allow:
        tries.append("--allow method (qlora)")
    if job.method == "full" and "optimizer" not in freedom.allow:
        tries.append("--allow optimizer (8-bit states)")
    largest = max(each.memory_bytes for each in gpus().values())
    card = f"a card that leaves {gib(need.needs_bytes)}"
    bigger = card if need.needs_bytes < largest else "more cards: none has that much"
    return " or ".join([*tries, bigger])


def _other_remedy(why: str, space: Space) -> str:
    if "bfloat16" in why:
        return "autocast: float16, with weights_dtype float16 or float32"
    if "global batch" in why:
        return f"a batch that divides: micro_batch x grad_accum is {space.global_batch}"
    if "is kept" in why:
        return "leave it out of --keep"
    return "another card, or tunecast trace with your own script"


def relaxations(freedom: Freedom) -> Mapping[str, Freedom]:
    """Less that is fixed, the mildest first: what may be tried where nothing fits."""
    found: dict[str, Freedom] = {}
    wider = freedom.allow
    for name, fields in (
        ("gradient_checkpointing", {"gradient_checkpointing"}),
        ("kernels", {"kernels"}),
        ("parallel.data", {"parallel.data"}),
        ("optimizer", {"optimizer"}),
        ("method", {"method"}),
    ):
        if fields <= wider or not (name in ("optimizer", "method") or freedom.is_fixed(name)):
            continue
        wider = wider | fields
        keep = freedom.keep - fields
        found[f"--allow {name}"] = Freedom(freedom.written, keep, wider, freedom.nodes_up_to)
    return found


def _told(refused: Sequence[Refusal]) -> list[str]:
    told = [f"  {each.hardware}: {each.reason}. To fix: {each.remedy}" for each in refused[:MOST_TOLD]]
    more = len(refused) - MOST_TOLD
    return [*told, f"  and {more} more"] if more > 0 else told


def _cards(rig: Rig) -> tuple[int, str]:
    return rig.cards, rig.hardware


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]
