"""What an answer has to keep to, what it means that none does, and what would have to give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from tunecast.errors import DoesNotFit, OverBudget, TunecastError
from tunecast.hardware.catalog import gpus
from tunecast.job.shardings import SHARDED, SHARDINGS, sharding_of
from tunecast.job.stacks import stack_of
from tunecast.market.offer import Offer
from tunecast.planning.choice import Choice, Constraints, Plan, Refusal
from tunecast.planning.search import Need, Outcome
from tunecast.planning.space import Freedom, Rig, Space, joined_up_to
from tunecast.records import replace
from tunecast.tape.build.sharding.scheme import rows_per_step
from tunecast.units import gib, hours

MOST_TOLD = 6
"""Hardware an error names one by one."""


def affordable(choices: Iterable[Choice], limits: Constraints) -> list[Choice]:
    return [each for each in choices if limits.max_usd is None or each.total_usd <= limits.max_usd]


def verdict(plan: Plan, nearest: Sequence[str] = ()) -> TunecastError | None:
    """Why the plan answers nothing, or less than was asked; None where all is well."""
    if not plan.choices:
        return DoesNotFit("\n".join(["no machine that may be rented runs this job", *_told(plan.refused), *nearest]))
    return None if plan.is_answered else OverBudget(unreachable(plan))


def unreachable(plan: Plan, amount: Callable[[float], str] = "{:.2f} USD".format) -> str:
    """Which limit nothing keeps to, and what comes nearest."""
    limits, told = plan.limits, []
    in_time = [each for each in plan.pareto if limits.within_s is None or each.total_range_s[1] <= limits.within_s]
    if limits.within_s is not None and not in_time:
        soonest = min(plan.pareto, key=lambda each: each.total_range_s[1])
        low, high = soonest.total_range_s
        takes = f"{_named_choice(soonest)}, takes {hours(low)} to {hours(high)} and costs {amount(soonest.total_usd)}"
        told.append(f"Nothing finishes within {hours(limits.within_s)}: the soonest for sure, {takes}")
    cheapest = min(in_time or plan.pareto, key=lambda each: each.total_usd)
    if limits.max_usd is not None and cheapest.total_usd > limits.max_usd:
        costs = f"{_named_choice(cheapest)}, costs {amount(cheapest.total_usd)} and takes {hours(cheapest.total_s)}"
        by_then = f" and finishes within {hours(limits.within_s)}" if limits.within_s is not None and in_time else ""
        told.append(f"Nothing costs at most {amount(limits.max_usd)}{by_then}: the cheapest, {costs}")
    return ". ".join(told)


def _named_choice(choice: Choice) -> str:
    return f"{choice.hardware} at {choice.fleet.offer.provider}"


def refusals(space: Space, outcome: Outcome, offers: Iterable[Offer]) -> tuple[Refusal, ...]:
    """Hardware of these offers without a choice, each with its reason and what would help. Links and prices do not part
    them."""
    found: dict[str, Refusal] = {}
    meant = {(offer.gpu, offer.gpus) for offer in offers}
    for rig, need in outcome.needs.items():
        remedy = _remedy(rig, need, space, outcome.fitting)
        by = need.needs_bytes / need.has_bytes if need.has_bytes > 0 else inf
        found.setdefault(rig.hardware, Refusal(rig.hardware, _reason(need), remedy, too_small=True, too_small_by=by))
    for rig, why in space.refused.items():
        found.setdefault(rig.hardware, Refusal(rig.hardware, why, _other_remedy(why, space)))
    for rig, why in outcome.errors.items():
        found.setdefault(rig.hardware, Refusal(rig.hardware, why, "trace your own script: tunecast trace"))
    for rig in outcome.fitting:
        found.pop(rig.hardware, None)
    rigs = {rig.hardware: (rig.gpu_name, rig.gpus) for rig in (*outcome.needs, *space.refused, *outcome.errors)}
    told = [each for each in found.values() if rigs[each.hardware] in meant]
    return tuple(sorted(told, key=lambda each: _natural(each.hardware)))


def ruled_out(space: Space, outcome: Outcome, refused: Iterable[Refusal], offers: Iterable[Offer]) -> tuple[str, ...]:
    """Hardware with neither a choice nor a reason against it: its floors alone are beaten in both cost and time."""
    told = {each.hardware for each in refused} | set(outcome.best)
    told |= {point.of.rig.hardware for point in outcome.front}
    meant = frozenset(offers)
    rigs = {rig.hardware for rig, of in space.offers.items() if not meant.isdisjoint(of)}
    return tuple(sorted(rigs - told, key=_natural))


def _reason(need: Need) -> str:
    if need.of_host:
        return f"the machine has {gib(need.has_bytes)} of host RAM, and {gib(need.needs_bytes)} are needed"
    has = f"PyTorch can use {gib(need.has_bytes)}"
    if need.proven:
        return f"weights, gradients and optimizer state alone take {gib(need.needs_bytes)}; {has}"
    return f"needs at least {gib(need.needs_bytes)}, with {_named(need)}; {has}"


def _named(need: Need) -> str:
    technique, spread, split = need.setting
    parts = [f"micro_batch {split.micro_batch}"]
    if technique.gradient_checkpointing:
        parts.append("checkpointing")
    parts += technique.kernels
    if spread.layers > 1:
        parts.append(f"layers {spread.layers}")
    elif not SHARDINGS[spread.data].is_replicated:
        parts.append(spread.data)
    return ", ".join(parts)


def _remedy(rig: Rig, need: Need, space: Space, fitting: Iterable[Rig]) -> str:
    """First what is known to do, then what frees memory and was not allowed."""
    more = sorted(
        (other for other in fitting if other.gpu_name == rig.gpu_name and other.cards > rig.cards), key=_cards
    )
    if more:
        return f"{more[0].hardware}, which fits"
    if need.of_host:
        return "a machine with more host RAM; if yours has it: tunecast offers add"
    return " or ".join([*_milder(space, rig), larger_card(need.needs_bytes) + _rows_for_more(space, rig)])


def _rows_for_more(space: Space, rig: Rig) -> str:
    """Of machines that join, where the rows of a step do not feed twice the cards."""
    rows = rows_per_step(space.job)
    alike = (offer for other, of in space.offers.items() if other.hardware == rig.hardware for offer in of)
    joins = any((joined_up_to(offer) or 1) > rig.nodes for offer in alike)
    if not joins or rows % (2 * rig.cards) == 0:
        return ""
    return f"; more cards also need more rows per step (--grad-accum): {rows} feed at most {rows}"


def _milder(space: Space, rig: Rig) -> Iterator[str]:
    """Changes that free memory and were not allowed, those that change least first."""
    job, freedom = space.job, space.freedom
    if freedom.is_fixed("gradient_checkpointing") and not job.gradient_checkpointing:
        yield "gradient_checkpointing: true"
    sharding, frugal = sharding_of(job), stack_of(job).frugal
    is_most_cut = sharding.cuts_weights and not sharding.replicates_machines
    if freedom.is_fixed("parallel.data") and not is_most_cut and rig.cards > 1:
        yield f"parallel.data: {SHARDED}"
    if job.method != "full" and job.weights_dtype == "float32" and "weights_dtype" not in freedom.allow:
        yield "weights_dtype: bfloat16, which halves the frozen weights"
    if job.quantization.format in ("nf4", "fp4"):
        if not job.quantization.double_quant:
            yield "quantization.double_quant: true"
        if job.quantization.prepare_kbit and freedom.is_fixed("quantization.prepare_kbit"):
            yield "quantization.prepare_kbit: false"
    if job.method != "full" and rig.cards == 1 and frugal is not None:
        yield f"stack: {frugal}"
    if job.method in ("full", "lora") and "method" not in freedom.allow:
        yield f"--allow method ({'lora, qlora' if job.method == 'full' else 'qlora'})"
    if job.method == "full" and "optimizer" not in freedom.allow:
        yield "--allow optimizer (8-bit states)"


def larger_card(needs_bytes: int) -> str:
    cards = [card for card in gpus().values() if card.vendor == "NVIDIA" and card.memory_bytes > needs_bytes]
    if not cards:
        return "more cards: none has that much"
    least = min(cards, key=lambda card: (card.memory_bytes, card.name))
    return f"a card of {gib(least.memory_bytes)} such as {least.name}"


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
    for name in ("gradient_checkpointing", "kernels", "parallel.data", "optimizer", "method"):
        if name not in wider and (name in ("optimizer", "method") or freedom.is_fixed(name)):
            wider = wider | {name}
            found[f"--allow {name}"] = replace(freedom, keep=freedom.keep - {name}, allow=wider)
    return found


def _told(refused: Sequence[Refusal]) -> list[str]:
    """Those that come nearest first."""
    nearest = sorted(refused, key=lambda each: each.too_small_by)[:MOST_TOLD]
    told = [f"  {each.hardware}: {each.reason}. To fix: {each.remedy}" for each in nearest]
    more = len(refused) - MOST_TOLD
    return [*told, f"  and {more} more"] if more > 0 else told


def _cards(rig: Rig) -> tuple[int, str]:
    return rig.cards, rig.hardware


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]
