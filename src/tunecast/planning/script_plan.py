"""A plan of a script: its trace on every card that is rented out, priced and billed as a job's are.

    offers of as many cards as the script is launched on ──► rigs ──► its trace on each: memory, time ──► bills
      ► picks, front, what stands beside: as for a job (`plan.py`)
      ► a pick whose kernels are not those of a card it was traced on: traced there, and planned again

The script runs as it is: nothing but the machine is chosen.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import MODELLED
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.hardware.spec import Gpu, card_name
from tunecast.market.offer import Offer
from tunecast.market.selection import Selection
from tunecast.planning.bill import USUAL_START_S
from tunecast.planning.choice import Choice, Plan, Refusal
from tunecast.planning.constraints import larger_card
from tunecast.planning.estimate import Held
from tunecast.planning.goals import Aim, Goal, Point
from tunecast.planning.plan import PlanMaker, Question
from tunecast.planning.price import timed_of
from tunecast.planning.search import FRONT, FittingSetting, Outcome
from tunecast.planning.space import BFLOAT16, Rig, joined_up_to, rig_of
from tunecast.prediction.evidence import evidence_for
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.time.script_time import A_SCRIPT
from tunecast.records import replace
from tunecast.units import gib

MOST_TRACES = 5
"""Further cards a plan traces the script on, each of which takes as long as the first."""


class ScriptRuns(ABC):
    """A script as it was traced, on whichever cards."""

    gpus: int
    nodes: int
    words: str
    """Its command and how long it runs."""
    assumed: tuple[str, ...]
    """What is not known of its length, and what is left out of its time."""

    @abstractmethod
    def on(self, gpu: Gpu, cluster: Cluster | None) -> Prediction:
        """By the trace on the card most like it."""

    @abstractmethod
    def is_traced_for(self, gpu: Gpu) -> bool:
        """Whether a trace on that card would be one that is there."""

    @abstractmethod
    def trace_on(self, gpu: Gpu) -> None:
        """Raises what the script raises there."""

    @abstractmethod
    def has_bfloat16(self, gpu: Gpu) -> bool:
        """Whether it computes in bfloat16 on that card."""


def script_plan_of(
    runs: ScriptRuns, offers: Selection, question: Question, *, most_traces: int = MOST_TRACES,
    front_in_full: bool = False,
) -> Plan:  # fmt: skip
    """`most_traces`: of further cards, for picks whose kernels those of the first trace are not."""
    failed: dict[str, str] = {}
    for _ in range(most_traces):
        found = ScriptPlanMaker(runs, offers, question, failed).make((), front_in_full=front_in_full)
        untraced = _untraced(found, runs)
        if untraced is None:
            return found
        try:
            runs.trace_on(untraced)
        except TunecastError as error:
            failed[untraced.name] = error.message.splitlines()[0]
    planner = ScriptPlanMaker(runs, offers, question, failed)
    return planner.make((), front_in_full=front_in_full)


def _untraced(plan: Plan, runs: ScriptRuns) -> Gpu | None:
    """The first card of a pick, or of what is shown beside the picks, that the script was not traced for."""
    picked = [plan.best, *plan.picks.values(), *plan.pareto]
    cards = (choice.fleet.gpu for choice in picked if choice is not None)
    return next((card for card in cards if not runs.is_traced_for(card)), None)


class ScriptPlanMaker(PlanMaker):
    """`failed`: cards on which the script does not run, with the reason."""

    def __init__(self, runs: ScriptRuns, offers: Selection, question: Question, failed: Mapping[str, str]) -> None:
        super().__init__(None, offers, question)
        self.runs = runs
        self.refused: dict[Rig, Refusal] = {}
        self.predictions: dict[Rig, Prediction] = {}
        self.rigs: dict[Rig, list[Offer]] = {}
        for offer in dict.fromkeys([*offers.offers, *(each for of in self.groups.values() for each in of)]):
            joined = joined_up_to(offer) or 1
            if offer.gpus == runs.gpus and joined >= runs.nodes:
                self.rigs.setdefault(rig_of(offer, runs.nodes), []).append(offer)
        for rig in list(self.rigs):
            if (why := self._refusal(rig, failed)) is not None:
                self.refused[rig] = why
                del self.rigs[rig]

    def _refusal(self, rig: Rig, failed: Mapping[str, str]) -> Refusal | None:
        card = rig.gpu
        if card.vendor not in MODELLED:
            return Refusal(rig.hardware, f"{card.vendor} cards are not modelled", "another card")
        if card.name in failed:
            return Refusal(rig.hardware, f"the script fails there: {failed[card.name]}", "another card")
        if card.compute_capability < BFLOAT16 and self.runs.has_bfloat16(card):
            return Refusal(
                rig.hardware, "the script computes in bfloat16, which the card does not have", "another card"
            )
        return None

    @property
    def script(self) -> str:
        return self.runs.words

    def prediction(self, rig: Rig) -> Prediction:
        if rig not in self.predictions:
            cluster = None
            if rig.cards > 1:
                cluster = cards_of(rig.gpu, rig.gpus, rig.nodes, named=rig.interconnect, gbit_per_s=rig.inter_node_gbps)
            self.predictions[rig] = self.runs.on(rig.gpu, cluster)
        return self.predictions[rig]

    def search_wider(self, within_s: float | None) -> tuple[Outcome, bool]:
        began_s = time.monotonic()
        main: Goal[FittingSetting] = Goal(Aim(FRONT, self.may_be_picked, within_s))
        goals = (main, *(Goal(aim, main) for aim in self.aims(within_s)))
        best: dict[str, Point[FittingSetting]] = {}
        least: dict[str, float] = {}
        count = 0
        for rig, offers in self.rigs.items():
            done = self.prediction(rig)
            held, timed = held_of(done), timed_of(done)
            if not held.fits or timed is None:
                self.refused[rig] = too_small(rig, held)
                continue
            for offer in offers:
                count += 1
                cost = self.biller.likely(timed, offer, rig.nodes)
                found = FittingSetting(rig, None, offer, timed, held)
                point = Point(cost.total_usd, cost.wall_s, (count,), found)

                def high_s(found: FittingSetting = found) -> float:
                    return self.biller.bill(found.timed, found.offer, found.rig.nodes).range_s[1]

                for goal in goals:
                    if not goal.accepts(rig, offer):
                        continue
                    least[goal.name] = min(point.usd, least.get(goal.name, inf))
                    counts = goal.add(point, high_s, surely=held.fits_surely)
                    first = best.get(rig.hardware)
                    if goal is main and counts and held.fits_surely and (first is None or point[:3] < first[:3]):
                        best[rig.hardware] = point
        missed = {goal.name: least[goal.name] for goal in goals[1:] if goal.found is None and goal.name in least}
        outcome = Outcome(
            tuple(main.sure if len(main.sure) else main.risky),
            {goal.name: goal.found for goal in goals[1:]},
            missed,
            best,
            frozenset(self.rigs) - frozenset(self.refused),
            {},
            {},
            count,
            0,
            count,
            time.monotonic() - began_s,
        )
        self._outcomes.append(outcome)
        return outcome, False

    def validated(self, rig: Rig) -> bool:
        return evidence_for(rig.gpu_name, A_SCRIPT, None, rig.cards > 1).validated

    def _choice(self, point: Point[FittingSetting]) -> Choice:
        rig, _, offer, timed, _ = point.of
        evidence = evidence_for(rig.gpu_name, A_SCRIPT, None, rig.cards > 1)
        told = self.prediction(rig).time
        epochs = told.steps / told.epoch_steps if told is not None and told.steps and told.epoch_steps else None
        return replace(
            self.as_found(point.of, self.biller.bill(timed, offer, rig.nodes), evidence), script_epochs=epochs
        )

    def with_prediction(self, choice: Choice) -> Choice:
        rig = next(p.of.rig for p, made in self._made.values() if made is choice)
        return replace(choice, prediction=self.prediction(rig))

    def refusals(self, outcome: Outcome) -> tuple[Refusal, ...]:
        main = {rig_of(offer, self.runs.nodes) for offer in self.main}
        fits = {rig.hardware for rig in outcome.fitting}
        told = {why.hardware: why for rig, why in self.refused.items() if rig in main and why.hardware not in fits}
        return tuple(told[name] for name in sorted(told))

    def assumptions(self, picks: Mapping[str, Choice | None], several: bool) -> list[str]:
        runs = self.runs
        each = "one card" if runs.gpus == 1 else f"{runs.gpus} cards"
        machines = "one machine" if runs.nodes == 1 else f"each of {runs.nodes} machines"
        told = [
            *runs.assumed,
            f"{each} of {machines}, as the script is launched (torchrun --nproc-per-node N plans for N)",
        ]
        told += _likened(picks.values(), runs)
        told.append("the result is not downloaded and nothing is stored (--egress, --storage)")
        for choice in picks.values():
            told += [] if choice is None else choice.bill.assumptions
        starts = "-".join(f"{each / 60:.0f}" for each in USUAL_START_S)
        told.append(f"machines start in their provider's usual time, {starts} minutes where it is not known")
        return list(dict.fromkeys(told))


def _likened(choices: Iterable[Choice | None], runs: ScriptRuns) -> list[str]:
    """Cards of picks for which a trace on another card stands."""
    cards = {each.fleet.gpu.name: each.fleet.gpu for each in choices if each is not None}.values()
    names = [card_name(card.name) for card in cards if not runs.is_traced_for(card)]
    return [f"traced on a card with other kernels: {', '.join(names)} (--traces N traces on more)"] if names else []


def held_of(done: Prediction) -> Held:
    held = done.on_card
    device = held.device
    needs, has = held.unlimited.reserved_bytes, held.capacity_bytes
    return Held(held.fits, needs, has, device.nbytes, device.range_bytes, has + held.outside_bytes)


def too_small(rig: Rig, held: Held) -> Refusal:
    reason = f"needs {gib(held.needs_bytes)}; PyTorch can use {gib(held.has_bytes)}"
    remedy = f"tunecast fit --gpu {rig.gpu_name} -- ..., or {larger_card(held.needs_bytes)}"
    return Refusal(rig.hardware, reason, remedy, too_small=True)
