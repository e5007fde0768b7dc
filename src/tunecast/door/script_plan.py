"""Which machines to rent for a script that was traced, how long it takes there and what it costs in all."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunecast.door.filters import flags_of
from tunecast.door.plan import Found, Planner, PlanOptions
from tunecast.door.script_words import NO_TIME
from tunecast.door.trace import ScriptTrace
from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.hardware.cluster import Cluster
from tunecast.hardware.spec import Gpu
from tunecast.market.filters import Filters
from tunecast.market.selection import Selection
from tunecast.planning.choice import Plan
from tunecast.planning.plan import Question
from tunecast.planning.script_plan import MOST_TRACES, ScriptRuns, script_plan_of
from tunecast.prediction.prediction import Prediction

OF_JOBS = ("keep", "allow", "nodes_up_to", "no_calibration")
"""Options of jobs alone: which of their settings a plan may choose, and what corrects their steps."""
Tell = Callable[[str], None]


class ScriptPlanner(Planner):
    """`tell` is called with the name of each further card the script is traced on."""

    def __init__(
        self, found: ScriptTrace, options: PlanOptions, tell: Tell = lambda card: None,
        progress: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(None, options)
        given = [name for name in OF_JOBS if self.options[name]]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            told = "is for jobs: a script runs as it is, on as many cards as it is launched on"
            raise UsageError(f"{flag}: {told}. To fix: leave it out", field=flag)
        self.runs = TracedRuns(require_length(found), tell, progress)

    def _search(
        self, offers: Selection, question: Question, *, front_in_full: bool = False, found: Found | None = None
    ) -> Plan:
        traces = self.options["traces"]
        most = MOST_TRACES if traces is None else traces
        return script_plan_of(self.runs, offers, question, most_traces=most, front_in_full=front_in_full)

    def _nearest(self, offers: Selection, *, is_known: bool) -> list[str]:
        everything, flags = self.select(Filters(), everything=True), flags_of(self.options)
        named = f"without {', '.join(flags)}" if flags else "--spot --marketplace"
        if len(everything.offers) > len(offers.offers):
            found = self._search(everything, self.question)
            if found.choices:
                best = found.choices[0]
                return [f"what would: {named}: {best.hardware} at {best.offer.provider} for {best.total_usd:.2f} USD"]
        return ["what would: changes to the script (tunecast fit -- ...), or more cards (torchrun --nproc-per-node N)"]


def require_length(found: ScriptTrace) -> ScriptTrace:
    """The trace with a number of steps: what the script or the user says, else one epoch of its data.

    Of a script that failed or never trained nothing is planned.
    """
    if found.stop is not None:
        raise NotResolved(found.stop, field="script")
    told = found.time
    if told is None:
        missing = NO_TIME if len(found.on_cards) > 1 else "it took no whole optimizer step"
        why = "; ".join(found.timing.warnings) or missing
        raise UsageError(f"the time of the script is not known: {why}", field="script")
    if told.total_s is not None:
        return found
    if told.epoch_steps is None:
        unknown = (
            "how many optimizer steps the script takes in all is not known: neither a trainer nor a DataLoader says it"
        )
        raise UsageError(
            f"{unknown}. To fix: --total-steps N (Python: trace(..., total_steps=N))", field="--total-steps"
        )
    return found.of_one_epoch()


class TracedRuns(ScriptRuns):
    def __init__(self, found: ScriptTrace, tell: Tell, progress: Callable[[float], None] | None) -> None:
        self.found, self.tell, self.progress, self.spent_s = [found], tell, progress, 0.0
        self.gpus, self.nodes = found.tracer.processes, found.launch.nnodes or 1
        told = found.time
        steps = f", {told.steps:,} optimizer steps" if told is not None and told.steps else ""
        self.words = f"{found.launch.words}{steps}"
        epoch = "the script does not say how often it goes through its data: one epoch is planned (--total-steps N)"
        missing = "; ".join((told and told.missing) or ())
        self.assumed = (*([epoch] if found.tracer.one_epoch else []), f"not in time and cost: {missing}")

    def like(self, gpu: Gpu) -> ScriptTrace:
        """The trace on that card, or one like it: of the same capability before any other."""
        same = [each for each in self.found if each.is_same_on(gpu)]
        near = [each for each in self.found if each.traced_on.compute_capability == gpu.compute_capability]
        return (same or near or self.found)[0]

    def on(self, gpu: Gpu, cluster: Cluster | None) -> Prediction:
        return self.like(gpu).on(gpu, cluster)

    def is_traced_for(self, gpu: Gpu) -> bool:
        return any(each.is_same_on(gpu) for each in self.found)

    def trace_on(self, gpu: Gpu) -> None:
        self.tell(gpu.name)
        began_s = time.monotonic()
        made = self.found[0].tracer.trace(gpu, progress=None if self.progress is None else self._progress, again=True)
        self.spent_s += time.monotonic() - began_s
        if made.time is None:
            raise TunecastError("no whole step was traced there")
        self.found.append(made)

    def _progress(self, passed_s: float) -> None:
        """Of all traces so far."""
        assert self.progress is not None
        self.progress(self.spent_s + passed_s)

    def has_bfloat16(self, gpu: Gpu) -> bool:
        return "bfloat16" in self.like(gpu).dtypes
