"""What of a choice's cost can be avoided without changing what is learnt: each is the same bill with a phase less."""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.offers.offer import OWNED, Offer
from tunecast.plan.bill import Biller
from tunecast.plan.choice import Saving
from tunecast.plan.estimate import Timed

WORTH = 0.02
"""Of the total: less is not worth a line."""
LEAST_USD = 0.01


def savings(timed: Timed, offer: Offer, nodes: int, biller: Biller) -> tuple[Saving, ...]:
    """The largest first."""
    if offer.kind == OWNED:
        return ()
    phases = biller.phases(timed, offer)
    likely = biller.cost(timed, phases, timed.step_s, offer, nodes, None)
    found = []
    for advice, without in _ways(timed, phases, biller):
        cost = biller.cost(timed, without, timed.step_s, offer, nodes, None)
        usd = likely.total_usd - cost.total_usd
        if usd >= max(WORTH * likely.total_usd, LEAST_USD):
            found.append(Saving(advice, usd, likely.wall_s - cost.wall_s))
    return tuple(sorted(found, key=lambda each: -each.usd))


def _ways(timed: Timed, phases: dict[str, float], biller: Biller) -> Iterator[tuple[str, dict[str, float]]]:
    data, run = biller.job.data, biller.job.run
    if phases.get("preparation"):
        yield "tokenise before you rent (data.prepared)", {**phases, "preparation": 0.0}
    if phases.get("checkpoints") and run.save_strategy != "no":
        yield "save the model at the end alone (run.save_strategy: no)", {**phases, "checkpoints": 0.0}
    if phases.get("evaluation") and data.eval_samples:
        advice = "evaluate afterwards on a cheaper card (run.eval_strategy: no)"
        yield advice, {**phases, "evaluation": 0.0}
    if phases.get("download"):
        yield "keep the model on a disk there (hardware.download_bytes_per_s: null)", {**phases, "download": 0.0}
