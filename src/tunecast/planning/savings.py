"""What of a choice's cost can be avoided: the same bill with a phase less, or with a setting that was not searched.

The first kind changes nothing that is learnt; of the second, `batches` are other batches, which is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.market.cost import Cost
from tunecast.market.offer import OWNED, SPOT
from tunecast.planning.bill import ONCE, Biller
from tunecast.planning.choice import AvoidableCost, Choice
from tunecast.planning.estimate import Timed
from tunecast.prediction.engines import analytic
from tunecast.prediction.outside.sharded_files import writes_parts
from tunecast.records import replace

WORTH = 0.02
"""Of the total: less is not worth a line."""
LEAST_USD = 0.01


def savings(choice: Choice, timed: Timed, biller: Biller) -> tuple[AvoidableCost, ...]:
    """The largest first."""
    machine = choice.fleet
    if machine.offer.kind == OWNED:
        return ()

    def cost(phases_s: Mapping[str, float]) -> Cost:
        return biller.cost(timed, phases_s, timed.step_s, machine.offer, machine.nodes, None)

    phases = biller.phases(timed, machine.offer, machine.nodes)
    likely = cost(phases)
    found = []
    is_spot = machine.offer.kind == SPOT  # which goes on from its checkpoints
    for advice, without in (*_shorter(phases, biller, is_spot), *_other_settings(choice, phases, is_spot)):
        less = cost(without)
        usd = likely.total_usd - less.total_usd
        if usd >= max(WORTH * likely.total_usd, LEAST_USD):
            found.append(AvoidableCost(advice, usd, likely.wall_s - less.wall_s))
    return tuple(sorted(found, key=lambda each: -each.usd))


Way = tuple[str, dict[str, float]]
"""Advice, and the phases with it."""


def _shorter(phases: dict[str, float], biller: Biller, is_spot: bool) -> Iterator[Way]:
    saves = biller.job is not None and biller.job.run.save_strategy != "no"
    if phases.get("preparation"):
        yield "tokenise before you rent (data.prepared)", {**phases, "preparation": 0.0}
    if phases.get("checkpoints") and saves and not is_spot:
        yield "save the model at the end alone (run.save_strategy: no)", {**phases, "checkpoints": 0.0}
    if phases.get("evaluation"):
        advice = "evaluate afterwards on a cheaper card (run.eval_strategy: no)"
        yield advice, {**phases, "evaluation": 0.0}
    if phases.get("download"):
        yield "keep the model on a disk there (hardware.download_bytes_per_s: null)", {**phases, "download": 0.0}


def _other_settings(choice: Choice, phases: dict[str, float], is_spot: bool) -> Iterator[Way]:
    """Each is predicted, so only what can be worth it is tried."""
    job, total_s = choice.job, sum(phases.values())
    if job is None:
        return
    needs_optimizer = is_spot or writes_parts(job)  # the Trainer writes parts of a model with the optimizer's alone
    if phases.get("checkpoints", 0.0) > WORTH * total_s and not (job.run.save_only_model or needs_optimizer):
        without = replace(job, run=replace(job.run, save_only_model=True))
        yield from _predict("save checkpoints without the optimizer (run.save_only_model)", without, choice)
    data = job.data
    if data.has_lengths and not (data.packing or data.max_tokens_per_batch or data.group_by_length):
        tokens = job.micro_batch * max(job.lengths or (job.seq_len,))
        filled = replace(job, data=replace(data, max_tokens_per_batch=tokens))
        advice = f"fill batches by tokens, which are other batches then (data.max_tokens_per_batch: {tokens})"
        yield from _predict(advice, filled, choice)


def _predict(advice: str, job: Job, choice: Choice) -> Iterator[Way]:
    try:
        done = analytic(job)
    except TunecastError:  # the closed form does not have it
        return
    if done.fits and done.time is not None:
        seconds = done.time.phases_s or {}
        yield advice, {name: each * (1 if name in ONCE else choice.runs) for name, each in seconds.items()}
