"""What a plan's job does not say, and what other values would change on the machine the answer begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tunecast.advise.unstated import Spent, Taken, effects, taken, worth_telling
from tunecast.job.job import Job
from tunecast.planning.bill import Biller, Terms
from tunecast.planning.choice import Plan
from tunecast.planning.price import timed_of
from tunecast.prediction.engines import analytic
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.tape.build.sharding.scheme import rows_per_step

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Learned

CHOSEN = frozenset({"hardware.gpu", "micro_batch", "gradient_checkpointing"})
"""What a plan chooses itself."""


BATCH = "global_batch"
"""Of a plan, which keeps the rows of an optimizer step and splits them itself."""
LARGER = 4
"""Times as many rows, to show what they would change."""


def _batch(plan: Plan, job: Job) -> tuple[Taken, ...]:
    if plan.job is None or any(plan.job.is_given(field) for field in ("micro_batch", "grad_accum")):
        return ()
    rows = rows_per_step(plan.job)
    return (Taken(BATCH, rows, "transformers' default", {"grad_accum": LARGER * job.grad_accum}),)


def _with_room(each: Taken, job: Job) -> Taken:
    """A plan without vLLM gives its share of the card to activations: with it the job's own setting counts."""
    if each.field != "rl.engine":
        return each
    return each._replace(instead={**each.instead, "gradient_checkpointing": job.gradient_checkpointing})


def with_taken(plan: Plan, terms: Terms, learned: Mapping[str, Learned] | None = None) -> Plan:
    """The plan with what its job leaves open, each tried with another value on the best choice's own machine.
    `learned`: by card, what the plan was made with."""
    best = plan.best
    if best is None or best.job is None:
        return plan
    runs = (learned or {}).get(best.fleet.gpu.name)
    done = analytic(best.job, learned=runs)
    every_other = taken(best.job, done.model.model_type)
    others = (
        _with_room(each, plan.job or best.job)
        for each in every_other
        if each.field not in CHOSEN and each.field not in best.changes
    )
    every = (*_batch(plan, best.job), *others)
    biller, machine = Biller(best.job, terms), best.fleet

    def spent(done: Prediction) -> Spent:
        timed = timed_of(done)
        if timed is None:
            return Spent(None, None)
        bill = biller.bill(timed, machine.offer, machine.nodes)
        return Spent(bill.total_s, bill.cost.total_usd)

    found = effects(done, every, lambda job: analytic(job, learned=runs), spent)
    return replace(plan, taken=every, effects=tuple(worth_telling(found, done)))
